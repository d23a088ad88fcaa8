// Command hostile attacks a relay that is paired with others, and measures what that costs
// everybody else: one attack after another, each against a fresh relay on a loopback of its
// own, beside an honest pair and an unpaired tunnel.
//
//	go run ./bench/hostile --time 60s
//
// It fails if an attack gets past one of the bounds that it prints.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"longhaul/bench/kit"
	"longhaul/bench/peers"
	"longhaul/internal/words/flagvalue"
	"longhaul/lab/sandbox"
)

func main() { kit.Command("hostile", run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == attackCommand {
		return attack(ctx, args[1:], stdout)
	}
	flags := flag.NewFlagSet("hostile", flag.ContinueOnError)
	flags.SetOutput(stderr)
	asJSON := flags.Bool("json", false, "print JSON")
	list := flags.Bool("list", false, "list the attacks")
	only := flags.String("attacks", "", "comma-separated names of the attacks to run (default all)")
	quick := flags.Bool("quick", false, "the same as --time 5s")
	b := bench{progress: stderr}
	flags.StringVar(&b.binary, "longhaul", "", "longhaul binary to attack (default: built from this tree)")
	flags.DurationVar(&b.time, "time", time.Minute, "of each attack; half of it is measured before")
	flags.StringVar(&b.memoryLimit, "memory-limit", "256MB", "of the attacked relay, or none")
	flags.Uint64Var(&b.seed, "seed", 1, "of what is random")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *quick {
		b.time = 5 * time.Second
	}
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("unknown argument %q; see --help", flags.Arg(0))
	case b.time < time.Second || b.time > time.Hour:
		return fmt.Errorf("--time %v is out of range; use 1s to 1h", b.time)
	}
	chosen, err := flagvalue.Choose("attack", scenarios(), flagvalue.Names(*only), func(s scenario) string { return s.name })
	if err != nil {
		return err
	}
	if *list {
		for _, s := range chosen {
			fmt.Fprintf(stdout, "%-15s %-8s %s\n", s.name, s.attack.Role, s.attack.Does)
		}
		return nil
	}
	if !sandbox.Inside() {
		if b.binary == "" {
			if err := peers.Fetch(ctx); err != nil {
				return err
			}
		}
		return kit.InSandbox(args, stdout, stderr)
	}
	if err := prepareHost(); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp("", "hostile-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	if err := b.prepare(ctx); err != nil {
		return err
	}
	var all []*outcome
	failed := false
	for _, s := range chosen {
		o, err := b.run(ctx, s)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Fprint(stderr, "\r\x1b[K")
		all = append(all, o)
		failed = failed || !o.ok()
		if !*asJSON {
			o.writeText(stdout)
		}
	}
	if *asJSON {
		encoder := json.NewEncoder(stdout)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(all)
	} else {
		writeTable(stdout, all)
	}
	if err == nil && failed {
		err = errors.New("an attack got past a bound")
	}
	return err
}

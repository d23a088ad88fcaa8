// Command endings runs the same six ways for a connection to end against
// longhaul and other relays over loopback, and prints which of them reach the
// other side as what they were.
//
//	go run ./bench/endings --markdown
//
// What is not installed is skipped with a line that says so.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"longhaul/bench/peers"
	"longhaul/internal/words/flagvalue"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "endings:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 3 && args[0] == peers.CopyLoopCommand {
		return peers.CopyLoop(ctx, args[1], args[2])
	}
	flags := flag.NewFlagSet("endings", flag.ContinueOnError)
	flags.SetOutput(stderr)
	asJSON := flags.Bool("json", false, "print JSON")
	asMarkdown := flags.Bool("markdown", false, "print a Markdown table")
	repeat := flags.Int("repeat", 20, "runs of each sequence")
	only := flags.String("relays", "", "comma-separated names of the relays to run (default all)")
	endings := flags.String("endings", "", "comma-separated names of the sequences to run (default all)")
	binary := flags.String("longhaul", "", "longhaul binary to run (default: built from this tree)")
	within := flags.Duration("within", 3*time.Second, "how long a step waits for what it expects")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *repeat < 1 {
		return fmt.Errorf("--repeat %d: use 1 or more", *repeat)
	}
	if *within <= 0 {
		return fmt.Errorf("--within %v: use more than 0", *within)
	}

	dir, err := os.MkdirTemp("", "longhaul-endings-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // nginx's worker is another user
		return err
	}
	relays, err := flagvalue.Choose("relay", allRelays(*binary), flagvalue.Names(*only), func(r peers.Relay) string { return r.Name })
	if err != nil {
		return err
	}
	all, err := sequences()
	if err != nil {
		return err
	}
	picked, err := flagvalue.Choose("ending", all, flagvalue.Names(*endings), func(s sequence) string { return s.name })
	if err != nil {
		return err
	}
	result, err := measure(ctx, relays, picked, *repeat, *within, dir, stderr)
	if err != nil {
		return err
	}
	switch {
	case *asJSON:
		return result.writeJSON(stdout)
	case *asMarkdown:
		return result.writeMarkdown(stdout)
	}
	return result.writeText(stdout)
}

// allRelays are the relays compared.
func allRelays(longhaul string) []peers.Relay {
	return []peers.Relay{
		peers.Longhaul(longhaul),
		peers.HAProxy, peers.HAProxyNolinger,
		peers.Nginx, peers.NginxHalfClose,
		peers.Socat, peers.SocatT,
		peers.GoCopyLoop,
	}
}

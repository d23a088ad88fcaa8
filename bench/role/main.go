// Command role measures how long the Ansible role takes to pair and configure many sites: each has a
// key, and a tunnel to each other site.
//
//	go run ./bench/role
//	go run ./bench/role --sites 100 --most 2m
//
// It fails if a run takes longer than --most, if a site is not as declared, or if the second run
// changes anything.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"longhaul/bench/kit"
	"longhaul/bench/peers"
	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/words/remedy"
	"longhaul/test/playbook"
)

func main() { kit.Command("role", run) }

// bench is what to measure.
type bench struct {
	kit.Longhaul
	sites int
	most  time.Duration
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("role", flag.ContinueOnError)
	b := bench{Longhaul: kit.Longhaul{Flags: flags}}
	flags.IntVar(&b.sites, "sites", 50, "how many")
	flags.DurationVar(&b.most, "most", time.Minute, "longest time of a run")
	b.Check = func() error {
		if b.sites < 2 || b.sites > 500 {
			return errors.New("--sites takes 2 to 500")
		}
		if _, err := exec.LookPath("ansible-playbook"); err != nil {
			return remedy.New(errors.New("ansible-playbook is missing"), "apt install ansible-core")
		}
		return nil
	}
	return b.Run(ctx, args, stdout, stderr, func() error { return b.run(ctx, stdout) })
}

func (b *bench) run(ctx context.Context, stdout io.Writer) error {
	sites, err := playbook.New(filepath.Join(b.Dir, "ansible"), b.Binary)
	if err != nil {
		return err
	}
	sites.All["longhaul_prove"] = false // no relay runs
	for i := range b.sites {
		sites.Hosts[fmt.Sprintf("site-%d", i)] = playbook.Vars{
			"longhaul_address": "127.0.0.1",
			"longhaul_services": []playbook.Vars{{
				"name": fmt.Sprintf("db-%d", i),
				"far":  playbook.Vars{"listen": fmt.Sprintf("127.0.0.1:%d", 6000+i), "forward": "127.0.0.1:5432"},
				"near": playbook.Vars{"listen": fmt.Sprintf("127.0.0.1:%d", 7000+i)},
			}},
		}
	}
	for _, name := range []string{"first run", "second run"} {
		begun := time.Now()
		o, err := sites.Run(ctx, "-i", "inventory.yaml", "--forks", strconv.Itoa(2*runtime.NumCPU()), "site.yaml")
		if err != nil {
			return err
		}
		took := time.Since(begun)
		fmt.Fprintf(stdout, "%s, %d sites: %.1f s, %.1f s of CPU, %d changes\n", name, len(o.Hosts), took.Seconds(), o.CPU.Seconds(), o.Changed())
		switch {
		case o.Status != 0 || len(o.Hosts) != b.sites:
			return fmt.Errorf("the %s ended with %d:\n%s", name, o.Status, o.Output)
		case name == "second run" && o.Changed() > 0:
			return fmt.Errorf("the second run changed something:\n%s", o.Output)
		case took > b.most:
			return fmt.Errorf("the %s took %v, more than %v", name, took.Round(time.Second/10), b.most)
		}
	}
	for host := range sites.Hosts {
		list, err := identity.New(sites.Path(host, "keys")).List()
		if err != nil {
			return err
		}
		if len(list.Peers) != b.sites-1 {
			return fmt.Errorf("%s has %d peers, not %d", host, len(list.Peers), b.sites-1)
		}
		if out, err := exec.CommandContext(ctx, b.Binary, "config", "check", sites.Path(host, "etc/longhaul.yaml")).CombinedOutput(); err != nil {
			return fmt.Errorf("the configuration of %s: %w\n%s", host, err, out)
		}
	}
	_, err = fmt.Fprintf(stdout, "each site has %d peers and %d tunnels; Linux %s\n", b.sites-1, b.sites, peers.KernelVersion())
	return err
}

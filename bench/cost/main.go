// Command cost measures what a relay costs, longhaul's and others', side by
// side over loopback: throughput, processor time for a gigabyte, new
// connections in a second, round trips, memory of idle flows, and the start.
//
//	go run ./bench/cost --markdown
//
// What is not installed is skipped with a line that says so.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"longhaul/bench/kit"
	"longhaul/bench/peers"
	"longhaul/internal/words/flagvalue"
	"longhaul/lab/sandbox"
)

func main() { kit.Command("cost", run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	switch {
	case len(args) == 3 && args[0] == peers.CopyLoopCommand:
		return peers.CopyLoop(ctx, args[1], args[2])
	case len(args) == 2 && args[0] == serveCommand:
		addr, err := parseAddress(args[1])
		if err != nil {
			return err
		}
		return serve(ctx, addr)
	}
	var b bench
	flags := flag.NewFlagSet("cost", flag.ContinueOnError)
	flags.SetOutput(stderr)
	asJSON := flags.Bool("json", false, "print JSON")
	asMarkdown := flags.Bool("markdown", false, "print Markdown tables")
	growth := flags.Bool("growth", false, "measure with 100, 1000 and 10 000 busy flows and 1 and 2 threads instead")
	monitoring := flags.Bool("monitoring", false, "measure what metrics, history and dashboard cost instead")
	flags.IntVar(&b.tunnels, "tunnels", 0, "measure reloads and scrapes of a relay with so many tunnels instead, such as 500")
	base := flags.String("base", "", "longhaul binary to run in turn with --tunnels")
	onlyRelays := flags.String("relays", "", "comma-separated names of the relays to run (default all)")
	onlyMeasures := flags.String("measures", "", "comma-separated names of what to measure (default all)")
	binary := flags.String("longhaul", "", "longhaul binary to run (default: built from this tree)")
	flags.IntVar(&b.repeat, "repeat", 5, "runs of everything; the tables show the median, the least and the most")
	flags.DurationVar(&b.time, "time", 2*time.Second, "of one measurement")
	flags.IntVar(&b.threads, "threads", 1, "of each relay that move bytes")
	flags.IntVar(&b.idleFlows, "idle-flows", 10_000, "connections held for the memory of idle flows")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("unknown argument %q; see --help", flags.Arg(0))
	case b.repeat < 1 || b.threads < 1 || b.idleFlows < 1:
		return errors.New("--repeat, --threads and --idle-flows take 1 or more")
	case b.time < 100*time.Millisecond:
		return fmt.Errorf("--time %v is too short; use 100ms or more", b.time)
	case b.tunnels < 0 || b.tunnels > 5000 || *base != "" && b.tunnels == 0:
		return errors.New("--tunnels takes 1 to 5000, and --base goes with it")
	case b.tunnels > 0 && (*monitoring || *growth):
		return errors.New("--tunnels goes with neither --growth nor --monitoring")
	case *monitoring && (*growth || *binary != ""):
		return errors.New("--monitoring goes with neither --growth nor --longhaul: it builds the program with and without")
	}

	kinds := measures
	candidates := []contender{
		{Relay: direct},
		{Relay: peers.Longhaul(*binary), descriptors: 2},
		{Relay: peers.NewestHAProxy, descriptors: 2},
		{Relay: peers.HAProxy, descriptors: 2},
		{Relay: peers.NewestNginx, descriptors: 2},
		{Relay: peers.NewestSocat, processes: true},
		{Relay: peers.GoCopyLoop, descriptors: 6},
	}
	if *growth {
		kinds = growthMeasures
		candidates = candidates[1:5]
	}
	if *monitoring {
		kinds = monitoringMeasures
		candidates = monitoringContenders
	}
	if b.tunnels > 0 {
		kinds = manyMeasures
		candidates = []contender{{Relay: peers.Longhaul(*binary), descriptors: 2}}
		if *base != "" {
			other := peers.Longhaul(*base)
			other.Name = "base"
			candidates = append([]contender{{Relay: other, descriptors: 2}}, candidates...)
		}
	}
	nameOf := func(c contender) string { return c.Name }
	contenders, err := flagvalue.Choose("relay", candidates, flagvalue.Names(*onlyRelays), nameOf)
	if err != nil {
		return err
	}
	if b.measures, err = flagvalue.Choose("measure", kinds, flagvalue.Names(*onlyMeasures), func(m measure) string { return m.name }); err != nil {
		return err
	}
	if !sandbox.Inside() {
		if *binary == "" {
			if err := peers.Fetch(ctx); err != nil {
				return err
			}
		}
		if slices.ContainsFunc(contenders, func(c contender) bool { return c.Newest }) {
			peers.FetchNewest(ctx, stderr)
		}
		return kit.InSandbox(args, stdout, stderr)
	}
	if err := prepareHost(); err != nil {
		return err
	}
	if b.tunnels > 0 {
		if err := prepareInterception(); err != nil {
			return err
		}
	}
	b.dir, err = os.MkdirTemp("", "longhaul-cost-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	if err := os.Chmod(b.dir, 0o755); err != nil { // nginx's worker is another user
		return err
	}
	b.progress = stderr
	result, err := b.run(ctx, contenders)
	if err != nil {
		return err
	}
	switch {
	case *monitoring:
		result.Changes = result.changes(monitoringPairs)
	case *base != "":
		result.Changes = result.changes([]pair{{"base", "longhaul"}})
	}
	switch {
	case *asJSON:
		return result.writeJSON(stdout)
	case *asMarkdown:
		return result.writeMarkdown(stdout)
	}
	return result.writeText(stdout)
}

func parseAddress(s string) (peers.Address, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return peers.Address{}, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return peers.Address{}, fmt.Errorf("%s: %w", s, err)
	}
	return peers.Address{Host: strings.TrimSpace(host), Port: int(n)}, nil
}

// Command discovery changes the SRV records from which a relay takes its hops, a thousand times, while
// flows stand and others begin.
package main

import (
	"context"
	"time"

	"longhaul/bench/kit"
	"longhaul/lab"
	"longhaul/lab/experiment"
)

func main() { kit.Main(suite().Entry()) }

// The ways: a name server, and what the targets are.
const (
	wayKnot        = "knot"
	wayKnotPair    = "knot-pair"
	wayCoreDNS     = "coredns"
	wayCoreDNSPair = "coredns-pair"
)

// Figures of the experiment.
const (
	services = 20               // each of a tunnel of its own
	ttl      = time.Second      // of all records
	late     = time.Second      // after the TTL, within which a change must be seen
	patience = 30 * time.Second // for what must happen at once, on a busy machine
)

func suite() kit.Suite {
	return kit.Suite{Usual: kit.Options{Repeat: 1, Seed: 1}, Crowds: "changes: their number", Missing: missing, Trials: []kit.Trial{
		{Name: "changes", About: "records that change, vanish and return, and a name server that dies",
			Ways: []string{wayKnot, wayKnotPair, wayCoreDNS, wayCoreDNSPair}, Run: changes},
	}, Experiment: experiment.Experiment{
		Name:    "discovery",
		Summary: "hops from SRV records that change a thousand times",
		Source:  "RFC 2782",
		Short:   "Change the SRV records of a relay's hops under its flows",
		Long: `discovery has a relay with 20 tunnels, each with the hops of a service. The SRV
records of all of them change at the same time, 1000 times altogether: a target
comes or goes, a weight, a priority or a port changes, or the answer is none (no
such name, no SRV record, the target "."). After each change the relay must have
the new hops, or after a bad answer the last ones and its reason, within 1 s
after the TTL of 1 s. At the end the name server dies and comes back.
Meanwhile a flow stands in each tunnel, and others begin and end: none may be
lost.

  knot     Knot DNS, whose zone knotc changes
  coredns  CoreDNS, which reads its zone again
  *-pair   the targets are three far relays of a site, each with a key of its own

CoreDNS is found in PATH, or by COREDNS=FILE:
go install github.com/coredns/coredns@v1.11.3 builds it.

Exit codes: 0 all bounds hold, 1 one does not.`,
		Example: `  go run ./bench/discovery --quick
  go run ./bench/discovery --through knot,knot-pair --json > discovery.json`,
	}}
}

// missing says why a way cannot run on this machine; empty if it can.
func missing(way string) string {
	if isKnot(way) {
		return lab.MissingProgram("knotd", "knot")
	}
	if coredns() == "" {
		return "no coredns: go install github.com/coredns/coredns@v1.11.3, and name it with COREDNS=FILE"
	}
	return ""
}

func isKnot(way string) bool { return way == wayKnot || way == wayKnotPair }

func isPaired(way string) bool { return way == wayKnotPair || way == wayCoreDNSPair }

// changes runs the changes of a way.
func changes(ctx context.Context, o kit.Options, way string, run int, note func(kit.Measured)) error {
	n := o.Flows
	if n == 0 {
		n = kit.Pick(o, 1000, 100)
	}
	w, err := newWorld(ctx, o, way, o.SeedOf(run))
	if err != nil {
		return err
	}
	defer w.Close()
	if err := w.run(ctx, n, note); err != nil {
		return w.Explain(err)
	}
	return nil
}

// Command names sends thousands of short flows through relays, and joins the histories of all relays by
// the flows' names.
package main

import (
	"context"
	"time"

	"longhaul/bench/kit"
	"longhaul/lab"
	"longhaul/lab/experiment"
)

func main() { kit.Main(suite().Entry()) }

// The ways from a client to its target.
const (
	wayPair     = "pair"     // paired relays
	wayChain    = "chain"    // two pairs behind one another
	wayUnpaired = "unpaired" // unpaired relays with PROXY v2 between them
	wayHAProxy  = "haproxy"  // HAProxy with unique-id before the near relay of a pair
)

// patience bounds each step that nothing delays on purpose, on a busy machine.
const patience = time.Minute

func suite() kit.Suite {
	return kit.Suite{Usual: kit.Options{Repeat: 1, Seed: 1}, Crowds: "both cases", Missing: missing, Trials: []kit.Trial{
		{Name: "join", About: "flows that end, are refused, reset or cut, or run through upgrades; histories joined by name",
			Ways: []string{wayPair, wayChain, wayUnpaired, wayHAProxy}, Run: join},
		{Name: "forged", About: "two clients of a trusted proxy at the same time have one identifier",
			Ways: []string{wayPair, wayChain, wayUnpaired}, Run: forged},
	}, Experiment: experiment.Experiment{
		Name:    "names",
		Summary: "histories of several relays joined by the names of flows",
		Source:  "no report: the ends know which flow is which",
		Short:   "Join the histories of several relays by the names of flows",
		Long: `names sends 10000 short flows from site A to site B. Each client has a port of its
own and sends a token, and the last relay gives the target a PROXY header with
the flow's name: so both ends know the truth. Some targets refuse or reset, some
clients reset, some flows stand while every relay is upgraded, and some while
each WAN is away for longer than resume (unpaired: its connections are reset).
Then the histories of all relays are joined by name:

  pair      a near and a far relay
  chain     two pairs that share the relay of a hub
  unpaired  two relays with PROXY v2 between them
  haproxy   HAProxy with unique-id before the near relay of a pair: its log has
            the same names

In forged the client is a proxy that the near relay trusts, and gives two
connections at the same time the same identifier.

Exit codes: 0 all bounds hold, 1 one does not.`,
		Example: `  go run ./bench/names --quick
  go run ./bench/names --case join --through chain --json > chain.json`,
	}}
}

// missing says why a way cannot run on this machine; empty if it can.
func missing(way string) string {
	if way == wayHAProxy {
		return lab.MissingProgram("haproxy", "haproxy")
	}
	return ""
}

// flowsOf is how many flows a run has.
func flowsOf(o kit.Options) int {
	if o.Flows > 0 {
		return o.Flows
	}
	return kit.Pick(o, 10_000, 600)
}

// join runs the flows of a way and joins the histories.
func join(ctx context.Context, o kit.Options, way string, run int, note func(kit.Measured)) error {
	w, err := newWorld(ctx, o, way, "", o.SeedOf(run))
	if err != nil {
		return err
	}
	defer w.Close()
	n := flowsOf(o)
	standing := max(n/20, 4)
	steps := []func() error{
		func() error { return w.crowd(ctx, n/3, false) },
		func() error { return w.throughUpgrades(ctx, n/3, standing) },
		func() error { return w.throughOutages(ctx, standing) },
		func() error { return w.crowd(ctx, max(n-2*(n/3)-(1+2*len(w.paths))*standing, 1), false) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return w.errorf("%w", err)
		}
	}
	return w.note(ctx, nil, note)
}

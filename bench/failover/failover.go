// Command failover has relays die, hang and go in every way under a stream of new connections and
// hundreds of standing ones, and counts what their clients and targets notice.
package main

import (
	"context"
	"time"

	"longhaul/bench/kit"
	"longhaul/lab/experiment"
)

func main() { kit.Main(suite().Entry()) }

func suite() kit.Suite {
	far := func(p path) func(context.Context, kit.Options, string, int, func(kit.Measured)) error {
		return func(ctx context.Context, o kit.Options, way string, run int, note func(kit.Measured)) error {
			return farTrouble(ctx, o, way, p, note)
		}
	}
	return kit.Suite{Usual: kit.Options{Repeat: 1}, Crowds: "paired, near-site and one-address", Missing: missing, Trials: []kit.Trial{
		{Name: "plain", About: "one of two far relays fails", Ways: events, Run: far(path{rtt: 20 * time.Millisecond})},
		{Name: "paired", About: "one of two far relays of a pair fails", Ways: events, Run: far(path{paired: true, rtt: 20 * time.Millisecond})},
		{Name: "paired-0ms", About: "the same without a delay", Ways: events, Run: far(path{paired: true})},
		{Name: "paired-200ms", About: "the same over 200 ms", Ways: events, Run: far(path{paired: true, rtt: 200 * time.Millisecond})},
		{Name: "near-site", About: "the near relay that has the address dies; keepalived moves the address", Ways: []string{nearRelay, nearHost}, Run: nearSite},
		{Name: "one-address", About: "two far relays of a pair behind one address", Ways: []string{byECMP, byNFT, byMH, bySH}, Run: oneAddress},
	}, Experiment: experiment.Experiment{
		Name:    "failover",
		Summary: "one of two relays fails under a stream of new connections",
		Source:  "no report: every connection is counted",
		Short:   "One of two relays fails under a stream of new connections",
		Long: `failover sends new connections at a steady rate, and hundreds of standing ones,
through a relay at site A and two at site B. Half of the new clients speak first,
half wait for the target. Then one of the far relays fails, and comes back:

  killed    SIGKILL; its next process runs 3 s later
  gone      the same, 9 s later
  cut       its WAN drops all packets for 3 s
  frozen    SIGSTOP, and SIGCONT 3 s later
  drained   longhaul drain of its tunnels, and resume 3 s later
  upgraded  longhaul upgrade

The tables show how many new connections got their answer, how long the slowest
took, what became of the standing ones, and how many requests reached two
targets. In paired the relays are pairs; in plain they are not.

In near-site two near relays share an address by keepalived, and the one that
has it dies (relay), or its host (host). In one-address two far relays have one
address, behind a router that hashes (ecmp), a balancer that translates (nft) or
IPVS, which forwards (ipvs-mh and ipvs-sh).

Exit codes: 0 all bounds hold, 1 one does not.`,
		Example: `  go run ./bench/failover --case plain
  go run ./bench/failover --case paired --repeat 20
  go run ./bench/failover --case paired-200ms --through cut,frozen --json`,
	}}
}

// path is what is between the near relay and the far ones.
type path struct {
	paired bool
	rtt    time.Duration
}

// load is what goes through the relays.
type load struct {
	perSecond int // new connections
	standing  int // standing connections, on both far relays in total
	before    time.Duration
	away      time.Duration // the time without the relay
	after     time.Duration
}

// loadOf is that of a way.
func loadOf(o kit.Options, way string) load {
	l := kit.Pick(o,
		load{perSecond: 100, standing: 500, before: 2 * time.Second, away: 3 * time.Second, after: 4 * time.Second},
		load{perSecond: 40, standing: 40, before: time.Second, away: 2 * time.Second, after: 2 * time.Second})
	if o.Flows > 0 {
		l.standing = o.Flows
	}
	if way == gone {
		l.away = goneFor
	}
	return l
}

const (
	// goneFor is longer than the host of a dead relay must refuse for the end of its flows.
	goneFor = 9 * time.Second
	// patience bounds each step that nothing delays on purpose, on a busy machine.
	patience = time.Minute
)

// Bounds of pairs.
const (
	servedLeast  = 99.9 // percent of the new connections
	slowestMost  = 1.3  // seconds from connect to answer
	siteBackMost = 1.5  // seconds until new connections are served by the other near relay
)

// farTrouble has a far relay fail in one way.
func farTrouble(ctx context.Context, o kit.Options, way string, p path, note func(kit.Measured)) (err error) {
	w, err := newFarWorld(ctx, o, p)
	if err != nil {
		return err
	}
	defer w.Close()
	defer func() {
		if err != nil {
			err = w.Explain(err)
		}
	}()
	l := loadOf(o, way)
	standing, err := w.stand(ctx, l.standing)
	if err != nil {
		return err
	}
	if err := standing.onBoth(); err != nil {
		return err
	}
	var at, back time.Time
	all, err := w.under(ctx, l, standing, func() error {
		if err := w.fail(ctx, way); err != nil {
			return err
		}
		at = time.Now()
		if err := kit.Pause(ctx, l.away); err != nil {
			return err
		}
		if err := w.mend(ctx, way); err != nil {
			return err
		}
		back = time.Now()
		return kit.Pause(ctx, l.after)
	})
	if err != nil {
		return err
	}
	countNew(all, way, p.paired, at, back, w.reason, note)
	noteTwice(w.target, note)
	w.countStanding(standing, way, p.paired, at, note)
	return nil
}

// under runs what while standing connections talk and new ones begin, which it returns. They have done so
// for a while before.
func (w *world) under(ctx context.Context, l load, standing *standing, what func() error) ([]attempt, error) {
	defer standing.begin(ctx)()
	news := w.stream(ctx, l.perSecond)
	defer news.end()
	if err := kit.Pause(ctx, l.before); err != nil {
		return nil, err
	}
	if err := what(); err != nil {
		return nil, err
	}
	all := news.end()
	standing.end()
	return all, ctx.Err()
}

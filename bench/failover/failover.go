// Command failover ends one of two far relays under a stream of new connections, and
// counts the failures.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"longhaul/bench/kit"
	"longhaul/lab"
	"longhaul/lab/experiment"
	"longhaul/lab/link"
)

// The ways in which a relay dies.
const (
	byProcess = "process" // killed by SIGKILL: its host answers with resets
	byHost    = "host"    // its WAN is cut: nothing answers
)

func main() { kit.Main(suite().Entry()) }

func suite() kit.Suite {
	usual := load{perSecond: 200, standing: 40, before: 3 * time.Second, after: 10 * time.Second, patience: 15 * time.Second}
	quick := load{perSecond: 50, standing: 10, before: time.Second, after: 2 * time.Second, patience: 3 * time.Second}
	run := func(ctx context.Context, o kit.Options, way string, _ int, note func(kit.Measured)) error {
		return die(ctx, o, way, kit.Pick(o, usual, quick), note)
	}
	return kit.Suite{Usual: kit.Options{Repeat: 1}, Trials: []kit.Trial{
		{Name: "death", About: "one of two far relays dies under 200 new connections a second", Ways: []string{byProcess, byHost}, Run: run},
	}, Experiment: experiment.Experiment{
		Name:    "failover",
		Summary: "one of two far relays dies under a stream of new connections",
		Source:  "no report: every connection is counted",
		Short:   "One of two far relays dies under a stream of new connections",
		Long: `failover sends a stream of short connections, and some standing ones, through a
relay at site A and two at site B. Then one of these dies: its process is
killed, or (through host) its WAN is cut and nothing answers. The table shows
the failed connections and the slowest one, before the death, in the second
after it, and later.

Exit codes: 0 no later connection failed, 1 one did.`,
		Example: `  go run ./bench/failover
  go run ./bench/failover --through host --json`,
	}}
}

// load is what goes through the relays.
type load struct {
	perSecond     int // new connections
	standing      int // standing connections, on both relays in total
	before, after time.Duration

	// patience is the timeout of connections that the death may have cut off
	// silently: those of the dead relay, and those begun until halfASecond after it.
	patience time.Duration
}

// The ports, and the path.
const (
	port       = 6000
	targetPort = 5000
	rtt        = 20 * time.Millisecond
	rateBps    = 300e6
)

// patience bounds each connection that the death does not affect, on a busy machine.
const patience = time.Minute

// die ends a relay in one way.
func die(ctx context.Context, o kit.Options, way string, l load, note func(kit.Measured)) error {
	w, err := newWorld(ctx, o)
	if err != nil {
		return err
	}
	defer w.Close()
	standing, err := w.stand(ctx, l.standing)
	if err != nil {
		return err
	}
	stopStanding := standing.begin(ctx, l.patience)
	defer stopStanding()

	var death time.Time
	died := make(chan error, 1)
	timer := time.AfterFunc(l.before, func() {
		death = time.Now()
		died <- w.die(way)
	})
	defer timer.Stop()
	flows := w.stream(ctx, l)
	if err := errors.Join(<-died, ctx.Err()); err != nil {
		return err
	}
	stopStanding()
	count(flows, death, note)
	standing.count(note)
	return nil
}

// count notes the new connections by their start: before the death, in the second after
// it, and later.
func count(flows []attempt, death time.Time, note func(kit.Measured)) {
	times := []string{"before", "in the 1st second", "later"}
	failed, slowest := make([]int, len(times)), make([]time.Duration, len(times))
	other, example := 0, ""
	for _, f := range flows {
		at := 0
		if since := f.began.Sub(death); since >= 0 {
			at = 1 + min(int(since/time.Second), 1)
		}
		if f.err != nil {
			failed[at]++
			example = fmt.Sprintf("%+.3f s: %v", f.began.Sub(death).Seconds(), f.err)
			continue
		}
		if f.relay == 2 {
			other++
		}
		slowest[at] = max(slowest[at], f.took)
	}
	note(kit.Measured{Name: "new connections", Value: float64(len(flows))})
	note(kit.Measured{Name: "by the other relay", Value: float64(other)})
	for i, name := range times {
		m := kit.Measured{Name: "failed " + name, Value: float64(failed[i])}
		if i != 1 {
			m.Bound, m.Exact = kit.AtMost(0), true
		}
		if failed[i] > 0 {
			m.Example = example
		}
		note(m)
		note(kit.Measured{Name: "slowest " + name, Unit: "ms", Value: 1e3 * slowest[i].Seconds()})
	}
}

// count notes the standing connections of the other relay, and those of the dead one that
// got a reset.
func (s *standing) count(note func(kit.Measured)) {
	all, lost, longest := 0, 0, time.Duration(0)
	disturbed := kit.Measured{Name: "of them disturbed", Bound: kit.AtMost(0), Exact: true}
	for _, f := range s.flows {
		switch {
		case f.relay == 1 && f.err != nil:
			lost++
		case f.relay == 2:
			all++
			if f.err != nil {
				disturbed.Value++
				disturbed.Example = f.err.Error()
			}
			longest = max(longest, f.longest)
		}
	}
	note(kit.Measured{Name: "standing on the other", Value: float64(all)})
	note(disturbed)
	note(kit.Measured{Name: "their longest gap between replies", Unit: "s", Value: longest.Seconds()})
	note(kit.Measured{Name: "reset on the dead one", Value: float64(lost)})
}

// world is the lab with its relays: relay-b, relay-b2, relay-a.
type world struct{ *kit.World }

func newWorld(ctx context.Context, o kit.Options) (w world, err error) {
	c := lab.MitreConditions()
	c.RTT, c.RateBps = rtt, rateBps
	if w.World, err = kit.NewWorld(lab.TwoFarRelays(c), o.Program, o.Report); err != nil {
		return w, err
	}
	if err = w.start(ctx); err != nil {
		w.Close()
	}
	return w, err
}

func (w world) start(ctx context.Context) error {
	if err := w.Serve(ctx, "host-b", targetPort, answer); err != nil {
		return err
	}
	to := netip.AddrPortFrom
	for _, one := range []struct{ name, tunnel string }{
		{"relay-b", fmt.Sprintf("listen: %v, forward: %v", to(lab.WANB, port), to(lab.HostB, targetPort))},
		{"relay-b2", fmt.Sprintf("listen: %v, forward: %v", to(lab.WANB2, port), to(lab.HostBOnB2, targetPort))},
		{"relay-a", fmt.Sprintf("listen: %v, forward: [%v, %v], balance: least-flows, health: {check: connect, interval: 500ms, timeout: 500ms}",
			to(lab.RelayA, port), to(lab.WANB, port), to(lab.WANB2, port))},
	} {
		r := w.Relay(one.name, one.name)
		text := fmt.Sprintf("control_socket: %s\nlog: {level: info}\ntunnels:\n  - {name: main, %s}\n", r.Socket(), one.tunnel)
		if err := r.Start(ctx, text); err != nil {
			return err
		}
	}
	return nil
}

// die kills relay-b or cuts its WAN.
func (w world) die(name string) error {
	if name == byProcess {
		return w.Relays[0].Kill()
	}
	return w.Link(lab.WAN).Change(func(s *link.Settings) { s.Down = true })
}

package main

import (
	"context"
	"time"

	"longhaul/bench/kit"
	"longhaul/lab"
	"longhaul/lab/relays"
	"longhaul/lab/tcpserver"
)

// A relay that is as quiet as parked flows leave it.
const (
	parkedBytes       = 1500
	parkedDescriptors = 1
	quietFor          = 10 * time.Second // the runtime returns memory in that time
	parkedWithin      = 90 * time.Second
)

// littleGarbage has the garbage collector run all the time: what is left of the
// handshakes is no memory of parked flows.
var littleGarbage = []string{"GOGC=10", "GOMEMLIMIT=8MiB"}

// spare are descriptors that come and go with timers, warm connections and pipes.
const spare = 16

// parked measures what flows cost that are silent. The first half of the flows has the
// processes grow to their usual size; the figures are those of the second half.
func parked(ctx context.Context, o kit.Options, way string, _ int, note func(kit.Measured)) error {
	n := kit.Pick(o, 2000, 1000)
	if o.Flows > 0 {
		n = o.Flows
	}
	w, err := buildWorld(ctx, o, lab.TwoSites(conditions(outageRTT, outageRateBps)), way, tcpserver.Echo, settings{env: littleGarbage})
	if err != nil {
		return err
	}
	defer w.close()
	before, err := w.park(ctx, n)
	if err != nil {
		return err
	}
	defer before.flows.close()
	after, err := w.park(ctx, n)
	if err != nil {
		return err
	}
	defer after.flows.close()
	note(kit.Measured{Name: "flows", Value: float64(n)})
	for i, site := range []string{"far", "near"} {
		b, a := before.of[i], after.of[i]
		note(kit.Measured{Name: site + ": descriptors each", Value: float64(a.descriptors-b.descriptors) / float64(n),
			Bound: kit.AtMost(parkedDescriptors + float64(spare)/float64(n))})
		note(kit.Measured{Name: site + ": memory each", Unit: "bytes", Value: float64(a.memoryBytes-b.memoryBytes) / float64(n), Bound: kit.AtMost(parkedBytes)})
	}
	return nil
}

// parking is flows that have been silent for long, and what the relays hold then.
type parking struct {
	flows standing
	of    [2]usage // of the far relay, of the near one
}

// park opens flows, and returns when the relays have become quiet.
func (w *world) park(ctx context.Context, n int) (p parking, err error) {
	if p.flows, err = w.open(ctx, n); err != nil {
		return p, err
	}
	begun, since := time.Now(), time.Now()
	for time.Since(since) < quietFor || time.Since(begun) < parkedAfter+quietFor {
		if time.Since(begun) > parkedWithin {
			break // the figures show it
		}
		last := p.of
		for i, r := range []*relays.Process{w.far(), w.near()} {
			if p.of[i], err = usageOf(r.PID()); err != nil {
				p.flows.close()
				return p, err
			}
		}
		if p.of[0].descriptors != last[0].descriptors || p.of[1].descriptors != last[1].descriptors {
			since = time.Now()
		}
		if err := kit.Pause(ctx, time.Second); err != nil {
			p.flows.close()
			return p, err
		}
	}
	return p, nil
}

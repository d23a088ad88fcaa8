package main

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"longhaul/bench/kit"
	"longhaul/internal/words/stats"
	"longhaul/lab"
)

// conditions are those of a WAN without loss.
func conditions(rtt time.Duration, rateBps int64) lab.Conditions {
	c := lab.MitreConditions()
	c.RTT, c.RateBps = rtt, rateBps
	return c
}

// The path of the outages.
const (
	outageRTT     = 100 * time.Millisecond
	outageRateBps = 1e9
)

const outageLasts = 20 * time.Second

// goOnWithin is how long after the end of an outage each flow has to go on.
func goOnWithin(rtt time.Duration) time.Duration { return 3*rtt + time.Second/2 }

// steady is the pace of flows that always have something to say.
var steady = pace{every: 500 * time.Millisecond, bytes: 1000}

// outage cuts the WAN under many flows.
func outage(ctx context.Context, o kit.Options, way string, run int, note func(kit.Measured)) error {
	flows := kit.Pick(o, 1000, 100)
	if o.Flows > 0 {
		flows = o.Flows
	}
	times := kit.Pick(o, 3, 1)
	w, c, err := crowded(ctx, o, way, crowdOptions{flows: flows, opening: 5 * time.Second, minLife: 5 * time.Second, maxLife: 2 * time.Minute,
		pace: steady, seed: o.SeedOf(run)})
	if err != nil {
		return err
	}
	defer w.close()
	dice := rand.New(rand.NewPCG(o.SeedOf(run), 0))
	var late []time.Duration
	for range times {
		if err := kit.Pause(ctx, time.Second+time.Duration(dice.Int64N(int64(5*time.Second)))); err != nil {
			return err
		}
		over, err := w.outage(ctx, outageLasts)
		if err != nil {
			return err
		}
		// Until the last retransmission timer of a plain TCP has run down.
		if err := w.settle(ctx, c, over); err != nil {
			return err
		}
		late = append(late, c.laterBy(over)...)
	}
	c.finish()
	c.tally().figures(note)
	if len(late) == 0 {
		return w.errorf("no flow went on")
	}
	slices.Sort(late)
	note(kit.Measured{Name: "goes on after it, median", Unit: "s", Value: stats.At(late, 0.5).Seconds()})
	note(kit.Measured{Name: "goes on after it, slowest", Unit: "s", Value: late[len(late)-1].Seconds(), Bound: kit.AtMost(goOnWithin(outageRTT).Seconds()), Exact: true})
	return nil
}

// outage cuts the WAN for a time, and returns when it came back.
func (w *world) outage(ctx context.Context, lasts time.Duration) (over time.Time, err error) {
	if err := w.cut(true); err != nil {
		return over, err
	}
	interrupted := kit.Pause(ctx, lasts)
	if err := w.cut(false); err != nil {
		return over, err
	}
	return time.Now(), interrupted
}

// slowestTCP is longer than the retransmission timer of a TCP after an outage of 20 s:
// it doubles, from about 0.2 s.
const slowestTCP = 30 * time.Second

// settle waits until every flow that an outage met has gone on, or should have.
func (w *world) settle(ctx context.Context, c *crowd, over time.Time) error {
	for {
		if err := kit.Pause(ctx, time.Second); err != nil {
			return err
		}
		if c.silentSince(over) == 0 || time.Since(over) > slowestTCP {
			return nil
		}
	}
}

// silentSince counts the sides that wait for bytes since a moment.
func (c *crowd) silentSince(moment time.Time) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	silent := 0
	for _, f := range c.flows {
		for _, s := range []*side{&f.client, &f.target} {
			if _, went := s.laterBy(moment); !went && f.began.Before(moment) && s.waits() {
				silent++
			}
		}
	}
	return silent
}

// waits reports whether the side expects bytes.
func (s *side) waits() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn != nil && !s.sawEnd && s.err == nil
}

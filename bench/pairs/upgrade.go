package main

import (
	"context"
	"slices"
	"time"

	"longhaul/bench/kit"
	"longhaul/lab/relays"
)

// Outages of the upgrades.
const (
	upgradeOutage = 5 * time.Second
	betweenSteps  = 3 * time.Second
)

// upgrade replaces both relays by new processes, under load and while the WAN is cut.
func upgrade(ctx context.Context, o kit.Options, way string, run int, note func(kit.Measured)) error {
	w, c, err := crowded(ctx, o, way, crowdOptions{flows: kit.Pick(o, 300, 60), opening: 3 * time.Second, minLife: 3 * time.Second, maxLife: 2 * time.Minute,
		pace: pace{every: 200 * time.Millisecond, bytes: 4000}, seed: o.SeedOf(run)})
	if err != nil {
		return err
	}
	defer w.close()
	var late []time.Duration
	upgrades := 0
	for _, step := range []struct {
		relay  *relays.Process
		outage bool
	}{
		{w.near(), false},
		{w.far(), false},
		{nil, true}, // the flows of the former processes get their lanes back there
		{w.near(), true},
		{w.far(), true},
		{w.near(), false}, // now there are flows in three processes of each
		{nil, true},
	} {
		over, err := w.step(ctx, step.relay, step.outage)
		if err != nil {
			return err
		}
		if step.relay != nil {
			upgrades++
		}
		if err := kit.Pause(ctx, betweenSteps); err != nil {
			return err
		}
		if step.outage {
			if err := w.settle(ctx, c, over); err != nil {
				return err
			}
			late = append(late, c.laterBy(over)...)
		}
	}
	c.finish()
	note(kit.Measured{Name: "upgrades", Value: float64(upgrades)})
	c.tally().figures(note)
	if len(late) == 0 {
		return w.errorf("no flow went on after an outage")
	}
	note(kit.Measured{Name: "goes on after an outage, slowest", Unit: "s", Value: slices.Max(late).Seconds(), Bound: kit.AtMost(goOnWithin(outageRTT).Seconds()), Exact: true})
	return nil
}

// step upgrades a relay, in the middle of an outage or without one. It returns the end
// of the outage.
func (w *world) step(ctx context.Context, relay *relays.Process, outage bool) (over time.Time, err error) {
	upgrade := func() error {
		if relay == nil {
			return nil
		}
		u, err := relay.Upgrade(ctx)
		if err == nil {
			w.Report.Linef("  %s: upgrade of %s, %d flows stay with process %d", time.Now().Format(clock), relay.Name, u.FlowsLeft, u.OldPID)
		}
		return err
	}
	if !outage {
		return over, upgrade()
	}
	if err := w.cut(true); err != nil {
		return over, err
	}
	err = kit.Pause(ctx, upgradeOutage/2)
	if err == nil {
		err = upgrade()
	}
	if err == nil {
		err = kit.Pause(ctx, upgradeOutage/2)
	}
	if mendErr := w.cut(false); mendErr != nil {
		return over, mendErr
	}
	return time.Now(), err
}

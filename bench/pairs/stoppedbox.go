package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"longhaul/lab"
)

// What case stopped-box does.
const (
	boxPort      = 7000
	boxRTT       = 20 * time.Millisecond
	boxRateBps   = 1e9
	boxHang      = 10 * time.Second
	boxFlowEvery = 50 * time.Millisecond
	boxShare     = 0.25 // of the processes that stop each time
)

// stoppedBox has a box between the relays, of whose processes some stop for good again and
// again, while new connections work.
func stoppedBox(ctx context.Context, o Options, way string, run int, note func(measured)) error {
	var all tally
	for _, lanes := range []int{1, 4} {
		t, err := boxTrial{lanes: lanes, stops: pick(o, 10, 2), between: 5 * time.Second, minLife: 3 * time.Second, maxLife: 8 * time.Second, hang: boxHang}.run(ctx, o, way, run, note)
		if err != nil {
			return fmt.Errorf("lanes %d: %w", lanes, err)
		}
		all.add(t)
	}
	all.figures(note)
	return nil
}

// boxTrial is the case with one number of lanes.
type boxTrial struct {
	lanes, stops     int
	between          time.Duration // two stops
	minLife, maxLife time.Duration // of a flow
	hang             time.Duration // a flow that gets nothing for longer hangs
}

func (b boxTrial) run(ctx context.Context, o Options, way string, run int, note func(measured)) (tally, error) {
	c := newCrowd(crowdOptions{every: boxFlowEvery, opening: time.Second, minLife: b.minLife, maxLife: b.maxLife, seed: o.seed(run), plan: boxPlan})
	w, err := buildWorld(ctx, o, lab.TwoSites(conditions(boxRTT, boxRateBps)), way, c.serve, settings{pair: fmt.Sprintf(", lanes: %d", b.lanes), box: boxPort})
	if err != nil {
		return tally{}, err
	}
	if err := c.gather(ctx, w); err != nil {
		return tally{}, err
	}
	defer w.close()
	dice := rand.New(rand.NewPCG(o.seed(run), 0))
	lanes, controls := 0, 0
	for range b.stops {
		n, m := w.boxed.stopSome(dice, boxShare)
		w.Report.Linef("  %s: stopped under %d lanes and %d control connections", time.Now().Format(clock), n, m)
		lanes, controls = lanes+n, controls+m
		if err := pause(ctx, b.between); err != nil {
			return tally{}, err
		}
	}
	c.finishWithin(2 * b.hang)
	if err := ctx.Err(); err != nil {
		return tally{}, err
	}
	prefix := fmt.Sprintf("lanes %d: ", b.lanes)
	note(measured{name: prefix + "lanes stopped", value: float64(lanes)})
	note(measured{name: prefix + "control connections stopped", value: float64(controls)})
	t := c.tally()
	note(measured{name: prefix + "flows", value: float64(t.flows)})
	hanging, longest, example := c.silences(b.hang)
	note(measured{name: fmt.Sprintf("%sflows silent for %v", prefix, b.hang), value: float64(hanging), bound: atMost(0), exact: true, example: example})
	note(measured{name: prefix + "longest silence", unit: "s", value: longest.Seconds()})
	return t, nil
}

// boxPlan has half of the flows ask and answer. The others are bulk, up or down, with a few
// bytes the other way.
func boxPlan(dice *rand.Rand) (m manners) {
	bulk := manner{pace: pace{every: 20 * time.Millisecond, bytes: 8000}}
	few := manner{pace: pace{every: 200 * time.Millisecond, bytes: 200}}
	switch dice.IntN(4) {
	case 0:
		return manners{client: bulk, target: few}
	case 1:
		return manners{client: few, target: bulk}
	}
	request, answer := 1+dice.IntN(2000), 1+dice.IntN(8000)
	return manners{
		client: manner{pace: pace{every: 200 * time.Millisecond, bytes: request}, awaits: answer, asks: true},
		target: manner{pace: pace{every: time.Millisecond, bytes: answer}, awaits: request},
	}
}

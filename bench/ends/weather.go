//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"longhaul/internal/sys/tcpinfo"
	"longhaul/lab/link"
	"longhaul/lab/wan"
)

const (
	calmLeast, calmMost     = 100 * time.Millisecond, 1500 * time.Millisecond // between two faults
	outageLeast, outageMost = 50 * time.Millisecond, 2500 * time.Millisecond

	// aftermath is how much later than the end of a fault a flow may go on: the far
	// relay is dialed every 500 ms, and a dead connection is found after a second.
	aftermath = 4 * time.Second

	// mostForgotten bounds the rules that drop packets, which every packet passes.
	mostForgotten = 60
)

// faultKind is what happens to the WAN of a pair.
type faultKind string

const (
	faultOutage faultKind = "outage"
	faultThere  faultKind = "outage to the far relay"
	faultBack   faultKind = "outage to the near relay"
	faultReset  faultKind = "reset of connections"
	faultForget faultKind = "black hole for connections"
)

var faultKinds = []faultKind{faultOutage, faultThere, faultBack, faultReset, faultForget}

// weather has the WAN of a pair, or one of two or both, fail at random moments.
type weather struct {
	record
	paths []*wan.Path
	dice  *rand.Rand
}

func newWeather(seed uint64, paths ...*wan.Path) *weather {
	return &weather{paths: paths, dice: rand.New(rand.NewPCG(seed, 1<<63))}
}

// run makes one fault after the other until the context ends, the first at once. Then
// the WAN is whole.
func (w *weather) run(ctx context.Context) error {
	for ctx.Err() == nil {
		kind := faultKinds[w.dice.IntN(len(faultKinds))]
		if err := w.fault(ctx, kind); err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		wait(ctx, between(w.dice, calmLeast, calmMost))
	}
	return nil
}

// fault makes a fault and waits for its end.
func (w *weather) fault(ctx context.Context, kind faultKind) error {
	defer w.begin(string(kind))()
	switch kind {
	case faultThere:
		return w.outage(ctx, link.AToB)
	case faultBack:
		return w.outage(ctx, link.BToA)
	case faultReset:
		return w.reset()
	case faultForget:
		return w.forget(ctx)
	}
	return w.outage(ctx, wan.BothWays...)
}

// lasts waits for the length of an outage.
func (w *weather) lasts(ctx context.Context) { wait(ctx, between(w.dice, outageLeast, outageMost)) }

// outage is one of each path alone, or of all.
func (w *weather) outage(ctx context.Context, directions ...link.Direction) (err error) {
	met := w.paths
	if i := w.dice.IntN(len(met) + 1); i < len(met) {
		met = met[i : i+1]
	}
	for _, p := range met {
		err = errors.Join(err, p.Cut(true, directions...))
	}
	w.lasts(ctx)
	for _, p := range met {
		err = errors.Join(err, p.Cut(false, directions...))
	}
	return err
}

// pathOf is a connection and the path between its hosts.
type pathOf struct {
	*wan.Path
	wan.Connection
}

// some picks a random share of the connections of all paths: a few, half of them, or all.
func (w *weather) some() (picked []pathOf, err error) {
	share := [...]float64{0.2, 0.5, 1}[w.dice.IntN(3)]
	seen := map[wan.Connection]bool{} // paths between the same hosts list the same ones
	for _, p := range w.paths {
		all, listErr := p.Connections(func(*tcpinfo.Connection) bool { return true })
		err = errors.Join(err, listErr)
		for _, c := range all {
			if !seen[c] && w.dice.Float64() < share {
				picked = append(picked, pathOf{p, c})
			}
			seen[c] = true
		}
	}
	return picked, err
}

// reset resets lanes and control connections, each at one of its ends.
func (w *weather) reset() error {
	picked, err := w.some()
	for _, c := range picked {
		err = errors.Join(err, c.Reset(c.Connection, w.dice.IntN(2) == 0))
	}
	return err
}

// forget drops the packets of some lanes and control connections, and lets others pass.
func (w *weather) forget(ctx context.Context) error {
	picked, err := w.some()
	w.dice.Shuffle(len(picked), func(i, k int) { picked[i], picked[k] = picked[k], picked[i] })
	picked = picked[:min(len(picked), mostForgotten)]
	for _, c := range picked {
		err = errors.Join(err, c.Forget(c.Connection))
	}
	w.lasts(ctx)
	for _, c := range picked {
		err = errors.Join(err, c.Remember(c.Connection))
	}
	return err
}

// delay is how much later the faults since a moment may have made a flow.
func (w *weather) delay(since time.Time) (sum time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range slices.Backward(w.spells) {
		if s.to.IsZero() {
			s.to = time.Now()
		}
		if !s.to.Add(aftermath).After(since) {
			break
		}
		if s.from.Before(since) {
			s.from = since
		}
		sum += max(s.to.Sub(s.from), 0) + aftermath
	}
	return sum
}

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"longhaul/internal/lab/link"
)

// eventKind is what happens to a relay or to the WAN during the mixed run.
type eventKind string

const (
	reloadEvent eventKind = "reload"
	killEvent   eventKind = "kill -9 and restart"
	outageEvent eventKind = "outage"
	lossEvent   eventKind = "loss"
)

// eventKinds lists them with the mean time between two of a kind.
var eventKinds = []struct {
	kind  eventKind
	every time.Duration
}{
	{reloadEvent, 700 * time.Millisecond},
	{killEvent, 12 * time.Second},
	{outageEvent, 15 * time.Second},
	{lossEvent, 10 * time.Second},
}

// event is one of them.
type event struct {
	kind  eventKind
	at    time.Duration // since the run began
	far   bool          // relay-b rather than relay-a
	lasts time.Duration // of an outage or a lossy spell
	loss  float64
}

// schedule draws the events of a run, in order. A short run has each kind
// several times, too.
func schedule(seed uint64, length time.Duration) []event {
	r := rand.New(rand.NewPCG(seed, 1<<63))
	gap := func(kind int) time.Duration {
		every := min(eventKinds[kind].every, length/4)
		return time.Duration((0.5 + r.Float64()) * float64(every))
	}
	next := make([]time.Duration, len(eventKinds))
	for i := range next {
		next[i] = gap(i)
	}
	var all []event
	for {
		first := 0
		for i := range next {
			if next[i] < next[first] {
				first = i
			}
		}
		if next[first] >= length {
			return all
		}
		e := event{kind: eventKinds[first].kind, at: next[first], far: r.IntN(2) == 0}
		next[first] += gap(first)
		switch e.kind {
		case outageEvent:
			e.lasts = 100*time.Millisecond + time.Duration(r.Int64N(int64(2900*time.Millisecond)))
		case lossEvent:
			e.lasts = time.Second + time.Duration(r.Int64N(int64(4*time.Second)))
			e.loss = 0.002 + 0.08*r.Float64()
		}
		all = append(all, e)
	}
}

// director makes the events happen.
type director struct {
	world    *world
	variants [2]int // of the relays' configurations

	mu     sync.Mutex
	faults []fault
	counts map[eventKind]int
}

// run follows the schedule, what happens to relays beside what happens to the
// WAN.
func (d *director) run(ctx context.Context, began time.Time, events []event) error {
	var relays, wan []event
	for _, e := range events {
		if e.lasts > 0 {
			wan = append(wan, e)
		} else {
			relays = append(relays, e)
		}
	}
	ended := make(chan error)
	for _, some := range [][]event{relays, wan} {
		go func() { ended <- d.follow(ctx, began, some) }()
	}
	return errors.Join(<-ended, <-ended)
}

func (d *director) follow(ctx context.Context, began time.Time, events []event) error {
	for _, e := range events {
		pause(ctx, time.Until(began.Add(e.at)))
		if ctx.Err() != nil {
			return nil
		}
		if err := d.do(ctx, e); err != nil && ctx.Err() == nil {
			return fmt.Errorf("%s at %v: %w", e.kind, e.at.Round(time.Millisecond), err)
		}
	}
	return nil
}

func (d *director) do(ctx context.Context, e event) error {
	relay, variant := d.world.near, &d.variants[0]
	if e.far {
		relay, variant = d.world.far, &d.variants[1]
	}
	defer func() {
		d.mu.Lock()
		d.counts[e.kind]++
		d.mu.Unlock()
	}()
	switch e.kind {
	case reloadEvent:
		*variant++
		return relay.reload(ctx, d.world.config(relay, *variant))
	case killEvent:
		f := fault{from: time.Now()}
		if err := relay.kill(); err != nil {
			return err
		}
		// Even if the run ends now: flows that are under way need it.
		err := relay.start(context.WithoutCancel(ctx), d.world.config(relay, *variant))
		f.to = time.Now()
		d.mu.Lock()
		d.faults = append(d.faults, f)
		d.mu.Unlock()
		return err
	}
	change := func(s *link.Settings) { s.Down = true }
	back := func(s *link.Settings) { s.Down = false }
	if e.kind == lossEvent {
		change = func(s *link.Settings) { s.Loss.Probability = e.loss }
		back = func(s *link.Settings) { s.Loss.Probability = 0 }
	}
	if err := d.world.setWAN(change); err != nil {
		return err
	}
	pause(ctx, e.lasts)
	return d.world.setWAN(back)
}

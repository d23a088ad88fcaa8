package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"longhaul/lab"
	"longhaul/lab/link"
	"longhaul/lab/relays"
)

// eventKind is what happens to a relay, to a WAN, to the target or to the
// relays' ports during the mixed run.
type eventKind string

const (
	reloadEvent   eventKind = "reload"
	killFarEvent  eventKind = "kill of a far relay"
	killNearEvent eventKind = "kill of the near relay"
	targetEvent   eventKind = "kill of the target"
	outageEvent   eventKind = "outage"
	lossEvent     eventKind = "loss"
	halfOpenEvent eventKind = "half-open flood"
	garbageEvent  eventKind = "garbage"
	upgradeEvent  eventKind = "upgrade of a far relay"
	upgradeNear   eventKind = "upgrade of the near relay"
	drainHopEvent eventKind = "drain of a hop"
	drainEvent    eventKind = "drain of a far relay's tunnel"
)

// eventKinds lists them with the mean time between two of a kind.
var eventKinds = []struct {
	kind  eventKind
	every time.Duration
	by    int // who makes it happen, one after the other
}{
	{reloadEvent, 700 * time.Millisecond, byRelays},
	{killFarEvent, 10 * time.Second, byRelays},
	{killNearEvent, 12 * time.Second, byRelays},
	{targetEvent, 10 * time.Second, byTarget},
	{outageEvent, 10 * time.Second, byWAN},
	{lossEvent, 10 * time.Second, byWAN},
	{halfOpenEvent, 10 * time.Second, byFlood},
	{garbageEvent, 10 * time.Second, byGarbage},
	{upgradeEvent, 10 * time.Second, byRelays},
	{upgradeNear, 12 * time.Second, byRelays},
	{drainHopEvent, 10 * time.Second, byRelays},
	{drainEvent, 10 * time.Second, byRelays},
}

const (
	byRelays = iota
	byTarget
	byWAN
	byFlood
	byGarbage
	causes
)

// The near relay is killed and upgraded in the first part of a run only: in the
// rest of it what it holds must not grow.
const mortalShare = 4 // the first quarter

// early says whether a kind belongs into that part.
func (k eventKind) early() bool { return k == killNearEvent || k == upgradeNear }

// event is one of them.
type event struct {
	kind  eventKind
	at    time.Duration // since the run began
	which int           // of the relays, or of the WANs
	lasts time.Duration // of an outage, a lossy spell, or the target's death
	loss  float64
}

// schedule draws the events of a run, in order. A short run has each kind
// several times, too.
func schedule(seed uint64, length time.Duration) []event {
	r := rand.New(rand.NewPCG(seed, 1<<63))
	gap := func(kind int) time.Duration {
		span := length
		if eventKinds[kind].kind.early() {
			span = length / mortalShare
		}
		return time.Duration((0.5 + r.Float64()) * float64(min(eventKinds[kind].every, span/4)))
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
		e := event{kind: eventKinds[first].kind, at: next[first]}
		next[first] += gap(first)
		if e.kind.early() && e.at > length/mortalShare {
			next[first] = length
			continue
		}
		switch e.kind {
		case reloadEvent:
			e.which = r.IntN(3)
		case killFarEvent, upgradeEvent:
			e.which = 1 + r.IntN(2)
		case drainHopEvent, drainEvent:
			e.which = 1 + r.IntN(2)
			e.lasts = 100*time.Millisecond + time.Duration(r.Int64N(int64(1900*time.Millisecond)))
		case targetEvent:
			e.lasts = 100*time.Millisecond + time.Duration(r.Int64N(int64(900*time.Millisecond)))
		case outageEvent:
			e.which = r.IntN(2)
			e.lasts = 100*time.Millisecond + time.Duration(r.Int64N(int64(2900*time.Millisecond)))
		case lossEvent:
			e.which = r.IntN(2)
			e.lasts = time.Second + time.Duration(r.Int64N(int64(4*time.Second)))
			e.loss = 0.002 + 0.08*r.Float64()
		}
		all = append(all, e)
	}
}

// director makes the events happen.
type director struct {
	world      *world
	killTarget func() error // and
	newTarget  func() error
	variants   [3]int // of the relays' configurations
	strangers  strangers

	mu     sync.Mutex
	faults []fault
	all    []happening
	counts map[eventKind]int
}

// run follows the schedule, what happens to one part beside what happens to
// the others, until one of them fails.
func (d *director) run(ctx context.Context, began time.Time, events []event) error {
	var parts [causes][]event
	for _, e := range events {
		for _, k := range eventKinds {
			if k.kind == e.kind {
				parts[k.by] = append(parts[k.by], e)
			}
		}
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error)
	for _, some := range parts {
		go func() { ended <- d.follow(ctx, began, some) }()
	}
	var errs []error
	for range parts {
		err := <-ended
		if err != nil {
			stop() // there is no relay to test any more
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (d *director) follow(ctx context.Context, began time.Time, events []event) error {
	for _, e := range events {
		pause(ctx, time.Until(began.Add(e.at)))
		if ctx.Err() != nil {
			return nil
		}
		from := time.Now()
		if err := d.do(ctx, e); err != nil && ctx.Err() == nil {
			return fmt.Errorf("%s at %v: %w", e.kind, e.at.Round(time.Millisecond), err)
		}
		d.mu.Lock()
		d.all = append(d.all, happening{e, fault{fmt.Sprintf("%s %d", e.kind, e.which), from, time.Now()}})
		d.counts[e.kind]++
		d.mu.Unlock()
	}
	return nil
}

func (d *director) do(ctx context.Context, e event) error {
	wan := []string{lab.WAN, lab.WAN2}[e.which%2]
	switch e.kind {
	case reloadEvent:
		d.variants[e.which]++
		r := d.world.all()[e.which]
		return r.Reload(ctx, d.world.config(r, d.variants[e.which]))
	case upgradeEvent, upgradeNear:
		_, err := d.world.all()[e.which].Upgrade(ctx)
		return err
	case drainHopEvent:
		return d.drained(ctx, d.world.near, d.world.hopOf(e.which-1), e.lasts)
	case drainEvent:
		return d.drained(ctx, d.world.all()[e.which], "main", e.lasts)
	case killFarEvent, killNearEvent:
		return d.kill(ctx, d.world.all()[e.which], d.variants[e.which])
	case targetEvent:
		return d.during(fault{what: "target"}, func() error {
			err := d.killTarget()
			pause(ctx, e.lasts)
			return errors.Join(err, d.newTarget())
		})
	case halfOpenEvent:
		return d.strangers.halfOpen(ctx, d.world)
	case garbageEvent:
		return d.strangers.garbage(ctx, d.world)
	}
	change := func(s *link.Settings) { s.Down = true }
	back := func(s *link.Settings) { s.Down = false }
	if e.kind == lossEvent {
		change = func(s *link.Settings) { s.Loss.Probability = e.loss }
		back = func(s *link.Settings) { s.Loss.Probability = 0 }
	}
	if err := d.world.setWAN(wan, change); err != nil {
		return err
	}
	pause(ctx, e.lasts)
	return d.world.setWAN(wan, back)
}

// drained takes a tunnel or a hop of a relay out of service for a while. No flow
// may notice: there is another far relay.
func (d *director) drained(ctx context.Context, r *relays.Process, name string, lasts time.Duration) error {
	if err := r.Drain(ctx, name); err != nil {
		return err
	}
	pause(ctx, lasts)
	return r.Resume(context.WithoutCancel(ctx), name)
}

// kill ends a relay by SIGKILL and starts it again.
func (d *director) kill(ctx context.Context, r *relays.Process, variant int) error {
	return d.during(fault{what: r.Name}, func() error {
		if err := r.Kill(); err != nil {
			return err
		}
		// Even if the run ends now: flows that are under way need it.
		return r.Start(context.WithoutCancel(ctx), d.world.config(r, variant))
	})
}

// happening is an event that has happened.
type happening struct {
	event
	fault
}

// closes says which of the far relays an event closes to new flows.
func (h happening) closes() (far int, ok bool) {
	switch h.kind {
	case outageEvent:
		return h.which, true
	case drainEvent, drainHopEvent:
		return h.which - 1, true
	}
	return 0, false
}

// noWay are the times in which there was no way to the target: one far relay was
// drained, or its WAN cut, while the other was. A flow that begins then may fail,
// however well its relay does. Each closing counts a while longer: the SYN of a
// flow that met it comes again after a second.
func noWay(all []happening) []fault {
	return together(all, func(a, b happening) bool {
		first, ok := a.closes()
		second, alsoOK := b.closes()
		return ok && alsoOK && first == 0 && second == 1
	})
}

// lateHandshakes are the times in which a far relay's tunnel was drained while its
// WAN was cut or lost packets. A relay that is drained waits for handshakes, but
// not for as long as some then take: such a flow never reaches the target.
func lateHandshakes(all []happening) []fault {
	return together(all, func(a, b happening) bool {
		return a.kind == drainEvent && (b.kind == outageEvent || b.kind == lossEvent) && a.which-1 == b.which
	})
}

// together are the times in which two events of a kind that match picks went on,
// or had just ended.
func together(all []happening, match func(a, b happening) bool) (times []fault) {
	for _, a := range all {
		for _, b := range all {
			if !match(a, b) {
				continue
			}
			from, to := a.from, a.to
			if b.from.After(from) {
				from = b.from
			}
			if b.to.Before(to) {
				to = b.to
			}
			if to = to.Add(againAfter); from.Before(to) {
				times = append(times, fault{string(a.kind) + " and " + string(b.kind), from, to})
			}
		}
	}
	return times
}

// againAfter is when a SYN has come again for sure.
const againAfter = 1500 * time.Millisecond

// aftermath is for how long something may have consequences, to those who look
// for a reason.
const aftermath = 3 * time.Second

// met says what happened while a flow lived or shortly before, and when, seen
// from its beginning.
func (d *director) met(f *flow) string {
	var all []string
	for _, e := range d.all {
		if late := (fault{from: e.from, to: e.to.Add(aftermath)}); late.touches(f) {
			all = append(all, fmt.Sprintf("%s (%+.3f to %+.3f s)", e.what, e.from.Sub(f.began).Seconds(), e.to.Sub(f.began).Seconds()))
		}
	}
	return fmt.Sprintf("in %.3f s it met: %s", f.done.Sub(f.began).Seconds(), strings.Join(all, ", "))
}

// during notes a time in which flows may be cut.
func (d *director) during(f fault, do func() error) error {
	f.from = time.Now()
	err := do()
	f.to = time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = append(d.faults, f)
	return err
}

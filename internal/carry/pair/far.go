package pair

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"unique"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
)

// ask dials the target of a new flow in a goroutine. While too many flows of the session are
// neither admitted nor refused, it waits, and so does the reader of the connection that brought
// the OPEN.
func (fr farPart) ask(o wire.Open, a Acceptor, ahead []byte) {
	f := fr.f
	asking := f.s.asking
	select {
	case asking <- struct{}{}:
	case <-f.s.node.ctx.Done():
	}
	decided := sync.OnceFunc(func() {
		select {
		case <-asking:
		default:
		}
		f.s.undecided.Add(-1)
	})
	f.s.node.tasks.Go(func() {
		defer decided()
		fr.dial(o, a, ahead, decided)
	})
}

// dial connects to the target, for which ahead came with the OPEN. It calls admitted once the
// relay has counted the flow.
func (fr farPart) dial(o wire.Open, a Acceptor, ahead []byte, admitted func()) {
	f := fr.f
	ctx, cancel := context.WithTimeout(f.s.node.ctx, min(o.Deadline, maxDeadline))
	defer cancel()
	f.mu.Lock()
	f.opening.cancel = cancel
	unwanted := f.opening.gone
	f.mu.Unlock()
	if unwanted {
		fr.refuse(cause(flow.EndClientReset, nil))
		return
	}
	if err := f.s.mayPass(o.Via); err != nil {
		f.s.tell(slog.LevelWarn, "a flow is refused", err)
		fr.refuse(cause(flow.EndLoop, err))
		return
	}
	t, err := a.Dial(ctx, flow.Open{Tunnel: a.Tunnel(), Peer: f.s.peerNow(), Client: o.Client, Listen: o.Listen, Carried: f,
		Name: o.Name, Via: o.Via, Offset: o.Offset, Admitted: func(owner flow.Owner) {
			f.mu.Lock()
			f.owner = owner
			f.mu.Unlock()
			admitted()
		}})
	if err != nil {
		f.mu.Lock()
		f.owner = nil // it has the end
		f.mu.Unlock()
	}
	switch {
	case errors.Is(err, flow.ErrDialCut):
		fr.endDial(refusal(err))
		return
	case err != nil:
		fr.refuse(refusal(err))
		return
	}
	f.mu.Lock()
	err = fr.takeTarget(t, ahead)
	f.mu.Unlock()
	if err != nil {
		fr.refuse(cause(flow.EndNoResources, err))
	}
}

// mayPass returns why a flow that has passed these relays must not pass this one.
func (r *relation) mayPass(via flow.Via) error {
	switch {
	case slices.ContainsFunc(r.node.relayIDs(), via.Has):
		return fmt.Errorf("the flow that %s sends has passed this relay already: the chain of pairs leads back to it; correct pair or forward at one of its relays", r.peerNow())
	case via.Len() >= flow.MaxVia:
		return fmt.Errorf("the flow that %s sends has passed %d relays, and a flow may pass %d relays: shorten the chain of pairs", r.peerNow(), via.Len(), flow.MaxVia)
	}
	return nil
}

// stopDial ends the search for a target that the near relay does not wait for. The caller holds f.mu.
func (fr farPart) stopDial() {
	o := fr.f.opening
	if o == nil {
		return
	}
	o.gone = true
	if o.cancel != nil {
		o.cancel()
	}
}

// takeTarget gives a far flow its target. The caller holds f.mu.
func (fr farPart) takeTarget(t flow.Target, ahead []byte) error {
	f := fr.f
	f.leg.options, f.target, f.owner = withDefaults(t.Legs), unique.Make(t.To), t.Owner
	if err := f.leg.take(t.FD); err != nil {
		f.leg.options.Joint.Cut(flow.EndNoResources, err)
		unix.Close(t.FD)
		f.leg.num = -1
		return err
	}
	if reset := t.Reset; reset != nil {
		f.leg.cut = &cut{reset: reset}
	}
	f.leg.openedDue, f.opening = true, nil
	f.phase.take(eventOpened)
	f.s.post(f, true)
	f.need.takeAhead(0, ahead)
	f.wake()
	return nil
}

// endDial ends a far flow whose target may have been dialed. A REFUSED might have the near relay take
// it to the next process.
func (fr farPart) endDial(c stream.Cause) {
	f := fr.f
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leg.broken, f.opening = true, nil
	f.phase.take(eventRefused)
	f.abort(c)
}

// refuse ends a far flow that has no target. It does not live until the near relay has answered:
// its number is enough for that.
func (fr farPart) refuse(c stream.Cause) {
	f := fr.f
	f.s.refuse(f.id, c)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leg.broken, f.opening = true, nil
	f.phase.take(eventRefused)
	f.sf.LocalReset(c)
	f.sf.PeerGone(c)
	f.wake()
}

// takeOffer answers a RELEASE that was kept. The caller holds f.mu.
func (fr farPart) takeOffer() {
	f := fr.f
	if f.s.near {
		return
	}
	for _, st := range f.lanes.all {
		l := st.l
		l.mu.Lock()
		offer := l.offer
		l.offer = wire.Frame{}
		l.mu.Unlock()
		if offer.Type == wire.FrameRelease {
			f.s.node.tasks.Go(func() {
				if l.bound() == f {
					_ = f.s.released(l, f, offer)
				}
			})
		}
	}
}

// giveLane takes the lane from a far flow that needs it no more, and reports whether
// it did.
func (f *Flow) giveLane(l *lane, final bool, received uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := f.lanes.of(l)
	if st == nil {
		return true
	}
	if final && len(f.lanes.all) > 1 {
		f.lanes.drop(st)
		return true
	}
	if !final && (!f.sf.Quiet() || f.sf.Out.Length() != received || st.greet != nil || !f.leg.open()) {
		return false
	}
	for _, other := range f.lanes.all { // the near relay has released them already
		if other != st {
			other.l.unbind(f)
		}
	}
	f.lanes.dropAll()
	f.sf.Detach()
	f.wake()
	return true
}

// attach gives a far flow another lane; greet makes the answer, nil: none.
func (fr farPart) attach(l *lane, received uint64, greet func([]byte, uint64, uint64) []byte) {
	f := fr.f
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lanes.replace(l)
	for f.leg.busyOut {
		f.leg.await()
		f.lanes.replace(l) // another one may have come meanwhile
	}
	if f.phase == phaseOver {
		l.bind(nil) // the near relay gets the flow's end by its other messages
		return
	}
	l.bind(f)
	f.s.served.Store(int64(stampNow()))
	var first []byte
	if greet != nil {
		first = greet(nil, f.id, f.sf.In.Position())
	}
	f.lanes.add(l, first, true)
	f.need.wokeAt = 0
	f.lanes.attached(received)
}

// join gives a far flow one more lane; received is the near relay's position.
func (fr farPart) join(l *lane, received uint64) {
	f := fr.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.phase == phaseOver || !f.s.knows(wire.FeatureLanes) || len(f.lanes.all) >= maxLanes || f.lanes.has(l) || !l.bind(f) {
		l.close()
		return
	}
	f.sf.In.Merge()
	first := f.lanes.main() == nil
	f.lanes.takeMemory(f.lanes.add(l, wire.AppendJoin(nil, f.id, f.sf.In.Position()), true))
	f.lanes.pumpAll()
	if first {
		f.need.wokeAt = 0
		f.lanes.attached(received)
	} else {
		f.lanes.takePosition(received)
	}
	f.lanes.feed()
}

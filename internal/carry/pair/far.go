package pair

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
)

var errWrongEnd = errors.New("a frame that only a near relay sends")

// open takes an OPEN of the near relay: a new flow, or a known one on another lane.
func (s *session) open(l *lane, frame wire.Frame, b []byte) error {
	if s.near {
		return errWrongEnd
	}
	o, err := wire.ParseOpen(b)
	if err != nil {
		return err
	}
	a := l.acceptor
	f, fresh, err := s.admit(l, o, a)
	switch {
	case err != nil:
		l.bind(nil)
		s.decline(o.Flow, err)
	case fresh:
		f.ask(o, a, nil)
	default:
		f.attachFar(l, frame.Offset, nil)
	}
	return nil
}

// The errors of admit.
var (
	errDenied  = errors.New("the peer is not admitted any more")
	errRemoved = errors.New("the tunnel was removed")
	errOver    = errors.New("the flow is over")
	errEnding  = errors.New("the process ends")
)

// refusedBefore is the error of an OPEN that comes again.
type refusedBefore struct{ code byte }

func (refusedBefore) Error() string { return "the flow was refused before" }

// causeOf is what the near relay gets for an error of admit. Any other error than these tells it
// that the flow is gone. A removed tunnel and a process that ends count as ones that drain: the near
// relay takes the flow to the next process.
func causeOf(err error) (c stream.Cause, refused bool) {
	var again refusedBefore
	switch {
	case errors.As(err, &again):
		return stream.Cause{Code: again.code, Text: err.Error()}, true
	case err == errDenied:
		return cause(flow.EndDenied, err), true
	case err == errRemoved, err == errEnding:
		return cause(flow.EndDrain, err), true
	}
	return c, false
}

// admit finds the flow of an OPEN or makes it. The lane that the OPEN came on is nil if it
// came ahead.
func (s *session) admit(l *lane, o wire.Open, a Acceptor) (f *Flow, fresh bool, err error) {
	admitted, removed := a.Admits(s.peer), a.Removed()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !admitted {
		return nil, false, errDenied
	}
	if removed && s.flows[o.Flow] == nil {
		return nil, false, errRemoved
	}
	if f := s.flows[o.Flow]; f != nil {
		return f, false, nil
	}
	if code, over := s.buried.has(o.Flow); over && code != 0 {
		return nil, false, refusedBefore{code}
	} else if over {
		return nil, false, errOver
	} else if s.closed || s.node.closing.Load() {
		return nil, false, errEnding
	}
	f = newFlow(s, o.Flow, false, LegOptions{})
	f.known, f.dialing, f.done = true, true, a.Ended
	if s.noResume {
		f.sf.NoResume()
	}
	f.sf.Seal(s.sealed.Load())
	if l != nil {
		l.bind(f)
		f.addStrand(l, nil, true)
		_ = f.sf.Attach(0)
	}
	s.flows[f.id] = f
	s.watched[f] = struct{}{}
	s.undecided.Add(1)
	s.flowsTotal.Add(1)
	s.node.flowsNow.Add(1)
	return f, true, nil
}

// decline answers an OPEN that admit did not take.
func (s *session) decline(id uint64, err error) {
	if c, refused := causeOf(err); refused {
		s.refuse(id, c)
		return
	}
	s.reply(wire.Message{Type: wire.MessageGone, Flow: id})
}

// refuse has the near relay get a REFUSED of a flow, also if its control connection is lost before
// that arrives.
func (s *session) refuse(id uint64, c stream.Cause) {
	s.mu.Lock()
	s.buried.add(id, c.Code)
	s.mu.Unlock()
	s.owe(id, c)
}

// ask dials the target of a new flow in a goroutine. While too many flows of the session are
// neither admitted nor refused, it waits, and so does the reader of the connection that brought
// the OPEN.
func (f *Flow) ask(o wire.Open, a Acceptor, ahead []byte) {
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
		f.dial(o, a, ahead, decided)
	})
}

// dial connects to the target, for which ahead came with the OPEN. It calls admitted once the
// relay has counted the flow.
func (f *Flow) dial(o wire.Open, a Acceptor, ahead []byte, admitted func()) {
	ctx, cancel := context.WithTimeout(f.s.node.ctx, min(o.Deadline, maxDeadline))
	defer cancel()
	t, err := a.Dial(ctx, Open{Peer: f.s.peer, Client: o.Client, Listen: o.Listen, Flow: f, Admitted: admitted})
	var r *Refusal
	switch {
	case errors.As(err, &r) && r.Dialed:
		f.endDial(cause(r.Reason, r.Err))
		return
	case err != nil:
		f.refuse(refusal(err))
		return
	}
	f.mu.Lock()
	err = f.takeTarget(t, ahead)
	f.mu.Unlock()
	if err != nil {
		f.refuse(cause(flow.EndNoResources, err))
	}
}

// takeTarget gives a far flow its target. The caller holds f.mu.
func (f *Flow) takeTarget(t Target, ahead []byte) error {
	f.legs, f.target = t.Legs.withDefaults(), t.To.String()
	if err := f.takeLeg(t.FD); err != nil {
		unix.Close(t.FD)
		f.leg.fd = -1
		return err
	}
	f.dialing = false
	f.leg.reset = t.Reset
	f.opened, f.openedDue = true, true
	f.s.post(f, true)
	f.takeAhead(0, ahead)
	f.wake()
	return nil
}

// endDial ends a far flow whose target may have been dialed. A REFUSED might have the near relay take
// it to the next process.
func (f *Flow) endDial(c stream.Cause) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dialing, f.legFailed = false, true
	f.abort(c)
}

// refuse ends a far flow that has no target. It does not live until the near relay has answered:
// its number is enough for that.
func (f *Flow) refuse(c stream.Cause) {
	f.s.refuse(f.id, c)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dialing, f.legFailed = false, true
	f.sf.LocalReset(c)
	f.sf.PeerGone(c)
	f.wake()
}

// dropped are the numbers of flows that are over, of which a late OPEN may still come, each with
// the code of the reason for which it was refused; 0: it was not.
type dropped struct{ now, before map[uint64]byte }

func (d *dropped) add(id uint64, code byte) {
	if was, known := d.has(id); known && was != 0 {
		code = was
	}
	if len(d.now) >= maxBuried {
		d.before, d.now = d.now, nil
	}
	if d.now == nil {
		d.now = map[uint64]byte{}
	}
	d.now[id] = code
}

func (d *dropped) has(id uint64) (code byte, known bool) {
	if code, known = d.now[id]; !known {
		code, known = d.before[id]
	}
	return code, known
}

// released takes a RELEASE.
func (s *session) released(l *lane, f *Flow, frame wire.Frame) error {
	if s.near {
		s.releasedNear(l, f, frame)
		return nil
	}
	final := frame.Flags&wire.FlagFinal != 0
	if f != nil && !f.giveLane(l, final, frame.Offset) {
		l.keepOffer(f, frame)
		return nil
	}
	return l.release(f, frame.Flags&wire.FlagFinal, 0)
}

// keepOffer keeps a RELEASE that has overtaken an acknowledgement.
func (l *lane) keepOffer(f *Flow, offer wire.Frame) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flow == f {
		l.offer = offer
	}
}

// takeOffer answers a RELEASE that was kept. The caller holds f.mu.
func (f *Flow) takeOffer() {
	if f.near {
		return
	}
	for _, st := range f.strands {
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
	st := f.strand(l)
	if st == nil {
		return true
	}
	if final && len(f.strands) > 1 {
		f.dropStrand(st)
		f.sf.Out.Lost(&st.sent)
		f.feed()
		return true
	}
	if !final && (!f.sf.Quiet() || f.sf.Out.Length() != received || st.greet != nil || !f.leg.open()) {
		return false
	}
	for _, other := range f.strands { // the near relay has released them already
		if other != st {
			other.l.unbind(f)
		}
	}
	f.dropStrands()
	f.sf.Detach()
	f.wake()
	return true
}

// attachFar gives a far flow another lane; greet makes the answer, nil: none.
func (f *Flow) attachFar(l *lane, received uint64, greet func([]byte, uint64, uint64) []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.replaceStrands(l)
	for f.leg.busyOut {
		f.await()
		f.replaceStrands(l) // another one may have come meanwhile
	}
	if f.finished {
		l.bind(nil) // the near relay gets the flow's end by its other messages
		return
	}
	l.bind(f)
	f.s.served.Store(int64(stampNow()))
	var first []byte
	if greet != nil {
		first = greet(nil, f.id, f.sf.In.Position())
	}
	f.addStrand(l, first, true)
	f.wokeAt = 0
	f.attached(received)
}

// replaceStrands takes all lanes from the flow, in whose place another one comes.
func (f *Flow) replaceStrands(by *lane) {
	for _, st := range f.strands {
		if st.l != by {
			st.l.unbind(f)
			st.l.close()
			f.lost = true
		}
	}
	f.dropStrands()
	f.sf.Detach()
}

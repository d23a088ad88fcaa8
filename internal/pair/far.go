package pair

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"longhaul/internal/flow"
	"longhaul/internal/pair/wire"
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
		s.node.tasks.Go(func() { f.dial(o, a, nil) })
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
)

// declined maps an error to the reason that the near relay gets. All other errors tell it that the
// flow is gone. A removed tunnel counts as one that drains.
var declined = map[error]flow.EndReason{errDenied: flow.EndDenied, errRemoved: flow.EndDrain}

// admit finds the flow of an OPEN or makes it. The lane that the OPEN came on is nil if it
// came ahead.
func (s *session) admit(l *lane, o wire.Open, a Acceptor) (f *Flow, fresh bool, err error) {
	admitted, removed := a.Admits(s.peer), a.Removed()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !admitted {
		s.buried.add(o.Flow)
		return nil, false, errDenied
	}
	if removed && s.flows[o.Flow] == nil {
		s.buried.add(o.Flow)
		return nil, false, errRemoved
	}
	if f := s.flows[o.Flow]; f != nil {
		return f, false, nil
	}
	if s.buried.has(o.Flow) || s.node.closing.Load() {
		return nil, false, errOver
	}
	f = newFlow(s, o.Flow, false, LegOptions{})
	f.known, f.dialing, f.done = true, true, a.Ended
	if s.noResume {
		f.sf.NoResume()
	}
	if l != nil {
		l.bind(f)
		f.addStrand(l, nil, true)
		_ = f.sf.Attach(0)
	}
	s.flows[f.id] = f
	s.watched[f] = struct{}{}
	s.flowsTotal.Add(1)
	s.node.flowsNow.Add(1)
	return f, true, nil
}

// decline answers an OPEN that admit did not take.
func (s *session) decline(id uint64, err error) {
	m := wire.Message{Type: wire.MessageGone, Flow: id}
	if r := declined[err]; r != "" {
		c := cause(r, err)
		m = wire.Message{Type: wire.MessageRefused, Flow: id, Reason: c.Code, Text: c.Text}
	}
	s.message(m)
}

// dial connects to the target, for which ahead came with the OPEN.
func (f *Flow) dial(o wire.Open, a Acceptor, ahead []byte) {
	ctx, cancel := context.WithTimeout(f.s.node.ctx, o.Deadline)
	defer cancel()
	t, err := a.Dial(ctx, Open{Peer: f.s.peer, Client: o.Client, Listen: o.Listen, Flow: f})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dialing = false
	defer f.wake()
	if err != nil {
		f.legFailed = true
		f.sf.LocalReset(refusal(err))
		return
	}
	f.legs, f.target = t.Legs.withDefaults(), t.To.String()
	if err := f.takeLeg(t.FD); err != nil {
		unix.Close(t.FD)
		f.leg.fd = -1
		f.legFailed = true
		f.sf.LocalReset(cause(flow.EndNoResources, err))
		return
	}
	f.leg.reset = t.Reset
	f.opened = true
	f.s.message(wire.Message{Type: wire.MessageOpened, Flow: f.id, Text: f.target})
	f.takeAhead(0, ahead)
}

// dropped are the numbers of flows that are over, of which a late OPEN may still come.
type dropped struct{ now, before map[uint64]struct{} }

func (d *dropped) add(id uint64) {
	if len(d.now) >= maxBuried {
		d.before, d.now = d.now, nil
	}
	if d.now == nil {
		d.now = map[uint64]struct{}{}
	}
	d.now[id] = struct{}{}
}

func (d *dropped) has(id uint64) bool {
	_, now := d.now[id]
	_, before := d.before[id]
	return now || before
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

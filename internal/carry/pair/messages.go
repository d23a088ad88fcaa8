package pair

import (
	"errors"
	"net/netip"
	"time"
	"unique"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
)

// messages appends the flow's messages that are due.
func (f *Flow) messages(out []byte) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.phase.unheard() || f.near.given {
		return out // the far relay has never heard of the flow, or is to forget it
	}
	if f.near.openDue && f.opening != nil {
		out = wire.Message{Type: wire.MessageOpen, Flow: f.id, Open: &f.opening.Open}.Append(out)
	}
	f.near.openDue = false
	if !f.phase.known() && !f.s.sealed() && !f.sf.ResetWaiting() {
		return out // its OPEN may be under way, and an ACK would overtake it
	}
	if f.leg.openedDue {
		f.leg.openedDue = false
		out = wire.Message{Type: wire.MessageOpened, Flow: f.id, Text: targetOf(f).String()}.Append(out)
	}
	if a, ok := f.sf.TakeAck(); ok && f.phase.known() {
		m := wire.Message{Type: wire.MessageAck, Flow: f.id, Offset: a.Received}
		if a.End {
			m.Flags = wire.FlagEnd
		}
		out = m.Append(out)
	}
	if f.phase.known() && f.s.knows(wire.FeatureHeld) {
		if held := f.sf.TakeHeld(); len(held) > 0 {
			out = wire.Message{Type: wire.MessageHeld, Flow: f.id, Spans: held}.Append(out)
		}
	}
	if e, ok := f.sf.TakeEnd(); ok {
		out = wire.Message{Type: wire.MessageEnd, Flow: f.id, Offset: e.Length, CRC: e.CRC}.Append(out)
	}
	if r, ok := f.sf.TakeReset(); ok {
		m := wire.Message{Type: wire.MessageReset, Flow: f.id, Offset: r.Length, Reason: r.Cause.Code, Text: r.Cause.Text}
		if r.End {
			m.Flags = wire.FlagEnd
		}
		if reason, _ := reasonOf(r.Cause); !f.s.near && f.phase != phaseOpen && reason != flow.EndDrain {
			m.Type = wire.MessageRefused // else the near relay would take it to the next process, and it may be dialed for here
		}
		out = m.Append(out)
	}
	if f.sf.Over() {
		f.wake()
	}
	return out
}

// resync makes everything due again that a lost control connection may have lost.
func (f *Flow) resync() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.phase == phaseOver {
		return
	}
	f.sf.Resync()
	f.need.wokeAt = 0
	f.leg.openedDue = !f.s.near && f.phase == phaseOpen
	f.watch.toldSent = false
	f.near.openDue = f.phase == phaseAsked && f.s.sealed()
	f.s.post(f, true)
	f.wake()
}

// take takes a message for the flow. The caller holds f.mu and wakes the flow.
func (f *Flow) take(m wire.Message) {
	switch m.Type {
	case wire.MessageOpened:
		if f.s.near {
			f.near.targetFound()
			o := f.opening
			f.opening, f.moved = nil, stampNow()
			if to, err := netip.ParseAddrPort(m.Text); err == nil {
				f.target = unique.Make(to)
			}
			f.phase.take(eventOpened)
			if o != nil && o.opened != nil {
				o.opened()
			}
		}
	case wire.MessageRefused:
		c := told(f.s.near, m)
		if f.near.giveBack(c, true) {
			return
		}
		if r, _ := reasonOf(c); f.s.near && r == flow.EndDrain && f.s.link.moveOn(f) {
			return
		}
		f.phase.take(eventHeard)
		f.resetByPeer(0, false, c)
	case wire.MessageAck:
		f.phase.take(eventHeard)
		before := f.sf.Out.Acknowledged()
		if err := f.sf.Ack(m.Offset, m.Flags&wire.FlagEnd != 0); err != nil {
			f.sf.Abort(cause(flow.EndDamaged, errors.New("acknowledgement of bytes that were not sent")))
		}
		if f.sf.Out.Acknowledged() > before {
			f.watch.noteAck()
			f.need.wentAhead()
		}
		if f.sf.Out.Acknowledged() > before || f.sf.Out.Done() {
			f.watch.lates = 0
		}
		f.far().takeOffer()
	case wire.MessageEnd:
		f.takeSealedEnd(m.Offset, m.CRC)
	case wire.MessageSent:
		f.sf.Told(m.Offset, m.Flags&wire.FlagEnd != 0)
	case wire.MessageHeld:
		if err := f.sf.Held(m.Spans); err != nil {
			f.abort(cause(flow.EndDamaged, errors.New("the other relay holds bytes that were not sent")))
		}
	case wire.MessageReset:
		if f.near.giveBack(told(f.s.near, m), true) { // OPENED would have come before it
			return
		}
		f.phase.take(eventHeard)
		f.resetByPeer(m.Offset, m.Flags&wire.FlagEnd != 0, told(f.s.near, m))
	case wire.MessageGone:
		c := cause(flow.EndWANLost, errors.New("the other relay does not know the flow"))
		if f.near.giveBack(c, false) {
			return
		}
		f.sf.PeerGone(c)
		f.far().stopDial()
	case wire.MessageWake:
		f.need.takeWake(m.Offset, m.Bytes)
	case wire.MessageLate:
		f.watch.takeLate(m.Offset, time.Now())
	case wire.MessageLimited:
		switch now := time.Now(); {
		case !f.s.near: // of an older near relay, which measures lanes by it
		case m.Flags&wire.FlagSilent == 0:
			f.spread.mixed().farLimited = stampOf(now)
		}
	}
}

// resetByPeer takes the other end's reset. The first cause of a flow counts.
func (f *Flow) resetByPeer(length uint64, end bool, c stream.Cause) {
	if before, _ := f.sf.Cause(); before == (stream.Cause{}) {
		f.told = true
	}
	f.sf.PeerReset(length, end, c)
}

// takeSealedEnd takes an end that came on the control connection. Bytes before it may be under way. The
// caller holds f.mu and wakes the flow.
func (f *Flow) takeSealedEnd(length uint64, crc uint32) {
	f.phase.take(eventHeard)
	f.near.targetFound()
	err := errUnsealed
	if f.s.sealed() {
		err = f.sf.In.End(length, crc)
	}
	if err != nil {
		f.abort(cause(flow.EndDamaged, errEnd))
		return
	}
	f.leg.passEnd()
}

// endsUntold reports that a beginning or an end of a sealed flow waits for the control connection.
func (f *Flow) endsUntold() bool {
	return f.s.sealed() && (f.s.near && !f.phase.known() || f.sf.Out.Ended() && !f.sf.Out.Done())
}

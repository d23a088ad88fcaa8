package relay

import (
	report "longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay/monotime"
	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/words/units"
)

// tracePortion is how many places for flows an event loop looks at in one turn for a trace: some 50 µs.
const tracePortion = 4096

// Traced is this relay's part of a flow's trace, without rates and causes.
type Traced struct {
	ID   report.ID
	Name report.Name
	Part report.TraceRelay
	// Before carries the flow from the relay before this one, and Behind on to the one behind. Each is nil where the way ends.
	Before, Behind report.Carried
}

// TraceNamed returns the flows, at most so many, whose names begin with these digits. It looks at all flows.
func (r *Relay) TraceNamed(p report.NamePrefix, most int) (all []Traced) {
	loops := r.loops.Load()
	if loops == nil {
		return nil
	}
	for _, w := range *loops {
		for next := 0; next >= 0 && len(all) < most; {
			if !w.do(func() {
				until := min(next+tracePortion, len(w.slots))
				for ; next < until && len(all) < most; next++ {
					if f := w.slots[next].flow; f != nil && p.Matches(f.name) {
						all = append(all, w.traceFlow(f))
					}
				}
				if next >= len(w.slots) {
					next = -1
				}
			}) {
				return all
			}
		}
	}
	return all
}

// TraceCarried returns the flow that a carrier carries, or is to carry; false: it has ended. Other relays ask
// for that, as often as they like: no loop looks at another flow.
func (r *Relay) TraceCarried(c report.Carried) (t Traced, running bool) {
	o, known := c.Owner().(interface{ at() place })
	if !known {
		return t, false
	}
	at := o.at()
	at.w.do(func() {
		f := at.flow()
		if f == nil {
			return
		}
		if before, behind := f.carriers(); before == c || behind == c {
			t, running = at.w.traceFlow(f), true
		}
	})
	return t, running
}

// traceFlow is a sample of a flow of its own: those of the monitor go on as if there were none.
func (w *worker) traceFlow(f *flow) Traced {
	w.lookAtPaired(f) // which may end its rest
	rests, named, now := f.rests, [2]bool{f.legs[client].named, f.legs[target].named}, monotime.Now()
	var s report.Sample
	f.rests, f.legs[client].named, f.legs[target].named = false, false, false
	w.sampleFlow(f, &s, true, now, s.Start)
	f.rests, f.legs[client].named, f.legs[target].named = rests, named[client], named[target]
	t := Traced{ID: s.ID, Name: f.name, Part: report.TraceRelay{Tunnel: s.Tunnel, State: s.State,
		Client: report.Address{AddrPort: s.Client}, Listen: report.Address{AddrPort: s.Listen}, Target: report.Address{AddrPort: s.Target},
		Age: units.Seconds(now - f.start), BytesUp: s.BytesUp, BytesDown: s.BytesDown,
		HeldUp: int64(f.dirs[up].held), HeldDown: int64(f.dirs[down].held), Pair: f.pairSnapshot()}}
	t.Part.Legs = [2]report.TraceLeg{tracedLeg(&s.ClientLeg), tracedLeg(&s.TargetLeg)}
	f.sockets(func(fds [2]int) {
		for i, fd := range fds {
			if fd >= 0 {
				leg := &t.Part.Legs[i]
				leg.Local.AddrPort, leg.Remote.AddrPort = localAddr(fd), peerAddr(fd)
			}
		}
	})
	t.Before, t.Behind = f.carriers()
	for i, c := range [2]report.Carried{t.Before, t.Behind} {
		if c != nil {
			t.Part.Legs[i].Lane, t.Part.Legs[i].Peer = true, c.Figures().Peer
		}
	}
	return t
}

// carriers are who carries the flow from the relay before this one and on to the one behind, or is to; nil:
// there is no such relay.
func (f *flow) carriers() (before, behind report.Carried) {
	if f.chain != nil {
		before = f.chain.from
	}
	switch {
	case f.paired == nil:
	case f.paired.leg == target:
		before = f.paired.carrier
	default:
		behind = f.paired.carrier
	}
	return before, behind
}

func tracedLeg(s *report.LegSample) report.TraceLeg {
	l := report.UnknownTraceLeg()
	l.Side, l.CongestionControl = s.Side, s.CongestionControl
	if !s.Known {
		return l
	}
	i := &s.Info
	l.Unacknowledged, l.CongestionWindow = int64(i.Unacked)*int64(i.SndMSS), int64(i.SndCwnd)*int64(i.SndMSS)
	if i.Has(tcpinfo.FieldRTT) {
		l.RTT = units.Seconds(i.RTT)
	}
	if i.Has(tcpinfo.FieldMinRTT) {
		l.MinRTT = units.Seconds(i.MinRTT)
	}
	if i.Has(tcpinfo.FieldBytesSent) {
		l.BytesSent, l.BytesRetransmitted = int64(i.BytesSent), int64(i.BytesRetrans)
	}
	if i.Has(tcpinfo.FieldSndWnd) {
		l.PeerWindow = int64(i.SndWnd)
	}
	if i.Has(tcpinfo.FieldNotsentBytes) {
		l.NotSent = int64(i.NotsentBytes)
	}
	return l
}

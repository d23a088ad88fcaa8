package relay

import (
	"time"

	"longhaul/internal/tcpinfo"
)

// account counts a flow that is about to be closed, and queues its record.
func (w *worker) account(f *flow) {
	st := f.route.state
	st.up.Add(max(0, f.dirs[up].bytes))
	st.down.Add(max(0, f.dirs[down].bytes))
	rec := FlowRecord{End: EndClean}
	if f.closing != nil && f.closing.reason != "" {
		rec.End, rec.Err = f.closing.reason, f.closing.err
	}
	if f.isCheck {
		rec.End = EndCheck
	}
	st.ended.add(rec.End)
	switch rec.End {
	case EndClean, EndIdle, EndHalfClosed, EndDrain, EndCheck:
	case EndTargetRefused, EndTargetUnreached, EndTargetUnknown, EndNoHop:
		st.refused.Add(1)
	case EndBadProxyHeader:
		st.denied.Add(1)
	default:
		st.errors.Add(1)
	}
	if w.relay.opts.OnFlows == nil {
		return
	}
	rec.ID = f.id
	rec.Tunnel = f.route.tunnel.Name
	rec.Client = f.client
	rec.Listen = w.listenAddr(f)
	rec.Target = f.target
	rec.Hop = f.hopName()
	rec.Elapsed = time.Duration(w.clock() - f.start)
	rec.Start = time.Now().Add(-rec.Elapsed)
	rec.BytesUp = max(0, f.dirs[up].bytes)
	rec.BytesDown = max(0, f.dirs[down].bytes)
	if wanted := w.relay.opts.LegStats; wanted == nil || wanted(rec.Elapsed) {
		rec.ClientLeg = f.legs[client].stats(&w.algorithms[client])
		if f.phase == phaseMoving {
			rec.TargetLeg = f.legs[target].stats(&w.algorithms[target])
		}
	}
	w.ended = append(w.ended, rec)
}

// leftover reports the bytes that the flow's peers have not received.
func (f *flow) leftover() Leftover {
	return Leftover{
		Tunnel:        f.route.tunnel.Name,
		Client:        f.client,
		Target:        f.target,
		ToClientBytes: f.undelivered(client),
		ToTargetBytes: f.undelivered(target),
		Delivering:    f.end.delivering(),
	}
}

// undelivered is the number of bytes that were received for a leg's peer and
// not acknowledged by it.
func (f *flow) undelivered(s side) int64 {
	from := s.other()
	n := f.dirs[from].held
	if fd := int(f.legs[s].fd); fd >= 0 {
		queued := unacknowledged(fd)
		if f.end.shut[s] && queued > 0 {
			queued-- // the FIN, which counts as a byte
		}
		n += queued
	}
	if fd := int(f.legs[from].fd); fd >= 0 && f.end.in[from] == inputOpen {
		n += unread(fd)
	}
	return int64(n)
}

// report passes the records of a turn to OnFlows.
func (w *worker) report() {
	if len(w.ended) > 0 {
		w.relay.opts.OnFlows(w.ended)
		clear(w.ended)
		w.ended = w.ended[:0]
	}
}

// stats queries the kernel about a leg. last is the previous leg's congestion
// control, likely the same as this leg's.
func (l *leg) stats(last *string) LegStats {
	var s LegStats
	if l.setup != nil {
		s.Side = l.setup.side
	}
	if l.fd < 0 {
		return s
	}
	s.CongestionControl, _ = tcpinfo.LikelyCongestionControl(int(l.fd), *last)
	*last = s.CongestionControl
	info, err := tcpinfo.Get(int(l.fd))
	if err != nil {
		return s
	}
	s.Known = true
	s.RTT = info.RTT
	if info.Has(tcpinfo.FieldMinRTT) {
		s.MinRTT = info.MinRTT
	}
	s.Retransmits = info.TotalRetrans
	s.BytesSent = info.BytesSent
	s.BytesRetrans = info.BytesRetrans
	s.BytesAcked = info.BytesAcked
	s.BytesReceived = info.BytesReceived
	s.DeliveryRateBps = info.DeliveryRateBps
	return s
}

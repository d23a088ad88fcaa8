package relay

import (
	"time"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/sys/socket"
	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/words/units"
)

// account counts a flow that is about to be closed, and queues its record.
func (w *worker) account(f *flow) {
	st := f.route.state
	w.addSums()
	rec := report.Record{Reason: report.EndClean, ClientLeg: report.UnknownLeg(), TargetLeg: report.UnknownLeg()}
	if f.closing != nil && f.closing.reason != "" {
		rec.Reason, rec.Err = f.closing.reason, f.closing.err
	}
	if f.isIntegrity {
		rec.Reason = report.EndCheck
	}
	rec.ByPeer = f.paired != nil && f.paired.byPeer
	if rec.ByPeer {
		st.endedByPeer.add(rec.Reason)
	} else {
		st.ended.add(rec.Reason)
	}
	switch rec.Reason {
	case report.EndClean, report.EndIdle, report.EndHalfClosed, report.EndDrain, report.EndCheck:
	case report.EndTargetRefused, report.EndTargetUnreached, report.EndTargetUnknown, report.EndNoHop:
		st.refused.Add(1)
	case report.EndBadProxyHeader, report.EndDenied:
		st.denied.Add(1)
	default:
		st.errors.Add(1)
	}
	if w.relay.opts.OnFlows == nil {
		return
	}
	rec.Flow, rec.Name = report.ID(f.id), f.name
	rec.Tunnel = f.route.tunnel.Name
	rec.Client = report.Address{AddrPort: f.origin()}
	rec.Listen = report.Address{AddrPort: w.listenAddr(f)}
	rec.Target = report.Address{AddrPort: f.target()}
	rec.Hop = f.hopName()
	rec.Elapsed = units.Seconds(w.clock() - f.start)
	rec.Connect = f.connect()
	rec.Start = time.Now().Add(-rec.Elapsed.Duration())
	rec.BytesUp = max(0, f.dirs[up].bytes)
	rec.BytesDown = max(0, f.dirs[down].bytes)
	if wanted := w.relay.opts.LegStats; wanted == nil || wanted(rec.Elapsed.Duration()) {
		w.setUpLegs(f)
		rec.ClientLeg = f.legs[client].record(&w.algorithms[client])
		if f.connected() {
			rec.TargetLeg = f.legs[target].record(&w.algorithms[target])
		}
	}
	f.pairedRecord(&rec)
	w.ended = append(w.ended, rec)
}

// leftover reports the bytes that the flow's peers have not received.
func (w *worker) leftover(f *flow) Leftover {
	w.lookAtPaired(f)
	l := Leftover{
		Tunnel:     f.route.tunnel.Name,
		Client:     f.client,
		Target:     f.target(),
		Delivering: f.end.delivering() || f.delivered(),
	}
	f.sockets(func(fds [2]int) {
		l.ToClientBytes, l.ToTargetBytes = f.undelivered(client, fds), f.undelivered(target, fds)
	})
	return l
}

// undelivered is the number of bytes that were received for a leg's peer and
// not acknowledged by it.
func (f *flow) undelivered(s side, fds [2]int) int64 {
	from := s.other()
	n := int(f.dirs[from].held)
	if fd := fds[s]; fd >= 0 {
		queued := socket.Unacknowledged(fd)
		if f.end.shut[s] && queued > 0 {
			queued-- // the FIN, which counts as a byte
		}
		n += queued
	}
	if fd := fds[from]; fd >= 0 && f.end.in[from] == inputOpen {
		n += socket.Unread(fd)
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

// record queries the kernel about a leg that ends. last is the previous leg's
// congestion control, likely the same as this leg's.
func (l *leg) record(last *string) report.LegRecord {
	r := report.UnknownLeg()
	if l.setup != nil {
		r.Side = l.setup.side
	}
	if l.fd < 0 {
		return r
	}
	r.CongestionControl, _ = tcpinfo.LikelyCongestionControl(int(l.fd), *last)
	*last = r.CongestionControl
	info, err := tcpinfo.Get(int(l.fd))
	if err != nil {
		return r
	}
	r.RTT = units.Seconds(info.RTT)
	if info.Has(tcpinfo.FieldMinRTT) {
		r.MinRTT = units.Seconds(info.MinRTT)
	}
	r.BytesSent, r.BytesRetransmitted = int64(info.BytesSent), int64(info.BytesRetrans)
	r.Retransmits = int64(info.Missed())
	return r
}

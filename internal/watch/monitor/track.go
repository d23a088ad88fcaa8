package monitor

import (
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/find/doctor"
	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/words/units"
)

// flowTrack is the state of a running flow.
type flowTrack struct {
	flow   Flow
	tunnel *tunnelTrack
	pass   uint64        // the latest that saw the flow
	born   time.Duration // times are of the monitor's clock
	seen   time.Duration // time of the latest sample
	legs   [2]legTrack
	series series

	lanesAt time.Duration // of the lanes of flow

	overPeer  peerBytes // what counts for the peer
	connected bool      // how long its target took is observed
	moved     bool      // it moved data in the last interval, or data is unacknowledged
	underWay  bool      // data waits for a peer
	judged    bool      // there were two samples to compare
	limits    *limits   // nil: it has not moved data while judged
}

// limits is what has limited a flow.
type limits struct {
	moving time.Duration // time in which it moved data, while judged
	causes []causeTime
}

// legTrack is the state of a leg.
type legTrack struct {
	// The samples to compare: base is one to two spans old, and next will
	// replace it. Nil while nothing is sent.
	base, next *doctor.Sample
}

// causeTime is the time in which a cause limited a flow.
type causeTime struct {
	leg   flow.Leg
	cause doctor.Cause
	time  time.Duration
}

// A cause is determined from samples at least minSpan and spanRTTs round trips
// apart, once a leg is that old.
const (
	minSpan  = 2 * time.Second
	spanRTTs = 20
)

var legNames = [2]flow.Leg{flow.ClientLeg, flow.TargetLeg}

// visit processes the sample of a flow.
func (m *Monitor) visit(s *flow.Sample, at time.Duration) {
	f := m.flows[s.ID]
	if f == nil {
		f = m.begun(s, at)
	}
	f.pass = m.pass
	span := at - f.seen
	var sent [2]flow.Sent
	f.named(s)
	flow := &f.flow
	flow.State = s.State
	if flow.Target.AddrPort != s.Target {
		flow.Target.AddrPort, flow.Hop = s.Target, s.Hop
	}
	flow.Client.AddrPort = s.Client // changes when a PROXY header arrives
	up, down := max(0, s.BytesUp-flow.BytesUp), max(0, s.BytesDown-flow.BytesDown)
	flow.BytesUp, flow.BytesDown = s.BytesUp, s.BytesDown
	flow.UpBps, flow.DownBps = bps(up, span), bps(down, span)
	f.tunnel.moved(up, down)
	f.movedOverPeer(flow.Peer, flow.BytesUp, flow.BytesDown)
	f.series.add(m.opts.Interval, f.seen-f.born, at-f.born, up, down)
	m.connected(f, s.Tunnel, s.Hop, s.Connect, s.Name)
	for i := range f.legs {
		leg := &s.ClientLeg
		if i == 1 {
			leg = &s.TargetLeg
		}
		switch {
		case s.Unchanged:
			f.legs[i].quiet()
			continue
		case s.Skipped:
			continue
		}
		sent[i] = f.legs[i].update(&flow.Legs[i], leg)
		f.tunnel.sent(i, sent[i], leg.Known && !leg.Info.Has(tcpinfo.FieldBytesSent))
	}
	f.tunnel.hopSent(flow.Hop, sent[1])
	if !s.Skipped && !s.Unchanged {
		flow.Lanes = carriedBy(s.Lanes, flow.Lanes, at-f.lanesAt)
		f.lanesAt = at
	}
	if !s.Skipped {
		f.underWay = !s.Unchanged && (s.ClientLeg.Waiting() > 0 || s.TargetLeg.Waiting() > 0)
	}
	f.moved = up+down > 0 || f.underWay
	switch {
	case !f.moved:
		f.unlimited()
	case !s.Skipped:
		f.judge(s, at, sent, m.opts.Glance)
	}
	if f.moved && f.judged {
		f.limited(flow.CauseLeg, flow.Cause, span)
		for i := range f.legs {
			f.tunnel.limitedSeconds(i, flow.Legs[i].Cause, span)
		}
	}
	f.seen = at
}

func (m *Monitor) begun(s *flow.Sample, at time.Duration) *flowTrack {
	f := &flowTrack{tunnel: m.tunnel(s.Tunnel)}
	f.born = at - max(0, time.Since(s.Start))
	f.seen = f.born
	f.flow = Flow{
		ID:     s.ID,
		Tunnel: s.Tunnel,
		Client: flow.Address{AddrPort: s.Client},
		Listen: flow.Address{AddrPort: s.Listen},
		Target: flow.Address{AddrPort: s.Target},
		Hop:    s.Hop,
		Start:  s.Start,
	}
	for i := range f.flow.Legs {
		f.flow.Legs[i] = FlowLeg{BytesSent: -1, BytesRetransmitted: -1, Retransmits: -1}
	}
	m.flows[s.ID] = f
	return f
}

// named follows what may become known after a flow's begin: a name from a PROXY header, a peer once the
// flow has a hop.
func (f *flowTrack) named(s *flow.Sample) {
	f.flow.Name = s.Name
	if f.flow.Peer != s.Peer {
		f.flow.Peer, f.flow.Site = s.Peer, flow.SiteOf(s.Peer)
	}
}

// carriedBy fills in the rates of lanes since a sample before.
func carriedBy(now, before []flow.Lane, span time.Duration) []flow.Lane {
	for i := range now {
		n := &now[i]
		for _, was := range before {
			if was.Local == n.Local {
				n.SentBps, n.ReceivedBps = bps(max(0, n.BytesSent-was.BytesSent), span), bps(max(0, n.BytesReceived-was.BytesReceived), span)
			}
		}
	}
	return now
}

func bps(bytes int64, span time.Duration) float64 {
	if span <= 0 {
		return 0
	}
	return float64(bytes) * 8 / span.Seconds()
}

// quiet records an interval without activity on a leg.
func (t *legTrack) quiet() { t.base, t.next = nil, nil }

// update processes the sample of a leg, and returns what it has sent since the last one.
func (t *legTrack) update(leg *FlowLeg, s *flow.LegSample) (sent flow.Sent) {
	if s.Side != "" {
		leg.Side = s.Side
	}
	if s.CongestionControl != "" {
		leg.CongestionControl = s.CongestionControl
	}
	if !s.Known {
		t.quiet()
		return sent
	}
	if s.Info.Has(tcpinfo.FieldRTT) {
		leg.RTT = units.Seconds(s.Info.RTT)
	}
	if s.Info.Has(tcpinfo.FieldMinRTT) {
		leg.MinRTT = units.Seconds(s.Info.MinRTT)
	}
	if s.Info.Has(tcpinfo.FieldBytesSent) {
		sent = leg.count(flow.Sent{Bytes: int64(s.Info.BytesSent), Again: int64(s.Info.BytesRetrans), Missed: int64(s.Info.Missed())})
	}
	return sent
}

// count processes a leg's counters, and returns what is new; negative means unknown. A
// counter that decreases starts a new count.
func (l *FlowLeg) count(now flow.Sent) (more flow.Sent) {
	if now.Bytes < 0 || now.Again < 0 {
		return more
	}
	more = flow.Sent{
		Bytes:  max(0, now.Bytes-max(0, l.BytesSent)),
		Again:  max(0, now.Again-max(0, l.BytesRetransmitted)),
		Missed: max(0, now.Missed-max(0, l.Retransmits)),
	}
	l.BytesSent, l.BytesRetransmitted, l.Retransmits = now.Bytes, now.Again, now.Missed
	l.RetransmittedLevel = now.Level()
	return more
}

// unlimited clears the causes of a flow that moves nothing.
func (f *flowTrack) unlimited() {
	f.flow.Cause, f.flow.CauseLeg = "", ""
	for i := range f.flow.Legs {
		f.flow.Legs[i].Cause = ""
	}
}

// judge determines the cause that limits a flow. It is the cause of the leg
// that sent most. If none sent, it is that of the leg with most unacknowledged
// segments.
func (f *flowTrack) judge(s *flow.Sample, at time.Duration, sent [2]flow.Sent, glance glance) {
	f.unlimited()
	f.judged = false
	for i, leg := range [2]*flow.LegSample{&s.ClientLeg, &s.TargetLeg} {
		if leg.Known {
			cause, ok := f.legs[i].look(leg, at, glance)
			f.flow.Legs[i].Cause = cause
			f.judged = f.judged || ok
		}
	}
	most := 0
	if a, b := sent[0].Bytes, sent[1].Bytes; b > a || a == b && s.TargetLeg.Waiting() > s.ClientLeg.Waiting() {
		most = 1
	}
	if f.flow.Cause = f.flow.Legs[most].Cause; f.flow.Cause != "" {
		f.flow.CauseLeg = legNames[most]
	}
}

// glance returns the cause that limits a sender between two samples.
type glance func(before, after doctor.Sample) doctor.Cause

// look returns the cause that limits the sender of a leg; false at its first
// sample.
func (t *legTrack) look(s *flow.LegSample, at time.Duration, glance glance) (cause doctor.Cause, ok bool) {
	now := doctor.Sample{At: at, Info: s.Info, SendBuffer: s.SendBuffer, SendQueued: s.SendQueued, RecvQueue: -1, CPU: -1}
	if t.base == nil {
		t.base = new(doctor.Sample)
		*t.base = now
		t.next = t.base
		return "", false
	}
	if at > t.base.At && s.Info.BusyTime > t.base.Info.BusyTime {
		cause = glance(*t.base, now)
	}
	if s.MemoryLimited {
		cause = doctor.SendBuffer // the kernel sees a program that has little to send
	}
	if at-t.next.At >= max(minSpan, spanRTTs*s.Info.RTT) {
		old := t.base
		if old == t.next {
			old = new(doctor.Sample)
		}
		*old = now
		t.base, t.next = t.next, old
	}
	return cause, true
}

// limited adds to the time in which a flow moved data, and a cause limited it.
func (f *flowTrack) limited(leg flow.Leg, cause doctor.Cause, span time.Duration) {
	if f.limits == nil {
		f.limits = &limits{}
	}
	l := f.limits
	l.moving += span
	for i := range l.causes {
		if c := &l.causes[i]; c.leg == leg && c.cause == cause {
			c.time += span
			return
		}
	}
	l.causes = append(l.causes, causeTime{leg, cause, span})
}

// finish completes the record of a flow and removes the flow.
func (m *Monitor) finish(r *Record) {
	r.End = r.Start.Add(r.Elapsed.Duration())
	f := m.flows[r.Flow]
	m.connected(f, r.Tunnel, r.Hop, r.Connect, r.Name)
	if f == nil {
		m.finishUnseen(r)
		return
	}
	delete(m.flows, r.Flow)
	r.Start = f.flow.Start
	up, down := max(0, r.BytesUp-f.flow.BytesUp), max(0, r.BytesDown-f.flow.BytesDown)
	f.tunnel.moved(up, down)
	f.movedOverPeer(r.Peer, r.BytesUp, r.BytesDown)
	f.series.add(m.opts.Interval, f.seen-f.born, r.Elapsed.Duration(), up, down)
	r.Goodput = f.series.view(r.Elapsed.Duration())
	var sent [2]flow.Sent
	for i, leg := range [2]*flow.LegRecord{&r.ClientLeg, &r.TargetLeg} {
		sent[i] = f.flow.Legs[i].count(leg.Sent())
		f.tunnel.sent(i, sent[i], false)
		if leg.BytesSent < 0 {
			f.remember(i, leg)
		}
	}
	f.tunnel.hopSent(r.Hop, sent[1])
	if f.limits == nil {
		return
	}
	var most causeTime
	for _, c := range f.limits.causes {
		if c.time > most.time {
			most = c
		}
	}
	if moving := f.limits.moving; most.cause != "" && moving > 0 {
		r.Cause, r.CauseLeg = most.cause, most.leg
		r.CauseShare = min(1, most.time.Seconds()/moving.Seconds())
	}
}

// finishUnseen completes the record of a flow that began and ended between two
// samples. There may be thousands per second.
func (m *Monitor) finishUnseen(r *Record) {
	t := m.tunnel(r.Tunnel)
	t.moved(max(0, r.BytesUp), max(0, r.BytesDown))
	t.movedOver(r.Peer, max(0, r.BytesUp), max(0, r.BytesDown))
	for i, leg := range [2]*flow.LegRecord{&r.ClientLeg, &r.TargetLeg} {
		sent := (&FlowLeg{}).count(leg.Sent())
		t.sent(i, sent, false)
		if i == 1 {
			t.hopSent(r.Hop, sent)
		}
	}
	if r.Elapsed.Duration() > m.opts.Interval {
		var s series
		s.add(m.opts.Interval, 0, r.Elapsed.Duration(), r.BytesUp, r.BytesDown)
		r.Goodput = s.view(r.Elapsed.Duration())
		return
	}
	both := []float32{float32(bps(r.BytesUp, r.Elapsed.Duration())), float32(bps(r.BytesDown, r.Elapsed.Duration()))}
	r.Goodput = Series{Step: units.Seconds(m.opts.Interval), UpBps: both[:1:1], DownBps: both[1:]}
}

// remember fills in a leg's record from the latest sample if the kernel's final
// figures are missing.
func (f *flowTrack) remember(i int, r *flow.LegRecord) {
	leg := &f.flow.Legs[i]
	r.BytesSent, r.BytesRetransmitted, r.Retransmits = leg.BytesSent, leg.BytesRetransmitted, leg.Retransmits
	if r.Side == "" {
		r.Side = leg.Side
	}
	if r.CongestionControl == "" {
		r.CongestionControl = leg.CongestionControl
	}
	if r.RTT == 0 {
		r.RTT, r.MinRTT = leg.RTT, leg.MinRTT
	}
}

package monitor

import (
	"cmp"
	"math/bits"
	"net/netip"
	"sync"
	"time"
	"unique"

	"longhaul/internal/carry/flow"
	"longhaul/internal/find/doctor"
	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/words/units"
)

// flowTrack is the state of a running flow. Most of many flows are idle: what only a flow that moves data has is
// behind motion, and what flows have in common is kept once for all of them.
type flowTrack struct {
	tunnel *tunnelTrack
	words  unique.Handle[words]
	ends   unique.Handle[ends]
	name   flow.Name
	client [16]byte      // its zone is among the ends
	start  int64         // by the wall clock, in nanoseconds since 1970
	born   time.Duration // times are of the monitor's clock
	seen   time.Duration // time of the latest sample

	up, down int64 // bytes
	legs     [2]legCounts
	moves    [][2]float32 // of its series
	motion   *motion      // nil: at rest, or seen once with nothing under way
	limits   *limits      // nil: it has not moved data while judged

	clientPort uint16
	doublings  uint8 // of the series' step
	connected  bool  // how long its target took is observed
	moved      bool  // it moved data in the last interval, or data is unacknowledged
	judged     bool  // there were two samples to compare
	rests      bool  // nothing had happened to it before the latest sample; the next one comes when something does
}

// words are what texts say of a flow. Flows of a tunnel have few combinations of them.
type words struct {
	state, peer, hop string
	legs             [2]struct{ side, congestionControl string }
}

// ends are the addresses of a flow that others may have too, with what is lost of its client's in 16 bytes.
type ends struct {
	listen, target netip.AddrPort
	zone           string
	bits           int // of the client's address: 32 or 128; 0 while it is not known
}

// legCounts are the latest figures of a leg. Unknown counts are negative, unknown times zero.
type legCounts struct {
	rtt, minRTT uint32 // microseconds
	flow.Sent
}

// motion is what a flow has while it moves data.
type motion struct {
	upBps, downBps float64
	legs           [2]legTrack
	lanes          *laneTrack // nil: it has not several
	most           int8       // the leg whose cause is the flow's
	underWay       bool       // data waits for a peer
}

// laneTrack is the latest sample of a flow's lanes.
type laneTrack struct {
	lanes []flow.Lane
	at    time.Duration
}

// rests reports whether there is nothing to remember.
func (mo *motion) rests() bool {
	return mo.upBps == 0 && mo.downBps == 0 && !mo.underWay && mo.legs[0].base == nil && mo.legs[1].base == nil && mo.lanes == nil
}

// limits is what has limited a flow.
type limits struct {
	moving time.Duration // time in which it moved data, while judged
	causes []causeTime
}

// legTrack is the state of a leg that moves data.
type legTrack struct {
	cause doctor.Cause
	seen  bool // there was a sample
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

// samples are used again: flows that move now and then would leave many.
var samples = sync.Pool{New: func() any { return new(doctor.Sample) }}

var legNames = [2]flow.Leg{flow.ClientLeg, flow.TargetLeg}

// visit processes the sample of a flow.
func (m *Monitor) visit(s *flow.Sample, at time.Duration) {
	f := m.flows[s.ID]
	if f == nil {
		f = m.begun(s, at)
	} else {
		f.tally(-1)
	}
	from := f.seen
	if f.rests { // it moved what is new at the end of that time
		from = max(from, at-time.Duration(max(1, s.Waited))*m.step)
	}
	span := at - from
	up, down := max(0, s.BytesUp-f.up), max(0, s.BytesDown-f.down)
	f.up, f.down = s.BytesUp, s.BytesDown
	f.addToSeries(m.opts.Interval, from, at, up, down)
	m.connected(f, s.Tunnel, s.Hop, s.Connect, s.Name)
	sent := f.describe(s)
	for i, leg := range [2]*flow.LegSample{&s.ClientLeg, &s.TargetLeg} {
		f.tunnel.sent(i, sent[i], !s.Skipped && !s.Unchanged && leg.Known && !leg.Info.Has(tcpinfo.FieldBytesSent))
	}
	f.tunnel.hopSent(s.Hop, sent[1])
	waited := f.motion != nil && f.motion.underWay
	m.moves(f, s, at, span, up, down, sent)
	if f.moved && f.judged {
		if !waited && !f.motion.underWay && s.Moved > 0 && s.Moved < s.Waited { // it moved now and then
			span = span * time.Duration(s.Moved) / time.Duration(s.Waited)
		}
		leg, cause := f.motion.cause()
		f.limited(leg, cause, span)
		for i := range f.motion.legs {
			f.tunnel.limitedSeconds(i, f.motion.legs[i].cause, span)
		}
	}
	f.seen, f.rests = at, s.Unchanged
	if up, down := f.rate(); up+down > 0 {
		m.rates[s.ID] = up + down
	} else {
		delete(m.rates, s.ID)
	}
	if f.motion != nil && f.motion.rests() {
		f.motion = nil
	}
	f.tally(1)
}

func (m *Monitor) begun(s *flow.Sample, at time.Duration) *flowTrack {
	f := &flowTrack{tunnel: m.tunnel(s.Tunnel), words: noWords, ends: noEnds, start: s.Start.UnixNano()}
	f.born = at - max(0, time.Since(s.Start))
	f.seen = f.born
	for i := range f.legs {
		f.legs[i].Sent = flow.Sent{Bytes: -1, Again: -1, Missed: -1}
	}
	m.flows[s.ID] = f
	return f
}

var (
	noWords = unique.Make(words{})
	noEnds  = unique.Make(ends{})
)

// describe takes what a sample says of a flow, and returns what its legs have sent since the sample before. A
// name comes from a PROXY header, a peer and a target once the flow has a hop.
func (f *flowTrack) describe(s *flow.Sample) (sent [2]flow.Sent) {
	client := s.Client.Addr()
	f.name, f.client, f.clientPort = s.Name, client.As16(), s.Client.Port()
	was := f.words.Value()
	now := was
	now.state, now.peer, now.hop = s.State, s.Peer, s.Hop
	if !s.Skipped && !s.Unchanged {
		for i, leg := range [2]*flow.LegSample{&s.ClientLeg, &s.TargetLeg} {
			w := &now.legs[i]
			w.side, w.congestionControl = cmp.Or(leg.Side, w.side), cmp.Or(leg.CongestionControl, w.congestionControl)
			sent[i] = f.legs[i].update(leg)
		}
	}
	if now != was {
		f.words = unique.Make(now)
	}
	if e := (ends{s.Listen, s.Target, client.Zone(), client.BitLen()}); e != f.ends.Value() {
		f.ends = unique.Make(e)
	}
	return sent
}

// moves follows a flow's motion by a sample.
func (m *Monitor) moves(f *flowTrack, s *flow.Sample, at, span time.Duration, up, down int64, sent [2]flow.Sent) {
	underWay := f.motion != nil && f.motion.underWay
	if !s.Skipped {
		underWay = !s.Unchanged && (s.ClientLeg.Waiting() > 0 || s.TargetLeg.Waiting() > 0)
	}
	first, before := f.seen == f.born, f.moved
	f.moved = up+down > 0 || underWay
	if f.motion == nil {
		// A flow that is seen for the first time may have had all that it gets, see legTrack.look.
		if len(s.Lanes) == 0 && !underWay && (first || !f.moved) {
			return
		}
		f.motion = new(motion)
		for i := range f.motion.legs {
			f.motion.legs[i].seen = before
		}
	}
	mo := f.motion
	mo.upBps, mo.downBps, mo.underWay = bps(up, span), bps(down, span), underWay
	if !s.Skipped && !s.Unchanged {
		mo.lanes = mo.lanes.next(s.Lanes, at)
	}
	if s.State == flow.StateParked {
		mo.lanes = nil
	}
	for i, leg := range [2]*flow.LegSample{&s.ClientLeg, &s.TargetLeg} {
		if s.Unchanged || !s.Skipped && !leg.Known {
			mo.legs[i].quiet()
		}
	}
	switch {
	case !f.moved:
		mo.unlimited()
	case !s.Skipped:
		f.judged = mo.judge(s, at, sent, m.opts.Glance)
	}
}

// show fills in the flow as others see it. It makes no Flow of its own: that is some 500 bytes, for each of
// thousands of flows and each reader, each second.
func (m *Monitor) show(id flow.ID, f *flowTrack, out *Flow) {
	out.SampledAgo = units.Seconds(max(0, m.passBegan-f.seen))
	if f.rests {
		out.SampledAgo = min(out.SampledAgo, units.Seconds(m.lag))
	}
	w, e := f.words.Value(), f.ends.Value()
	out.ID, out.Name, out.Site, out.Peer = id, f.name, flow.SiteOf(w.peer), w.peer
	out.Tunnel, out.State, out.Hop = f.tunnel.last.Name, w.state, w.hop
	out.Client.AddrPort = netip.AddrPortFrom(e.client(f.client), f.clientPort)
	out.Listen.AddrPort, out.Target.AddrPort = e.listen, e.target
	out.Start, out.BytesUp, out.BytesDown = time.Unix(0, f.start), f.up, f.down
	for i := range out.Legs {
		out.Legs[i] = f.leg(i)
	}
	out.UpBps, out.DownBps = f.rate()
	out.Lanes, out.CauseLeg, out.Cause = nil, "", ""
	mo := f.motion
	if mo == nil {
		return
	}
	if mo.lanes != nil {
		out.Lanes = mo.lanes.lanes
	}
	out.CauseLeg, out.Cause = mo.cause()
	for i := range out.Legs {
		out.Legs[i].Cause = mo.legs[i].cause
	}
}

// rate is what the flow moved in a second before its latest sample, in bits.
func (f *flowTrack) rate() (up, down float64) {
	switch {
	case f.motion != nil:
		return f.motion.upBps, f.motion.downBps
	case f.moved:
		return bps(f.up, f.seen-f.born), bps(f.down, f.seen-f.born)
	}
	return 0, 0
}

// client is a client's address.
func (e *ends) client(a [16]byte) netip.Addr {
	switch at := netip.AddrFrom16(a); e.bits {
	case 0:
		return netip.Addr{}
	case 32:
		return at.Unmap()
	default:
		return at.WithZone(e.zone)
	}
}

// series is what the flow has moved by steps of its life; first is their length at first.
func (f *flowTrack) series(first time.Duration) series {
	if len(f.moves) == 0 {
		return series{}
	}
	return series{step: first << f.doublings, bytes: f.moves}
}

// addToSeries adds what the flow has moved between two times of the monitor's clock.
func (f *flowTrack) addToSeries(first, from, to time.Duration, up, down int64) {
	s := f.series(first)
	s.add(first, from-f.born, to-f.born, up, down)
	f.keepSeries(first, s)
}

// goodput is the series as others see it, at an age of the flow.
func (f *flowTrack) goodput(first, life time.Duration) Series {
	s := f.series(first)
	view := s.view(life)
	f.keepSeries(first, s)
	return view
}

func (f *flowTrack) keepSeries(first time.Duration, s series) {
	if f.moves = s.bytes; len(s.bytes) > 0 {
		f.doublings = uint8(bits.Len64(uint64(s.step/first)) - 1)
	}
}

// leg is a leg as others see it, without its cause.
func (f *flowTrack) leg(i int) FlowLeg {
	c, w := &f.legs[i], f.words.Value().legs[i]
	return FlowLeg{Side: w.side, CongestionControl: w.congestionControl, RTT: microseconds(c.rtt), MinRTT: microseconds(c.minRTT),
		BytesSent: c.Bytes, BytesRetransmitted: c.Again, Retransmits: c.Missed, RetransmittedLevel: c.Level()}
}

func microseconds(n uint32) units.Seconds { return units.Seconds(time.Duration(n) * time.Microsecond) }

// next takes another sample of the lanes, and fills in their rates since the one before.
func (t *laneTrack) next(now []flow.Lane, at time.Duration) *laneTrack {
	if len(now) == 0 {
		return nil
	}
	if t != nil {
		now = carriedBy(now, t.lanes, at-t.at)
	}
	return &laneTrack{now, at}
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
func (t *legTrack) quiet() {
	if t.seen = false; t.base == nil {
		return
	}
	if t.next != t.base {
		samples.Put(t.next)
	}
	samples.Put(t.base)
	t.base, t.next = nil, nil
}

// update processes the sample of a leg, and returns what it has sent since the last one.
func (c *legCounts) update(s *flow.LegSample) (sent flow.Sent) {
	if !s.Known {
		return sent
	}
	if s.Info.Has(tcpinfo.FieldRTT) {
		c.rtt = uint32(s.Info.RTT.Microseconds())
	}
	if s.Info.Has(tcpinfo.FieldMinRTT) {
		c.minRTT = uint32(s.Info.MinRTT.Microseconds())
	}
	if s.Info.Has(tcpinfo.FieldBytesSent) {
		sent = c.count(flow.Sent{Bytes: int64(s.Info.BytesSent), Again: int64(s.Info.BytesRetrans), Missed: int64(s.Info.Missed())})
	}
	return sent
}

// count processes a leg's counters, and returns what is new; negative means unknown. A
// counter that decreases starts a new count.
func (c *legCounts) count(now flow.Sent) (more flow.Sent) {
	if now.Bytes < 0 || now.Again < 0 {
		return more
	}
	more = flow.Sent{
		Bytes:  max(0, now.Bytes-max(0, c.Bytes)),
		Again:  max(0, now.Again-max(0, c.Again)),
		Missed: max(0, now.Missed-max(0, c.Missed)),
	}
	c.Sent = now
	return more
}

// unlimited clears the causes of a flow that moves nothing.
func (mo *motion) unlimited() {
	for i := range mo.legs {
		mo.legs[i].cause = ""
	}
}

// judge determines the cause that limits a flow. It is the cause of the leg
// that sent most. If none sent, it is that of the leg with most unacknowledged
// segments. It returns false at the first sample of every leg.
func (mo *motion) judge(s *flow.Sample, at time.Duration, sent [2]flow.Sent, glance glance) (judged bool) {
	mo.unlimited()
	for i, leg := range [2]*flow.LegSample{&s.ClientLeg, &s.TargetLeg} {
		if leg.Known {
			cause, ok := mo.legs[i].look(leg, at, glance)
			mo.legs[i].cause = cause
			judged = judged || ok
		}
	}
	mo.most = 0
	if a, b := sent[0].Bytes, sent[1].Bytes; b > a || a == b && s.TargetLeg.Waiting() > s.ClientLeg.Waiting() {
		mo.most = 1
	}
	return judged
}

// cause is what limits the flow, and on which leg; empty: nothing stands out.
func (mo *motion) cause() (leg flow.Leg, cause doctor.Cause) {
	if cause = mo.legs[mo.most].cause; cause != "" {
		leg = legNames[mo.most]
	}
	return leg, cause
}

// glance returns the cause that limits a sender between two samples.
type glance func(before, after doctor.Sample) doctor.Cause

// look returns the cause that limits the sender of a leg; false while there is no
// sample to compare with. A leg of which nothing is under way at its first sample may
// have had all that it gets, as with thousands of flows that begin and wait: only the
// second sample is kept.
func (t *legTrack) look(s *flow.LegSample, at time.Duration, glance glance) (cause doctor.Cause, ok bool) {
	first := !t.seen
	if t.seen = true; first && s.Waiting() == 0 {
		return "", false
	}
	now := doctor.Sample{At: at, Info: s.Info, SendBuffer: s.SendBuffer, SendQueued: s.SendQueued, RecvQueue: -1, CPU: -1}
	if t.base == nil {
		t.base = samples.Get().(*doctor.Sample)
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
			old = samples.Get().(*doctor.Sample)
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
	m.forget(r.Flow, f)
	r.Start = time.Unix(0, f.start)
	from, to := f.seen, f.born+r.Elapsed.Duration()
	if f.rests { // it would have had its sample after this time
		from = max(from, to-m.lag-m.step)
	}
	f.addToSeries(m.opts.Interval, from, to, max(0, r.BytesUp-f.up), max(0, r.BytesDown-f.down))
	r.Goodput = f.goodput(m.opts.Interval, r.Elapsed.Duration())
	var sent [2]flow.Sent
	for i, leg := range [2]*flow.LegRecord{&r.ClientLeg, &r.TargetLeg} {
		sent[i] = f.legs[i].count(leg.Sent())
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
	for i, leg := range [2]*flow.LegRecord{&r.ClientLeg, &r.TargetLeg} {
		sent := (&legCounts{}).count(leg.Sent())
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
	leg := f.leg(i)
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

package monitor

import (
	"maps"
	"slices"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/find/doctor"
	"longhaul/internal/words/units"
)

// tunnelTrack is the state of a tunnel.
type tunnelTrack struct {
	last     Tunnel                   // from the overview
	here     bool                     // in the latest overview
	up, down int64                    // of all its flows so far
	base     struct{ up, down int64 } // of these, of its lives before the latest reload that took it away and brought it back
	legs     [2]legTotals
	goodput  distribution
	duration distribution
	outage   distribution
	points   points

	// Of the current interval.
	upBefore, downBefore int64
	flows                int64                // that are known
	causes               map[doctor.Cause]int // of flows that moved data before their latest sample
	hops                 map[string]*hopTrack // by name
}

// legTotals sums all legs of one kind of a tunnel.
type legTotals struct {
	sent    sentTotals
	unknown bool // the kernel does not count sent bytes
	limited map[doctor.Cause]time.Duration
	rtts    rtts // of the flows
	lowest  rtts // ever, of each flow
}

// hopTrack sums the legs to a hop.
type hopTrack struct {
	sent    sentTotals
	rtts    rtts
	connect distribution
}

// sentTotals counts what legs sent: ever, in the interval, and in the last minute.
type sentTotals struct {
	ever, now flow.Sent
	parts     [recentParts]flow.Sent // of the last minute, the running one at 0
	began     time.Duration          // of the running part
}

// The last minute has parts, so that its end moves on.
const (
	recentParts = 7 // the running one and a minute
	recentPart  = 10 * time.Second
)

func (s *sentTotals) add(more flow.Sent) {
	s.ever, s.now, s.parts[0] = s.ever.Plus(more), s.now.Plus(more), s.parts[0].Plus(more)
}

// recent is what was sent in the last minute.
func (s *sentTotals) recent() (sum flow.Sent) {
	for _, p := range s.parts {
		sum = sum.Plus(p)
	}
	return sum
}

// next begins the next interval.
func (s *sentTotals) next(at time.Duration) {
	s.now = flow.Sent{}
	if at-s.began >= recentParts*recentPart { // the host slept, or the leg is new
		s.parts, s.began = [recentParts]flow.Sent{}, at
	}
	for ; at-s.began >= recentPart; s.began += recentPart {
		copy(s.parts[1:], s.parts[:])
		s.parts[0] = flow.Sent{}
	}
}

func (m *Monitor) tunnel(name string) *tunnelTrack {
	t := m.tunnels[name]
	if t == nil {
		t = &tunnelTrack{last: Tunnel{Tunnel: flow.Tunnel{Name: name, State: "removed"}}, causes: map[doctor.Cause]int{}, hops: map[string]*hopTrack{}}
		for i := range t.legs {
			t.legs[i].rtts, t.legs[i].lowest = rtts{}, rtts{}
		}
		m.tunnels[name] = t
	}
	return t
}

// sent counts the bytes that a leg sent in the last interval; uncounted: the
// kernel does not count them.
func (t *tunnelTrack) sent(i int, now flow.Sent, uncounted bool) {
	l := &t.legs[i]
	l.unknown = l.unknown || uncounted
	l.sent.add(now)
}

// update takes the state of the tunnel at the begin of an interval. If the relay counts from 0, since the tunnel was
// removed and came back between two samples, what it has counted before is added: a sum never falls.
func (t *tunnelTrack) update(now *Tunnel) {
	if now.Life != t.last.Life {
		t.base.up, t.base.down = t.up, t.down
	}
	since := t.last.Since
	if since.IsZero() || t.last.State != now.State {
		since = time.Now()
	}
	t.here, t.last = true, *now
	t.last.Since = since
}

func (t *tunnelTrack) hop(name string) *hopTrack {
	h := t.hops[name]
	if h == nil {
		h = &hopTrack{rtts: rtts{}}
		t.hops[name] = h
	}
	return h
}

func (t *tunnelTrack) hopSent(name string, now flow.Sent) {
	if name != "" && now.Bytes > 0 {
		t.hop(name).sent.add(now)
	}
}

func (t *tunnelTrack) limitedSeconds(i int, cause doctor.Cause, span time.Duration) {
	if cause == "" {
		return
	}
	if t.legs[i].limited == nil {
		t.legs[i].limited = map[doctor.Cause]time.Duration{}
	}
	t.legs[i].limited[cause] += span
}

// beginPass begins an interval.
func (m *Monitor) beginPass(o *Overview) {
	m.pass++
	now := m.now()
	m.step = max(m.opts.Interval, now-m.passBegan)
	m.passBegan = now
	for _, t := range m.tunnels {
		t.here, t.last.FlowsNow = false, t.flows
	}
	for i := range o.Removed {
		if name := o.Removed[i].Name; slices.ContainsFunc(o.Tunnels, func(t Tunnel) bool { return t.Name == name }) {
			continue // it got flows in the moment in which it came back, and they count no more
		}
		t := m.tunnel(o.Removed[i].Name)
		t.update(&Tunnel{Tunnel: o.Removed[i], LastCheck: t.last.LastCheck})
		t.here = false
	}
	for i := range o.Tunnels {
		t := m.tunnel(o.Tunnels[i].Name)
		t.update(&o.Tunnels[i])
	}
}

// endPass makes a snapshot from the samples of a pass.
func (m *Monitor) endPass(o *Overview) *Snapshot {
	m.shrinkRates()
	at := m.now()
	span := at - m.at
	m.at = at
	s := &Snapshot{At: time.Now(), Interval: units.Seconds(span), Sequence: m.pass, Took: units.Seconds(at - m.passBegan), Lag: units.Seconds(m.lag), Process: o.Process, FlowsNow: o.FlowsNow,
		Pairs: o.Pairs, PairTotals: m.pairs(o.Pairs)}
	order := make([]string, 0, len(m.tunnels))
	for i := range o.Tunnels {
		order = append(order, o.Tunnels[i].Name)
	}
	for _, name := range slices.Sorted(maps.Keys(m.tunnels)) {
		t := m.tunnels[name]
		switch {
		case t.here:
		case t.flows == 0 && t.last.FlowsNow == 0:
			delete(m.tunnels, name)
		default:
			t.last.State, t.last.Listen, t.last.Tunnel.Hops = "removed", nil, nil
			t.last.Usability = flow.Usability{State: flow.Down, Problems: []flow.Problem{{Reason: flow.ReasonRemoved, Detail: "is removed"}}}
			order = append(order, name)
		}
	}
	var sum moment
	sessions := sessionRTTs(o.Pairs)
	for _, name := range order {
		t := m.tunnels[name]
		q := t.moment(at, span)
		now := t.snapshot(span)
		for i := range now.Hops {
			if rtt := sessions.of(&now, i); rtt > 0 {
				now.Hops[i].RTT = rtt
			}
		}
		s.Tunnels = append(s.Tunnels, now)
		t.points.add(q)
		t.next(at)
		sum.up, sum.down = sum.up+q.up, sum.down+q.down
		sum.sent, sum.again = sum.sent+q.sent, sum.again+q.again
		sum.flows += q.flows
	}
	if s.Tunnels == nil {
		s.Tunnels = []Tunnel{}
	}
	sum.at, sum.span = at, float32(span.Seconds())
	m.all.add(sum)
	return s
}

// tally adds a running flow to its tunnel's sums, or with -1 takes it out before it changes.
func (f *flowTrack) tally(n int) {
	t := f.tunnel
	t.flows += int64(n)
	if f.motion != nil && f.moved {
		if _, cause := f.motion.cause(); cause != "" {
			if t.causes[cause] += n; t.causes[cause] == 0 {
				delete(t.causes, cause)
			}
		}
	}
	for i := range f.legs {
		t.legs[i].rtts.add(f.legs[i].rtt, n)
		t.legs[i].lowest.add(f.legs[i].minRTT, n)
	}
	if hop := f.words.Value().hop; hop != "" && f.legs[1].rtt > 0 {
		t.hop(hop).rtts.add(f.legs[1].rtt, n)
	}
}

func (t *tunnelTrack) moment(at, span time.Duration) moment {
	t.up, t.down = max(t.up, t.base.up+t.last.BytesUp), max(t.down, t.base.down+t.last.BytesDown)
	now := t.legs[0].sent.now.Plus(t.legs[1].sent.now)
	return moment{
		at: at, span: float32(span.Seconds()),
		up: float32(t.up - t.upBefore), down: float32(t.down - t.downBefore),
		sent: float32(now.Bytes), again: float32(now.Again),
		flows: int32(t.last.FlowsNow),
	}
}

func (t *tunnelTrack) snapshot(span time.Duration) Tunnel {
	out := t.last
	out.BytesUp, out.BytesDown = t.up, t.down
	out.UpBps, out.DownBps = bps(t.up-t.upBefore, span), bps(t.down-t.downBefore, span)
	out.Causes = maps.Clone(t.causes)
	for i := range t.legs {
		out.Legs[i] = t.legs[i].snapshot(legNames[i])
	}
	out.Distributions = Distributions{t.goodput.snapshot(), t.duration.snapshot(), t.outage.snapshot()}
	out.Hops = make([]Hop, len(out.Tunnel.Hops))
	for i := range out.Hops {
		h := &out.Hops[i]
		*h = Hop{Hop: out.Tunnel.Hops[i], RetransmittedShare: -1, Connect: noDistribution}
		if now := t.hops[h.Name]; now != nil {
			if rtt := now.rtts.quantiles(0.5)[0]; rtt > 0 {
				h.RTT = microseconds(rtt)
			}
			recent := now.sent.recent()
			h.RetransmittedShare, h.RetransmittedLevel = recent.Share(), recent.Level()
			h.Connect = now.connect.snapshot()
			h.BytesSent, h.BytesRetransmitted = now.sent.ever.Bytes, now.sent.ever.Again
		}
		if t.legs[1].unknown {
			h.BytesSent, h.BytesRetransmitted = -1, -1
		}
	}
	return out
}

// next begins the next interval.
func (t *tunnelTrack) next(at time.Duration) {
	t.upBefore, t.downBefore = t.up, t.down
	for name, h := range t.hops {
		// A hop that was removed from the configuration is forgotten with its
		// flows.
		if len(h.rtts) == 0 && !slices.ContainsFunc(t.last.Tunnel.Hops, func(c flow.Hop) bool { return c.Name == name }) {
			delete(t.hops, name)
		}
		h.sent.next(at)
	}
	for i := range t.legs {
		t.legs[i].sent.next(at)
	}
}

func (l *legTotals) snapshot(leg flow.Leg) LegTotals {
	recent, of := l.sent.recent(), l.rtts.quantiles(0.5, 0.99)
	out := LegTotals{
		Leg:                leg,
		BytesSent:          l.sent.ever.Bytes,
		BytesRetransmitted: l.sent.ever.Again,
		RetransmittedShare: recent.Share(),
		RetransmittedLevel: recent.Level(),
		Recent:             recent,
		MinRTT:             microseconds(l.lowest.quantiles(0)[0]),
		MedianRTT:          microseconds(of[0]),
		P99RTT:             microseconds(of[1]),
		LimitedSeconds:     make(map[doctor.Cause]float64, len(l.limited)),
	}
	if l.unknown {
		out.BytesSent, out.BytesRetransmitted = -1, -1
	}
	for cause, t := range l.limited {
		out.LimitedSeconds[cause] = t.Seconds()
	}
	return out
}

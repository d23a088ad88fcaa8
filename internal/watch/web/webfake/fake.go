// Package webfake simulates a busy relay: a data source for the dashboard's
// tests, with any number of flows.
package webfake

import (
	"context"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/find/doctor"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/words/units"
)

// Monitor is a simulated relay. Its figures change with each Step.
type Monitor struct {
	random *rand.Rand

	mu       sync.Mutex
	last     *monitor.Snapshot
	points   map[string][]monitor.Point
	series   map[flow.ID]*monitor.Series
	readers  map[chan *monitor.Snapshot]struct{}
	flows    []monitor.Flow
	nextFlow flow.ID
	began    time.Time
}

// Tunnels lists the names of its tunnels.
var Tunnels = []string{"to-site-b", "from-site-b", "replication", "zone-transfers"}

var (
	flowCauses = []doctor.Cause{"", doctor.ReceiverWindow, doctor.Loss, doctor.Application, doctor.Reader, doctor.SendBuffer}
	legCauses  = []doctor.Cause{doctor.ReceiverWindow, doctor.Loss, doctor.Reader}
)

// New makes a Monitor with a number of flows and ten minutes of points.
func New(flows int) *Monitor {
	m := &Monitor{
		random: rand.New(rand.NewPCG(1, 2)), points: map[string][]monitor.Point{}, series: map[flow.ID]*monitor.Series{},
		readers: map[chan *monitor.Snapshot]struct{}{}, began: time.Now().Add(-51 * time.Hour),
	}
	for range flows {
		m.flows = append(m.flows, m.newFlow())
	}
	now := time.Now()
	for at := now.Add(-10 * time.Minute); at.Before(now); at = at.Add(time.Second) {
		m.addPoints(at)
	}
	m.Step()
	return m
}

func (m *Monitor) newFlow() monitor.Flow {
	m.nextFlow++
	n := int(m.nextFlow)
	now := time.Now()
	f := monitor.Flow{
		ID: m.nextFlow, Tunnel: Tunnels[n%len(Tunnels)], State: "open",
		Client: address(fmt.Sprintf("10.10.%d.%d:%d", n/200%250, 10+n%200, 32768+n%20000)),
		Listen: address("10.10.10.20:6000"),
		Target: address("10.20.20.20:6000"), Hop: "relay-b.example.net:6000",
		Start: now.Add(-time.Duration(m.random.IntN(3600*1000)) * time.Millisecond).Truncate(time.Millisecond),
		Cause: flowCauses[n%len(flowCauses)], Name: Name(n),
	}
	if f.Tunnel == Tunnels[0] {
		f.Peer, f.Site = Peers[0]+"/b1", Peers[0]
	}
	if f.Cause != "" {
		f.CauseLeg = flow.TargetLeg
	}
	f.Legs = [2]monitor.FlowLeg{
		{Side: "lan", CongestionControl: "cubic", RTT: units.Seconds(300 * time.Microsecond), MinRTT: units.Seconds(90 * time.Microsecond)},
		{Side: "wan", CongestionControl: "bbr", RTT: units.Seconds(time.Duration(62+n%9) * time.Millisecond), MinRTT: units.Seconds(61 * time.Millisecond), Cause: f.Cause},
	}
	if n%10 == 7 { // paired, with several lanes
		for lane := range 4 {
			f.Lanes = append(f.Lanes, flow.Lane{Local: address(fmt.Sprintf("10.10.10.20:%d", 40000+lane)), BytesSent: 40e6, BytesReceived: 1e6,
				SentBps: 5e6 + 1e6*float64(lane), ReceivedBps: 2e5, RTT: units.Seconds(62 * time.Millisecond), Leaving: lane == 3})
		}
	}
	up := make([]float32, 40)
	down := make([]float32, 40)
	for i := range up {
		up[i] = float32(20e6 + 5e6*math.Sin(float64(i+n)/4) + 3e6*m.random.Float64())
		down[i] = float32(1e6 * m.random.Float64())
	}
	m.series[f.ID] = &monitor.Series{Step: units.Seconds(4 * time.Second), UpBps: up, DownBps: down}
	return f
}

// Name is that of a flow by its number.
func Name(n int) flow.Name {
	return flow.Name{0x5f, 0x3a, 6: 0x40, 8: 0x80, 14: byte(n >> 8), 15: byte(n)}
}

func address(s string) flow.Address { return flow.Address{AddrPort: netip.MustParseAddrPort(s)} }

func (m *Monitor) addPoints(at time.Time) {
	t := float64(at.UnixMilli()) / 1000
	for i, name := range Tunnels {
		p := monitor.Point{
			At: at, Tunnel: name,
			UpBps:   (3e8 + 1e8*math.Sin(t/40+float64(i)) + 3e7*m.random.Float64()) / float64(i+1),
			DownBps: (8e7 + 3e7*math.Cos(t/60) + 1e7*m.random.Float64()) / float64(i+1),
			Flows:   int64(len(m.flows) / len(Tunnels)), RetransmittedShare: 0.0004 + 0.0006*m.random.Float64(),
		}
		if i == 2 {
			p.RetransmittedShare = 0.011 + 0.006*m.random.Float64()
		}
		kept := append(m.points[name], p)
		m.points[name] = kept[max(0, len(kept)-600):]
	}
}

// Step advances by a second and sends the snapshot to the subscribers.
func (m *Monitor) Step() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.addPoints(now)
	for i := range m.flows {
		f := &m.flows[i]
		f.UpBps = 2e7 * m.random.Float64()
		f.DownBps = 1e6 * m.random.Float64()
		f.BytesUp += int64(f.UpBps / 8)
		f.BytesDown += int64(f.DownBps / 8)
		f.Legs[0].BytesSent, f.Legs[1].BytesSent = f.BytesDown, f.BytesUp+f.BytesUp/900
		f.Legs[1].BytesRetransmitted, f.Legs[1].Retransmits = f.BytesUp/900, f.BytesUp/900/1448
		for j := range f.Legs {
			l := &f.Legs[j]
			l.RetransmittedLevel = flow.Sent{Bytes: l.BytesSent, Again: l.BytesRetransmitted, Missed: l.Retransmits}.Level()
		}
		s := m.series[f.ID]
		s.UpBps = append(slices.Clone(s.UpBps[max(0, len(s.UpBps)-monitor.SeriesLen+1):]), float32(f.UpBps))
		s.DownBps = append(slices.Clone(s.DownBps[max(0, len(s.DownBps)-monitor.SeriesLen+1):]), float32(f.DownBps))
	}
	s := &monitor.Snapshot{
		At: now, Sequence: 1, Interval: units.Seconds(time.Second), Lag: units.Seconds(7 * time.Second), FlowsNow: int64(len(m.flows)),
		Process: monitor.Process{
			Version: "longhaul 0.8.0", PID: 4711, StartedAt: m.began, ResidentBytes: 61 << 20, Descriptors: 2*len(m.flows) + 20,
			DescriptorLimit: 1 << 20, CPUSeconds: now.Sub(m.began).Seconds() * 0.31, MemoryUsed: 83 << 20, MemoryLimit: 512 << 20,
			AcceptErrors: map[string]int64{}, CongestionControl: map[string]bool{"bbr": true, "haul": true},
		},
	}
	if m.last != nil {
		s.Sequence = m.last.Sequence + 1
	}
	for i, name := range Tunnels {
		s.Tunnels = append(s.Tunnels, m.tunnel(i, name, now))
	}
	s.Pairs, s.PairTotals = m.pairs(now)
	m.last = s
	for r := range m.readers {
		select {
		case <-r:
		default:
		}
		r <- s
	}
}

func (m *Monitor) tunnel(i int, name string, now time.Time) monitor.Tunnel {
	p := m.points[name][len(m.points[name])-1]
	age := int64(now.Sub(m.began).Seconds())
	up, down := flow.Sent{Bytes: int64(p.UpBps / 8 * 60)}, flow.Sent{Bytes: int64(p.DownBps / 8 * 60)}
	up.Again = int64(float64(up.Bytes) * p.RetransmittedShare)
	up.Missed = up.Again / 1448
	t := monitor.Tunnel{
		Tunnel: flow.Tunnel{
			Name: name, State: "listening", Usability: flow.Usability{State: flow.Up, Usable: true, Since: m.began}, Listen: []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr("10.10.10.20"), uint16(6000+i))},
			Balance: "ordered", FlowsNow: p.Flows, FlowsPeak: p.Flows + 120, FlowsTotal: 81234 + age, BytesUp: age * 3e7, BytesDown: age * 8e6,
			Denied: int64(3 * i), Limited: int64(i), Refused: 2, Errors: 17,
			Ended: []flow.Ended{
				{EndedBy: "client", Reason: flow.EndClientReset, Flows: 412}, {EndedBy: "both", Reason: flow.EndClean, Flows: 80021},
				{EndedBy: "relay", Reason: flow.EndIdle, Flows: 37}, {EndedBy: "target", Reason: flow.EndTargetReset, Flows: 764},
			},
		},
		Since: m.began, UpBps: p.UpBps, DownBps: p.DownBps,
		Causes: map[doctor.Cause]int{},
		Legs: [2]monitor.LegTotals{
			{Leg: flow.ClientLeg, BytesSent: age * 8e6, BytesRetransmitted: age * 40, RetransmittedShare: 0, RetransmittedLevel: down.Level(), Recent: down,
				MinRTT: units.Seconds(80 * time.Microsecond), MedianRTT: units.Seconds(300 * time.Microsecond), P99RTT: units.Seconds(2 * time.Millisecond),
				LimitedSeconds: map[doctor.Cause]float64{doctor.Application: float64(age) * 0.7}},
			{Leg: flow.TargetLeg, BytesSent: age * 3e7, BytesRetransmitted: age * 40000, RetransmittedShare: up.Share(), RetransmittedLevel: up.Level(), Recent: up,
				MinRTT: units.Seconds(61 * time.Millisecond), MedianRTT: units.Seconds(63400 * time.Microsecond), P99RTT: units.Seconds(88 * time.Millisecond),
				LimitedSeconds: map[doctor.Cause]float64{}},
		},
		Hops: []monitor.Hop{{
			Hop: flow.Hop{
				Name: "relay-b.example.net:6000", State: flow.HopUp, Usable: true, Since: m.began, Weight: 1, Priority: 1,
				FlowsNow: p.Flows, FlowsTotal: 81000 + age, RTT: units.Seconds(63400 * time.Microsecond),
			},
			RetransmittedShare: up.Share(), RetransmittedLevel: up.Level(),
		}},
	}
	for j, c := range legCauses {
		t.Legs[1].LimitedSeconds[c] = float64(age) * float64(3-j) * 0.4 / float64(i+1)
	}
	for _, f := range m.flows {
		if f.Tunnel == name && f.Cause != "" {
			t.Causes[f.Cause]++
		}
	}
	switch i {
	case 0:
		t.FlowsLimit = 2000
		t.LastCheck = &monitor.Check{At: now.Add(-42 * time.Second), OK: true, Verdict: "segments are lost between relay-a and relay-b: 0.2 % up (21 of 10021)", Hops: []monitor.CheckHop{
			{From: "this relay", To: "relay-b", State: "lossy", RTT: units.Seconds(63 * time.Millisecond), LossShare: 0.0021, UpBps: 812e6, DownBps: 790e6},
			{From: "relay-b", To: "relay-c", State: "whole", RTT: units.Seconds(4 * time.Millisecond), LossShare: 0.00002, UpBps: 2.1e9, DownBps: 2e9},
			{From: "relay-c", To: "db.site-b.example.net:6000", State: "whole", RTT: units.Seconds(400 * time.Microsecond), LossShare: -1},
		}}
	case 2:
		t.Balance = "least-flows"
		t.Hops = append(t.Hops, monitor.Hop{
			Hop: flow.Hop{
				Name: "standby.example.net:6000", State: flow.HopDown, Since: now.Add(-7 * time.Minute), Weight: 1, Priority: 2,
				Failed: 12, LastError: "connection refused",
			},
			RetransmittedShare: -1,
		})
	}
	return t
}

// Snapshot is the latest snapshot.
func (m *Monitor) Snapshot() *monitor.Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last
}

// Flows are the flows as of the latest Step.
func (m *Monitor) Flows() iter.Seq[*monitor.Flow] {
	return func(yield func(*monitor.Flow) bool) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, f := range m.flows {
			if !yield(&f) {
				return
			}
		}
	}
}

// Moving are those that move at least so many bits per second.
func (m *Monitor) Moving(least *float64) iter.Seq[*monitor.Flow] {
	return func(yield func(*monitor.Flow) bool) {
		for f := range m.Flows() {
			if bps := f.UpBps + f.DownBps; bps > 0 && bps >= *least && !yield(f) {
				return
			}
		}
	}
}

// Known is the number of flows as of the latest Step.
func (m *Monitor) Known() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.flows)
}

// Subscribe delivers the latest snapshot and then that of each Step.
func (m *Monitor) Subscribe(ctx context.Context) <-chan *monitor.Snapshot {
	r := make(chan *monitor.Snapshot, 1)
	m.mu.Lock()
	defer m.mu.Unlock()
	r <- m.last
	m.readers[r] = struct{}{}
	context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.readers, r)
	})
	return r
}

// Flow returns one of the flows.
func (m *Monitor) Flow(id flow.ID) (monitor.Flow, monitor.Series, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range m.flows {
		if f.ID == id {
			return f, *m.series[id], true
		}
	}
	return monitor.Flow{}, monitor.Series{}, false
}

// Points returns the points of a tunnel, or of all together.
func (m *Monitor) Points(tunnel string, since time.Time) []monitor.Point {
	m.mu.Lock()
	defer m.mu.Unlock()
	if tunnel != "" {
		return after(m.points[tunnel], since)
	}
	all := after(m.points[Tunnels[0]], since)
	for _, name := range Tunnels[1:] {
		for i, p := range after(m.points[name], since) {
			all[i].Tunnel = ""
			all[i].UpBps += p.UpBps
			all[i].DownBps += p.DownBps
			all[i].RetransmittedShare += p.RetransmittedShare / float64(len(Tunnels))
		}
	}
	return all
}

func after(all []monitor.Point, since time.Time) []monitor.Point {
	i, _ := slices.BinarySearchFunc(all, since, func(p monitor.Point, at time.Time) int { return p.At.Compare(at) })
	return slices.Clone(all[i:])
}

// End ends a flow and returns its record.
func (m *Monitor) End(id flow.ID) monitor.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.flows, func(f monitor.Flow) bool { return f.ID == id })
	f := m.flows[i]
	m.flows = slices.Delete(slices.Clone(m.flows), i, i+1)
	return m.record(f, time.Now())
}

func (m *Monitor) record(f monitor.Flow, end time.Time) monitor.Record {
	leg := func(l monitor.FlowLeg) flow.LegRecord {
		return flow.LegRecord{Side: l.Side, CongestionControl: l.CongestionControl, RTT: l.RTT, MinRTT: l.MinRTT,
			BytesSent: l.BytesSent, BytesRetransmitted: l.BytesRetransmitted, Retransmits: l.BytesRetransmitted / 1448}
	}
	r := monitor.Record{
		Record: flow.Record{
			Flow: f.ID, Tunnel: f.Tunnel, Client: f.Client, Target: f.Target, Hop: f.Hop, Start: f.Start, Elapsed: units.Seconds(end.Sub(f.Start)),
			Name: f.Name, Peer: f.Peer, BytesUp: f.BytesUp, BytesDown: f.BytesDown, ClientLeg: leg(f.Legs[0]), TargetLeg: leg(f.Legs[1]), Reason: flow.EndClean,
		},
		Relay: "relay-a", Site: f.Site, End: end, Goodput: *m.series[f.ID], Cause: f.Cause, CauseLeg: f.CauseLeg, EndedBy: flow.EndClean.EndedBy(),
	}
	if r.Cause != "" {
		r.CauseShare = 0.64
	}
	return r
}

// Events returns a failure of a hop, and a pair that was lost.
func (m *Monitor) Events(since time.Time) (all []flow.Event) {
	for _, e := range []flow.Event{
		{At: m.began, Kind: flow.EventRelay, From: "stopped", To: "serving"},
		{At: m.began.Add(time.Minute), Kind: flow.EventPair, Tunnel: "to-site-b", Subject: "site-b", From: "up", To: "lost", Reason: "connection reset by peer"},
		{At: m.began.Add(2 * time.Minute), Kind: flow.EventHop, Tunnel: "replication", Subject: "standby.example.net:6000", From: "up", To: "down", Reason: "no answer in time"},
	} {
		if !e.At.Before(since) {
			all = append(all, e)
		}
	}
	return all
}

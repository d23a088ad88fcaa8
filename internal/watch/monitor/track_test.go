package monitor

import (
	"math"
	"net/netip"
	"reflect"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"longhaul/internal/carry/flow"
	"longhaul/internal/find/doctor"
	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/words/units"
)

// info is a leg's TCP_INFO as tcpinfo reads it.
func info(rtt time.Duration, sent, again uint64, busy time.Duration) tcpinfo.Info {
	i := tcpinfo.Info{RTT: rtt, MinRTT: rtt, BytesSent: sent, BytesRetrans: again, BusyTime: busy}
	for _, f := range []tcpinfo.Field{tcpinfo.FieldRTT, tcpinfo.FieldMinRTT, tcpinfo.FieldBytesSent, tcpinfo.FieldBytesRetrans, tcpinfo.FieldBusyTime} {
		i.Know(f)
	}
	return i
}

// TestMemoryIsACause holds that a lane which waits for the relay's memory counts as one whose sender has
// too small a buffer, whatever its kernel shows.
func TestMemoryIsACause(t *testing.T) {
	var leg legTrack
	application := func(_, _ doctor.Sample) doctor.Cause { return doctor.Application }
	for k, limited := range []bool{false, false, true, false} {
		s := flow.LegSample{Known: true, MemoryLimited: limited, Info: info(time.Millisecond, uint64(k), 0, time.Duration(k)*time.Second)}
		s.Info.Unacked = 1
		cause, ok := leg.look(&s, time.Duration(k)*time.Second, application)
		want := doctor.Application
		if limited {
			want = doctor.SendBuffer
		}
		if ok != (k > 0) || ok && cause != want {
			t.Errorf("look %d: %q, %v, want %q", k, cause, ok, want)
		}
	}
}

// A flow shows the name that came with its PROXY header, and the peer that its hop leads to.
func TestNamesOfFlows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{overview: Overview{FlowsNow: 1, Tunnels: tunnels(flow.Tunnel{Name: "t", State: "listening", FlowsNow: 1})}}
		m := New(s.options())
		m.Start()
		defer m.Close()
		f := flowNow(1, 0, 0)
		for _, want := range []Flow{
			{},
			{Name: flow.Name{1}},
			{Name: flow.Name{1}, Peer: "site-b/b1", Site: "site-b"},
			{Name: flow.Name{1}, Peer: "site-b/b2", Site: "site-b"},
			{Name: flow.Name{1}, Peer: "site-c"},
		} {
			f.Name, f.Peer = want.Name, want.Peer
			s.flows = []flow.Sample{f}
			settled(s)
			if got := listed(m)[0]; got.Name != want.Name || got.Peer != want.Peer || got.Site != want.Site {
				t.Errorf("the flow has %v, %q, %q; want %v, %q, %q", got.Name, got.Site, got.Peer, want.Name, want.Site, want.Peer)
			}
		}
	})
}

func TestCauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{overview: Overview{FlowsNow: 1, Tunnels: tunnels(flow.Tunnel{Name: "t", State: "listening", FlowsNow: 1, Hops: []flow.Hop{{Name: "far:80"}}})}}
		opts := s.options()
		cause := map[time.Duration]doctor.Cause{} // by the leg's RTT
		var spans []time.Duration
		opts.Glance = func(before, after doctor.Sample) doctor.Cause {
			if before.SendBuffer != 1000 || after.SendQueued != 10 || after.CPU >= 0 || after.RecvQueue >= 0 {
				t.Errorf("glance at %+v", after)
			}
			spans = append(spans, after.At-before.At)
			return cause[after.Info.RTT]
		}
		var records []Record
		opts.OnRecords = func(r []Record) { records = append(records, r...) }
		m := New(opts)
		m.Start()
		defer m.Close()

		const near, far = 2 * time.Millisecond, 80 * time.Millisecond
		f := flowNow(1, 0, 0)
		busy := time.Duration(0)
		sent := uint64(0)
		step := func(moves bool) {
			if moves {
				busy += time.Second
				sent += 1000
				f.BytesUp += 900
			}
			f.Unchanged = !moves
			f.ClientLeg = flow.LegSample{Side: "lan", CongestionControl: "cubic", Known: true, Info: info(near, 0, 0, 0), SendBuffer: 1000, SendQueued: 10}
			f.TargetLeg = flow.LegSample{Side: "wan", CongestionControl: "haul", Known: true, Info: info(far, sent, sent/10, busy), SendBuffer: 1000, SendQueued: 10}
			f.TargetLeg.Info.Unacked = 1
			if !moves {
				f.ClientLeg, f.TargetLeg = flow.LegSample{}, flow.LegSample{}
			}
			s.flows = []flow.Sample{f}
			settled(s)
		}
		cause[far], cause[near] = doctor.RandomLoss, doctor.Application
		step(true) // the first sample gives no cause
		if now := listed(m)[0]; now.Cause != "" {
			t.Errorf("after one sample: %+v", now)
		}
		for range 6 {
			step(true)
		}
		now := listed(m)[0]
		if now.Cause != doctor.RandomLoss || now.CauseLeg != flow.TargetLeg || now.Legs[0].Cause != "" || now.Legs[1].Cause != doctor.RandomLoss {
			t.Errorf("the flow does not show what its legs say: %+v", now)
		}
		want := FlowLeg{Side: "wan", CongestionControl: "haul", RTT: units.Seconds(far), MinRTT: units.Seconds(far), BytesSent: 7000, BytesRetransmitted: 700, Retransmits: 0, Cause: doctor.RandomLoss}
		if now.Legs[1] != want {
			t.Errorf("leg %+v, want %+v", now.Legs[1], want)
		}
		tunnel := m.Snapshot().Tunnels[0]
		if !reflect.DeepEqual(tunnel.Causes, map[doctor.Cause]int{doctor.RandomLoss: 1}) {
			t.Errorf("causes %v", tunnel.Causes)
		}
		leg := tunnel.Legs[1]
		if leg.BytesSent != 7000 || leg.BytesRetransmitted != 700 || leg.RetransmittedShare != 0.1 || leg.MedianRTT.Duration() != far || leg.MinRTT.Duration() != far || leg.P99RTT.Duration() != far ||
			!reflect.DeepEqual(leg.LimitedSeconds, map[doctor.Cause]float64{doctor.RandomLoss: 6}) {
			t.Errorf("leg %+v", leg)
		}
		if hop := tunnel.Hops[0]; hop.RTT.Duration() != far || hop.RetransmittedShare != 0.1 || hop.BytesSent != 7000 || hop.BytesRetransmitted != 700 {
			t.Errorf("hop %+v", hop)
		}
		if longest := spans[len(spans)-1]; longest < minSpan || longest > 2*minSpan+time.Second {
			t.Errorf("causes are told from %v", spans)
		}

		cause[far] = doctor.Pacing
		step(true)
		step(true)
		for range 80 { // more than a minute without activity
			step(false)
		}
		if got := m.Snapshot().Tunnels[0]; len(got.Causes) != 0 || got.Legs[1].RetransmittedShare != -1 || got.Legs[1].MedianRTT.Duration() != far {
			t.Errorf("idle: %+v", got)
		}
		s.flows = nil
		r := record(f, time.Since(f.Start))
		r.TargetLeg = flow.LegRecord{BytesSent: 9500, BytesRetransmitted: 950, Retransmits: 3}
		m.Ended([]Record{r})
		settled(s)
		if len(records) != 1 {
			t.Fatalf("%d records", len(records))
		}
		r = records[0]
		if r.Cause != doctor.RandomLoss || r.CauseLeg != flow.TargetLeg || r.CauseShare != 0.75 {
			t.Errorf("cause %s of %s leg, share %v", r.Cause, r.CauseLeg, r.CauseShare)
		}
		// The end of the client's leg was unreadable.
		if r.ClientLeg.Side != "lan" || r.ClientLeg.CongestionControl != "cubic" || r.ClientLeg.RTT.Duration() != near || r.ClientLeg.BytesSent != 0 {
			t.Errorf("client leg %+v", r.ClientLeg)
		}
		leg = m.Snapshot().Tunnels[0].Legs[1]
		if leg.BytesSent != 9500 || leg.BytesRetransmitted != 950 || leg.LimitedSeconds[doctor.Pacing] != 2 {
			t.Errorf("after the end: %+v", leg)
		}
	})
}

// TestNothingStoodOut: a flow has no cause if no cause held longer than none
// did.
func TestNothingStoodOut(t *testing.T) {
	m := New((&script{}).options())
	f := &flowTrack{tunnel: m.tunnel("t"), words: noWords, ends: noEnds}
	f.limited("", "", 6*time.Second)
	f.limited(flow.ClientLeg, doctor.Application, 4*time.Second)
	m.flows[1] = f
	r := Record{Record: flow.Record{Flow: 1, Elapsed: units.Seconds(time.Second)}}
	m.finish(&r)
	if r.Cause != "" || r.CauseLeg != "" || r.CauseShare != 0 {
		t.Errorf("the record has a cause that held for less of the time than none: %+v", r)
	}
}

// TestAStalledFlowIsLimited: a flow with unacknowledged data counts as moving
// data, so that it gets a cause.
// A flow that moves nothing is limited while data waits: for an acknowledgement, or for room in
// the peer's window.
func TestAStalledFlowIsLimited(t *testing.T) {
	for name, waits := range map[string]func(*tcpinfo.Info){
		"for an acknowledgement": func(i *tcpinfo.Info) { i.Unacked = 3 },
		"for a window":           func(i *tcpinfo.Info) { i.NotsentBytes = 3000 },
	} {
		t.Run(name, func(t *testing.T) { stalledFlow(t, waits) })
	}
}

func stalledFlow(t *testing.T, waits func(*tcpinfo.Info)) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{overview: Overview{Tunnels: tunnels(flow.Tunnel{Name: "t"})}}
		opts := s.options()
		opts.Glance = func(_, _ doctor.Sample) doctor.Cause { return doctor.BlackHole }
		m := New(opts)
		m.Start()
		defer m.Close()
		f := flowNow(1, 10, 0)
		for i := range 4 {
			f.TargetLeg.Known, f.TargetLeg.Info = true, info(time.Millisecond, 10, 0, time.Duration(i)*time.Second)
			waits(&f.TargetLeg.Info)
			s.flows = []flow.Sample{f}
			settled(s)
		}
		f.Skipped, f.TargetLeg.Known = true, false
		s.flows[0] = f
		settled(s)
		if now := listed(m)[0]; now.Cause != doctor.BlackHole || m.Snapshot().Tunnels[0].Causes[doctor.BlackHole] != 1 {
			t.Errorf("a stalled flow has not the cause that holds it up: %+v", now)
		}
	})
}

// TestIdleFlowIsSmall holds that a flow that has moved a little keeps nothing of its motion, and no sample of the
// kernel's at all if everything is acknowledged when the first one is taken. One that goes on has a cause from
// its third sample on.
func TestIdleFlowIsSmall(t *testing.T) {
	if n := unsafe.Sizeof(flowTrack{}); n > 208 {
		t.Errorf("a flow has %d bytes, a class of the allocator has 208", n)
	}
	synctest.Test(t, func(t *testing.T) {
		s := &script{overview: Overview{Tunnels: tunnels(flow.Tunnel{Name: "t"})}}
		opts := s.options()
		opts.Glance = func(_, _ doctor.Sample) doctor.Cause { return doctor.Application }
		m := New(opts)
		m.Start()
		defer m.Close()
		f := flowNow(1, 100, 100)
		next := func() *motion {
			s.flows = []flow.Sample{f}
			settled(s)
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.flows[1].motion
		}
		known := func(sent uint64) {
			f.Unchanged = false
			f.TargetLeg.Known, f.TargetLeg.Info = true, info(time.Millisecond, sent, 0, time.Duration(sent)*time.Millisecond)
		}
		known(100)
		if mo, now := next(), listed(m)[0]; mo != nil || now.UpBps != 800 || now.DownBps != 800 {
			t.Errorf("after a first sample with everything acknowledged: %+v, %+v", mo, now)
		}
		f.Unchanged = true
		if mo := next(); mo != nil {
			t.Errorf("an idle flow has %+v", mo)
		}
		for i := range 4 {
			f.BytesUp += 100
			known(uint64(f.BytesUp))
			next()
			if got, want := listed(m)[0].Cause == doctor.Application, i >= 2; got != want {
				t.Errorf("sample %d: there is a cause: %v, want %v", i, got, want)
			}
		}
		f.Unchanged = true
		if mo := next(); mo != nil {
			t.Errorf("a flow that has become idle has %+v", mo)
		}
	})
}

// TestManyIdleFlows holds what the monitor has of each of 50 000 idle flows, with its tables, to 304 bytes.
func TestManyIdleFlows(t *testing.T) {
	const flows, most = 50_000, 304
	state := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	opts := (&script{}).options()
	opts.Sample = func(visit func([]flow.Sample)) (int, error) {
		one := []flow.Sample{flowNow(0, 64, 64)}
		s := &one[0]
		s.ClientLeg = flow.LegSample{Side: "lan", CongestionControl: "cubic", Known: true, Info: info(time.Millisecond, 64, 0, 0)}
		s.TargetLeg = s.ClientLeg
		for id := range flow.ID(flows) {
			s.ID = id + 1
			s.Client = netip.AddrPortFrom(clientAddr.Addr(), uint16(id))
			visit(one)
		}
		return 0, nil
	}
	m := New(opts)
	before := state()
	for range 3 {
		m.sample()
	}
	if each := int64(state()-before) / flows; each > most {
		t.Errorf("an idle flow has %d bytes", each)
	} else {
		t.Logf("%d bytes for each idle flow", each)
	}
	runtime.KeepAlive(m)
}

func TestCountersThatGoBackwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{overview: Overview{Tunnels: tunnels(flow.Tunnel{Name: "t"})}}
		m := New(s.options())
		m.Start()
		defer m.Close()
		for i, tt := range []struct {
			up   int64
			sent uint64
			legs int64
			bps  float64
		}{
			{1000, 1000, 1000, 0},
			{400, 300, 1000, 0},
			{500, 350, 1050, 800},
		} {
			f := flowNow(1, tt.up, 0)
			f.TargetLeg.Known, f.TargetLeg.Info = true, info(time.Millisecond, tt.sent, tt.sent/2, 0)
			s.flows = []flow.Sample{f}
			settled(s)
			got := m.Snapshot().Tunnels[0]
			if got.BytesUp != 1000 || got.Legs[1].BytesSent != tt.legs {
				t.Errorf("step %d: %d bytes up, %d sent; want 1000 and %d", i, got.BytesUp, got.Legs[1].BytesSent, tt.legs)
			}
			if now := listed(m)[0]; i > 0 && now.UpBps != tt.bps {
				t.Errorf("step %d: %v b/s, want %v", i, now.UpBps, tt.bps)
			}
		}
	})
}

// TestClockSteps: when the wall clock steps, a flow keeps its start, duration
// and rates; only its end uses the new clock.
func TestClockSteps(t *testing.T) {
	for _, by := range []time.Duration{time.Hour, -time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			s := &script{overview: Overview{Tunnels: tunnels(flow.Tunnel{Name: "t"})}}
			var records []Record
			opts := s.options()
			opts.OnRecords = func(r []Record) { records = append(records, r...) }
			m := New(opts)
			m.Start()
			defer m.Close()
			f := flowNow(1, 0, 0)
			began := f.Start
			for range 3 {
				f.BytesUp += 1000
				s.flows = []flow.Sample{f}
				settled(s)
				f.Start = began.Add(by) // the relay computes it from the present
			}
			if now := listed(m)[0]; !now.Start.Equal(began) || now.UpBps != 8000 {
				t.Errorf("a step of the clock changes the beginning or the rate of a flow: %+v", now)
			}
			r := record(f, 3*time.Second)
			s.flows = nil
			m.Ended([]Record{r})
			settled(s)
			if r = records[0]; !r.Start.Equal(began) || !r.End.Equal(began.Add(by+3*time.Second)) || r.Elapsed.Duration() != 3*time.Second || len(r.Goodput.UpBps) != 3 {
				t.Errorf("a step of the clock changes more of a record than its end: %+v", r)
			}
		})
	}
}

// TestFlowsBetweenTwoSamples: such flows count in every total and have a
// record.
func TestFlowsBetweenTwoSamples(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{overview: Overview{Tunnels: tunnels(flow.Tunnel{Name: "t", Hops: []flow.Hop{{Name: "far:80"}}})}}
		var records []Record
		opts := s.options()
		opts.OnRecords = func(r []Record) { records = append(records, r...) }
		m := New(opts)
		m.Start()
		defer m.Close()
		for i, tt := range []struct {
			elapsed time.Duration
			steps   int
			first   float32
		}{{500 * time.Millisecond, 1, 16000}, {time.Second, 1, 8000}, {2500 * time.Millisecond, 3, 3200}, {0, 1, 0}} {
			r := record(flowNow(flow.ID(i+1), 1000, 500), tt.elapsed)
			r.TargetLeg.BytesSent, r.TargetLeg.BytesRetransmitted = 1100, 100
			s.overview.Tunnels[0].BytesUp, s.overview.Tunnels[0].BytesDown = int64(1000*(i+1)), int64(500*(i+1))
			m.Ended([]Record{r})
			settled(s)
			if len(records) != i+1 {
				t.Fatalf("%d records", len(records))
			}
			if r = records[i]; len(r.Goodput.UpBps) != tt.steps || len(r.Goodput.DownBps) != tt.steps || r.Goodput.UpBps[0] != tt.first || r.Goodput.DownBps[0] != tt.first/2 ||
				r.Goodput.Step.Duration() != time.Second || r.Cause != "" || !r.End.Equal(r.Start.Add(tt.elapsed)) {
				t.Errorf("the record of a flow between two samples is wrong: %+v", r)
			}
			n := int64(i + 1)
			got := m.Snapshot().Tunnels[0]
			if got.BytesUp != 1000*n || got.BytesDown != 500*n || got.Legs[1].BytesSent != 1100*n || got.Legs[1].RetransmittedShare < 0.09 ||
				got.Hops[0].BytesSent != 1100*n || got.Hops[0].BytesRetransmitted != 100*n {
				t.Errorf("after %d: %+v", n, got)
			}
		}
	})
}

func TestCarriedBy(t *testing.T) {
	lane := func(port uint16, sent, received int64) flow.Lane {
		return flow.Lane{Local: flow.Address{AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 1}), port)}, BytesSent: sent, BytesReceived: received}
	}
	before := []flow.Lane{lane(1, 1000, 0), lane(2, 1000, 500)}
	now := carriedBy([]flow.Lane{lane(2, 3000, 1000), lane(3, 9000, 9000)}, before, 2*time.Second)
	if got := now[0]; got.SentBps != 8000 || got.ReceivedBps != 2000 {
		t.Errorf("%+v", got)
	}
	if got := now[1]; got.SentBps != 0 || got.ReceivedBps != 0 {
		t.Errorf("a new lane has a rate: %+v", got)
	}
	if carriedBy(nil, before, time.Second) != nil {
		t.Error("a flow with one lane has several")
	}
}

// TestClientsOfFlows holds that a flow shows its client's address as it came, whatever it is.
func TestClientsOfFlows(t *testing.T) {
	m := New((&script{}).options())
	for i, text := range []string{"192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1", "fe80::1%eth0", ""} {
		var want netip.AddrPort
		if text != "" {
			want = netip.AddrPortFrom(netip.MustParseAddr(text), 4321)
		}
		s := flowNow(flow.ID(i+1), 0, 0)
		s.Client = want
		m.visit(&s, m.now())
		if got, _, _ := m.Flow(s.ID); got.Client.AddrPort != want {
			t.Errorf("client %v is shown as %v", want, got.Client)
		}
	}
}

// TestGoodputLooks holds that a look at a flow's goodput leaves it as it is, though a longer life merges its steps.
func TestGoodputLooks(t *testing.T) {
	f := &flowTrack{}
	for range 3 {
		f.addToSeries(time.Second, f.seen, f.seen+time.Second, 1000, 500)
		f.seen += time.Second
	}
	for _, life := range []time.Duration{3 * time.Second, 8 * SeriesLen * time.Second, 8 * SeriesLen * time.Second} {
		got := f.goodput(time.Second, life)
		step := got.Step.Duration()
		up, down := bytesOf(got.UpBps, step, life), bytesOf(got.DownBps, step, life)
		if math.Abs(up-3000) > 1 || math.Abs(down-1500) > 1 {
			t.Errorf("after %v: %v bytes up, %v down", life, up, down)
		}
	}
	f.addToSeries(time.Second, f.seen, 8*SeriesLen*time.Second, 1000, 0)
	if got := f.goodput(time.Second, 8*SeriesLen*time.Second); len(got.UpBps) > SeriesLen || got.Step.Duration() != 8*time.Second {
		t.Errorf("%d steps of %v", len(got.UpBps), got.Step.Duration())
	}
}

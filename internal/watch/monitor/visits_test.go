package monitor

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/find/doctor"
	"longhaul/internal/words/units"
)

// TestFlowsThatWait holds what a flow shows that is not sampled each second: its rate is over the time in which it
// can have moved what is new, its age is said, and sums of the tunnel are exact meanwhile.
func TestFlowsThatWait(t *testing.T) {
	for name, tt := range map[string]struct {
		rests  bool // before it moves
		unseen int  // seconds without a sample
		waited int  // samples, of these
		lag    int  // of the relay, meanwhile
		ago    time.Duration
		bps    float64
	}{
		"each second":            {false, 0, 1, 0, 0, 8000},
		"in turn":                {false, 3, 4, 5, 3 * time.Second, 2000},
		"at rest before":         {true, 99, 1, 0, 0, 8000},
		"at rest, then in turn":  {true, 99, 5, 9, 9 * time.Second, 1600},
		"at rest for less":       {true, 3, 2, 9, 3 * time.Second, 4000},
		"more samples than time": {true, 3, 50, 9, 3 * time.Second, 2000},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{overview: Overview{Tunnels: tunnels(flow.Tunnel{Name: "t"})}}
				m := New(s.options())
				m.Start()
				defer m.Close()
				one := flowNow(1, 0, 0)
				s.flows = []flow.Sample{one}
				settled(s)
				one.Unchanged = tt.rests
				s.flows[0] = one
				settled(s)
				s.waiting, s.lag = map[flow.ID]bool{1: true}, tt.lag
				one.Unchanged, one.BytesUp, one.Waited = false, 1000, tt.waited
				for range tt.unseen {
					settled(s)
				}
				if got := listed(m)[0].SampledAgo.Duration(); got != tt.ago {
					t.Errorf("its figures are said to be %v old, want %v", got, tt.ago)
				}
				if got := m.Snapshot().Lag.Duration(); tt.unseen > 0 && got != time.Duration(tt.lag)*time.Second {
					t.Errorf("a lag of %v, want %d s", got, tt.lag)
				}
				s.flows[0], s.waiting = one, nil
				settled(s)
				now := listed(m)[0]
				if now.UpBps != tt.bps || now.SampledAgo != 0 || now.BytesUp != 1000 {
					t.Errorf("it has moved 1000 bytes: %+v, want %v b/s", now, tt.bps)
				}
				if got := m.Snapshot().Tunnels[0]; got.BytesUp != 1000 || got.UpBps != 8000 {
					t.Errorf("the tunnel's sums are %d bytes, %v b/s", got.BytesUp, got.UpBps)
				}
				_, series, _ := m.Flow(1)
				var first int
				for first < len(series.UpBps) && series.UpBps[first] == 0 {
					first++
				}
				if moved := time.Duration(len(series.UpBps)-first) * series.Step.Duration(); moved > time.Duration(8000/tt.bps)*time.Second+2*series.Step.Duration() {
					t.Errorf("it has moved for %v by its series: %+v", moved, series)
				}
			})
		})
	}
}

// TestEndOfAFlowAtRest holds that what a flow moves between its last sample, at rest, and its end is of its last second.
func TestEndOfAFlowAtRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{overview: Overview{Tunnels: tunnels(flow.Tunnel{Name: "t"})}}
		var records []Record
		opts := s.options()
		opts.OnRecords = func(r []Record) { records = append(records, r...) }
		m := New(opts)
		m.Start()
		defer m.Close()
		one := flowNow(1, 0, 0)
		one.Unchanged = true
		s.flows = []flow.Sample{one}
		settled(s)
		s.waiting = map[flow.ID]bool{1: true}
		for range 29 {
			settled(s)
		}
		s.flows = nil
		one.BytesUp = 1000
		m.Ended([]Record{record(one, 30*time.Second)})
		settled(s)
		if up := records[0].Goodput.UpBps; len(up) != 30 || up[28] != 0 || up[29] != 8000 {
			t.Errorf("the course of its goodput is %v", up)
		}
	})
}

// TestTimeOfMoving holds that a flow is limited for as long as it moves data, or has some under way.
func TestTimeOfMoving(t *testing.T) {
	for name, tt := range map[string]struct {
		waited, moved int
		unacked       uint32
		want          time.Duration
	}{
		"unknown":         {4, 0, 0, 4 * time.Second},
		"all the time":    {4, 4, 0, 4 * time.Second},
		"and while asked": {4, 5, 0, 4 * time.Second},
		"now and then":    {4, 1, 0, time.Second},
		"under way":       {4, 1, 3, 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			opts := (&script{}).options()
			opts.Glance = func(_, _ doctor.Sample) doctor.Cause { return doctor.Application }
			m := New(opts)
			m.step = time.Second
			s := flowNow(1, 0, 0)
			s.Waited = 1
			at := time.Duration(0)
			visit := func() {
				s.BytesUp += 100
				s.TargetLeg.Known, s.TargetLeg.Info = true, info(time.Millisecond, uint64(s.BytesUp), 0, time.Duration(s.BytesUp)*time.Millisecond)
				s.TargetLeg.Info.Unacked = tt.unacked
				m.visit(&s, at)
				at += 4 * time.Second
			}
			visit()
			s.Waited = 4
			visit()
			visit()
			before := m.tunnel("t").legs[1].limited[doctor.Application]
			s.Moved = tt.moved
			visit()
			if got := m.tunnel("t").legs[1].limited[doctor.Application] - before; got != tt.want {
				t.Errorf("limited for %v more, want %v", got, tt.want)
			}
		})
	}
}

// TestTallies holds that what the monitor adds up of flows is at all times that of those which run.
func TestTallies(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	causes := []doctor.Cause{"", doctor.Application, doctor.Pacing, doctor.RandomLoss}
	opts := (&script{}).options()
	opts.Glance = func(_, _ doctor.Sample) doctor.Cause { return causes[random.IntN(len(causes))] }
	m := New(opts)
	m.step = time.Second
	type flowState struct{ up, sent uint64 }
	running := map[flow.ID]*flowState{}
	check := func(step int) {
		t.Helper()
		want := New(opts)
		moving := map[flow.ID]float64{}
		for id, f := range m.flows {
			one := *f
			one.tunnel = want.tunnel(f.tunnel.last.Name)
			one.tally(1)
			if up, down := f.rate(); up+down > 0 {
				moving[id] = up + down
			}
		}
		for name, tunnel := range m.tunnels {
			other := want.tunnel(name)
			rttsOf := func(t *tunnelTrack) (all []rtts) {
				for i := range t.legs {
					all = append(all, t.legs[i].rtts, t.legs[i].lowest)
				}
				for _, hop := range []string{"a:1", "b:1"} {
					all = append(all, t.hop(hop).rtts)
				}
				return all
			}
			if tunnel.flows != other.flows || !maps.Equal(tunnel.causes, other.causes) || !reflect.DeepEqual(rttsOf(tunnel), rttsOf(other)) {
				t.Fatalf("step %d, tunnel %s: %d flows, %v, %v; want %d, %v, %v", step, name, tunnel.flows, tunnel.causes, rttsOf(tunnel), other.flows, other.causes, rttsOf(other))
			}
		}
		if !maps.Equal(m.rates, moving) {
			t.Fatalf("step %d: rates %v, want %v", step, m.rates, moving)
		}
	}
	for step := range 3000 {
		id := flow.ID(1 + random.IntN(40))
		f := running[id]
		if f == nil {
			f = &flowState{}
			running[id] = f
		}
		s := flowNow(id, 0, 0)
		s.Tunnel = []string{"t", "u"}[id%2]
		s.Hop = []string{"", "a:1", "b:1"}[random.IntN(3)]
		if random.IntN(20) == 0 {
			r := Record{Record: flow.Record{Flow: id, Tunnel: s.Tunnel, Elapsed: units.Seconds(time.Second), ClientLeg: flow.UnknownLeg(), TargetLeg: flow.UnknownLeg()}}
			m.finish(&r)
			delete(running, id)
			check(step)
			continue
		}
		switch random.IntN(3) {
		case 0:
			s.Unchanged = true
		case 1:
			f.up += uint64(random.IntN(1000))
			f.sent += 1000
			for _, leg := range []*flow.LegSample{&s.ClientLeg, &s.TargetLeg} {
				leg.Known, leg.Info = true, info(time.Duration(1+random.IntN(200))*time.Millisecond, f.sent, 0, time.Duration(f.sent)*time.Millisecond)
				leg.Info.Unacked = uint32(random.IntN(2))
			}
		default:
			s.Skipped = true
		}
		s.BytesUp = int64(f.up)
		m.visit(&s, time.Duration(step+1)*time.Second)
		check(step)
	}
	for id := range running {
		m.forget(id, m.flows[id])
	}
	for name, tunnel := range m.tunnels {
		left := fmt.Sprint(tunnel.causes, tunnel.legs[0].rtts, tunnel.legs[1].rtts, tunnel.legs[0].lowest, tunnel.hop("a:1").rtts, m.rates)
		if tunnel.flows != 0 || left != "map[] map[] map[] map[] map[] map[]" {
			t.Errorf("tunnel %s has of no flow %d, %s", name, tunnel.flows, left)
		}
	}
}

// TestMoving holds that Moving has the flows of Flows with at least that rate.
func TestMoving(t *testing.T) {
	m := New((&script{}).options())
	m.step = time.Second
	for id := flow.ID(1); id <= 300; id++ {
		s := flowNow(id, 0, 0)
		for range 2 {
			m.visit(&s, time.Duration(s.BytesUp))
			s.BytesUp = int64(id % 7 * 1000)
		}
		m.flows[id].motion = &motion{upBps: float64(id % 7)}
		if m.rates[id] = float64(id % 7); id%7 == 0 {
			delete(m.rates, id)
		}
	}
	for _, least := range []float64{0, 1, 3, 6, 7} {
		got, want := map[flow.ID]float64{}, map[flow.ID]float64{}
		for f := range m.Moving(&least) {
			got[f.ID] = f.UpBps
		}
		for f := range m.Flows() {
			if f.UpBps > 0 && f.UpBps >= least {
				want[f.ID] = f.UpBps
			}
		}
		if !maps.Equal(got, want) || least == 3 && len(got) != 300*4/7+1 {
			t.Errorf("from %v on: %d flows, want %d", least, len(got), len(want))
		}
	}
	if m.Known() != 300 {
		t.Errorf("%d flows are known", m.Known())
	}
}

// TestMovingWhileFlowsEnd holds that a loop over Moving leaves out flows that end meanwhile, also if a sample has
// put another table in the place of the one that the loop is in.
func TestMovingWhileFlowsEnd(t *testing.T) {
	m := New((&script{}).options())
	for id := flow.ID(1); id <= 100; id++ {
		s := flowNow(id, 0, 0)
		m.visit(&s, 0)
		m.rates[id] = 1
	}
	least, shown := 0.0, 0
	for range m.Moving(&least) { // which has the lock, and gives it up now and then
		if shown++; shown == 1 {
			m.ratesMost = 10 * len(m.rates)
			m.shrinkRates()
			for id, f := range m.flows {
				m.forget(id, f)
			}
		}
	}
	if shown != 1 {
		t.Errorf("%d flows are shown, of which all but one have ended", shown)
	}
}

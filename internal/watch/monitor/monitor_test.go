package monitor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/find/doctor"
	"longhaul/internal/words/units"
	"longhaul/test/nettest"
)

// script is a relay whose flows the test sets.
type script struct {
	mu       sync.Mutex
	seconds  int // that have passed
	flows    []flow.Sample
	portion  []flow.Sample // that the latest visit got
	overview Overview
	waiting  map[flow.ID]bool // flows that are not visited
	ended    int64            // bytes up of flows that have ended, of the first tunnel
	lag      int
	err      error
}

func (s *script) sample(visit func([]flow.Sample)) (lag int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for some := range slices.Chunk(s.flows, 100) {
		s.portion = slices.DeleteFunc(append(s.portion[:0], some...), func(f flow.Sample) bool { return s.waiting[f.ID] })
		visit(s.portion)
	}
	return s.lag, s.err
}

func (s *script) running(visit func([]flow.ID)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.flows {
		visit([]flow.ID{s.flows[i].ID})
	}
	return s.err
}

func (s *script) options() Options {
	return Options{
		Sample:  s.sample,
		Running: s.running,
		Overview: func() Overview { // as the relay, with the bytes of all flows
			s.mu.Lock()
			defer s.mu.Unlock()
			o := s.overview
			o.Tunnels, o.Removed = slices.Clone(o.Tunnels), slices.Clone(o.Removed)
			add := func(t *flow.Tunnel) {
				for _, f := range s.flows {
					if f.Tunnel == t.Name {
						t.BytesUp, t.BytesDown = t.BytesUp+f.BytesUp, t.BytesDown+f.BytesDown
					}
				}
			}
			for i := range o.Tunnels {
				add(&o.Tunnels[i].Tunnel)
			}
			for i := range o.Removed {
				add(&o.Removed[i])
			}
			if len(o.Tunnels) > 0 {
				o.Tunnels[0].BytesUp += s.ended
			}
			return o
		},
		Glance: func(_, _ doctor.Sample) doctor.Cause { return "" },
	}
}

var (
	clientAddr = netip.MustParseAddrPort("192.0.2.1:40000")
	targetAddr = netip.MustParseAddrPort("192.0.2.9:80")
)

func flowNow(id flow.ID, up, down int64) flow.Sample {
	return flow.Sample{ID: id, Tunnel: "t", State: "open", Client: clientAddr, Target: targetAddr, Hop: "far:80", Start: time.Now(), BytesUp: up, BytesDown: down}
}

func record(f flow.Sample, elapsed time.Duration) Record {
	return Record{EndedBy: "both", Record: flow.Record{
		Flow: f.ID, Tunnel: f.Tunnel, Client: flow.Address{AddrPort: f.Client}, Target: flow.Address{AddrPort: f.Target}, Hop: f.Hop, Start: f.Start,
		Elapsed: units.Seconds(elapsed), BytesUp: f.BytesUp, BytesDown: f.BytesDown, Reason: "end", ClientLeg: flow.UnknownLeg(), TargetLeg: flow.UnknownLeg(),
	}}
}

// listed are the running flows, the oldest first.
func listed(m *Monitor) []Flow {
	all := []Flow{}
	for f := range m.Flows() {
		all = append(all, *f)
	}
	slices.SortFunc(all, func(a, b Flow) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// settled lets a second pass, and waits for everything due in it.
func settled(s *script) {
	s.mu.Lock()
	s.seconds++ // under the lock: the sampler sees the test's changes
	s.mu.Unlock()
	time.Sleep(time.Second)
	synctest.Wait()
}

func TestAFlowFromItsBeginningToItsRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{overview: Overview{FlowsNow: 1, Tunnels: tunnels(flow.Tunnel{Name: "t", State: "listening", FlowsNow: 1})}}
		var records []Record
		opts := s.options()
		opts.OnRecords = func(r []Record) { records = append(records, r...) }
		m := New(opts)
		if got := m.Snapshot(); got.Sequence != 0 || got.Tunnels == nil {
			t.Errorf("before Start: %+v", got)
		}
		m.Start()
		defer m.Close()
		time.Sleep(time.Second / 2) // samples come at 1, 2, … s
		f := flowNow(7, 0, 0)
		s.flows = []flow.Sample{f}
		s.flows[0].BytesUp = 500
		settled(s)
		if flows := listed(m); len(flows) != 1 || flows[0].UpBps != 8*500*2 || flows[0].BytesUp != 500 {
			t.Errorf("after half a second: %+v", flows)
		}
		if tunnel := m.Snapshot().Tunnels[0]; tunnel.BytesUp != 500 || tunnel.UpBps != 8*500 {
			t.Errorf("tunnel: %+v", tunnel)
		}
		s.flows[0].BytesUp, s.flows[0].BytesDown = 1500, 4000
		settled(s)
		if _, series, ok := m.Flow(7); !ok || len(series.UpBps) != 2 || series.Step.Duration() != time.Second {
			t.Errorf("series: %v %+v", ok, series)
		}
		if got := m.Snapshot().Tunnels[0]; got.BytesDown != 4000 || got.DownBps != 32000 {
			t.Errorf("tunnel: %+v", got)
		}
		s.flows[0].BytesUp = 2000
		r := record(s.flows[0], 2500*time.Millisecond)
		r.Start = f.Start
		s.flows, s.ended = nil, 2000
		m.Ended([]Record{r})
		settled(s)
		if len(records) != 1 {
			t.Fatalf("%d records", len(records))
		}
		got := records[0]
		if !got.End.Equal(f.Start.Add(2500*time.Millisecond)) || got.Goodput.Step.Duration() != time.Second || len(got.Goodput.UpBps) != 3 {
			t.Errorf("the record does not have the flow's end and three seconds of goodput: %+v", got)
		}
		if tunnel := m.Snapshot().Tunnels[0]; tunnel.BytesUp != 2000 || len(listed(m)) != 0 {
			t.Errorf("after the end: %+v", tunnel)
		}
	})
}

func TestSubscribersGetTheLatest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{}
		m := New(s.options())
		m.Start()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		fast, slow := m.Subscribe(ctx), m.Subscribe(t.Context())
		for want := uint64(1); want <= 5; want++ {
			if got := <-fast; got.Sequence != want {
				t.Errorf("sample %d, want %d", got.Sequence, want)
			}
		}
		synctest.Wait()
		if got := <-slow; got.Sequence != 5 {
			t.Errorf("the slow one got sample %d", got.Sequence)
		}
		cancel()
		synctest.Wait()
		if _, ok := <-fast; ok {
			t.Error("the channel is open after its context has ended")
		}
		m.Close()
		if _, ok := <-slow; ok {
			t.Error("the channel is open after Close")
		}
		if _, ok := <-m.Subscribe(t.Context()); ok {
			t.Error("a channel of a closed monitor is open")
		}
	})
}

// TestFlowWithoutReportedEnd: when a record was dropped, the monitor forgets the flows that do not run, once it
// has been able to ask which do.
func TestFlowWithoutReportedEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{overview: Overview{Tunnels: tunnels(flow.Tunnel{Name: "t", State: "listening", FlowsNow: 1, FlowsTotal: 1})}}
		m := New(s.options())
		m.Start()
		defer m.Close()
		s.flows = []flow.Sample{flowNow(1, 100, 0)}
		settled(s)
		s.flows, s.err = []flow.Sample{flowNow(2, 0, 0)}, errors.New("some loop has ended")
		flood := make([]Record, maxEnded+1)
		flood[maxEnded] = record(flowNow(1, 100, 0), time.Second)
		m.Ended(flood)
		settled(s)
		settled(s)
		if got := listed(m); len(got) != 2 || m.Dropped() != 1 {
			t.Errorf("after samples that failed: %+v", got)
		}
		s.err = nil
		s.overview.Tunnels[0].BytesUp = 250 // as the relay counted at its end
		settled(s)
		settled(s)
		got := m.Snapshot()
		if all := listed(m); len(all) != 1 || all[0].ID != 2 || got.Tunnels[0].BytesUp != 250 {
			t.Errorf("a flow whose end was not reported is not forgotten, or its bytes are not counted: %+v", got)
		}
	})
}

// TestAFlowThatIsMissingOnce: a flow ends between the overview and the sample;
// the tunnel's bytes never decrease.
func TestAFlowThatIsMissingOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{overview: Overview{Tunnels: tunnels(flow.Tunnel{Name: "t"})}}
		m := New(s.options())
		m.Start()
		defer m.Close()
		s.flows = []flow.Sample{flowNow(1, 1000, 0)}
		settled(s)
		s.flows = nil
		for range 3 {
			settled(s)
			if got := m.Snapshot().Tunnels[0]; got.BytesUp != 1000 || got.UpBps != 0 {
				t.Errorf("a flow that has gone leaves %d bytes at %v b/s, want 1000 at 0", got.BytesUp, got.UpBps)
			}
		}
	})
}

func TestARemovedTunnelStaysWhileItHasFlows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{overview: Overview{Tunnels: tunnels(flow.Tunnel{Name: "t", State: "listening", FlowsNow: 1, FlowsTotal: 5, Hops: []flow.Hop{{Name: "far:80"}}})}}
		m := New(s.options())
		m.Start()
		defer m.Close()
		s.flows = []flow.Sample{flowNow(1, 1000, 0)}
		settled(s)
		s.overview.Tunnels = tunnels(flow.Tunnel{Name: "another", State: "listening"})
		s.overview.Removed = []flow.Tunnel{{Name: "t", State: "removed", FlowsNow: 1, FlowsTotal: 5}}
		s.flows[0].BytesUp = 3000
		settled(s)
		got := m.Snapshot().Tunnels
		if len(got) != 2 || got[0].Name != "another" || got[1].Name != "t" || got[1].State != "removed" || got[1].FlowsNow != 1 || got[1].BytesUp != 3000 || got[1].FlowsTotal != 5 {
			t.Errorf("a removed tunnel with a flow is not shown with its counts: %+v", got)
		}
		r := record(s.flows[0], 2*time.Second)
		s.flows, s.overview.Removed = nil, nil
		settled(s)
		if got := m.Snapshot().Tunnels; len(got) != 2 || got[1].FlowsNow != 1 || got[1].BytesUp != 3000 {
			t.Errorf("while the record of its last flow is on its way: %+v", got)
		}
		m.Ended([]Record{r})
		settled(s)
		settled(s)
		if got := m.Snapshot().Tunnels; len(got) != 1 {
			t.Errorf("after its last flow: %+v", got)
		}
	})
}

// TestSumsOfATunnelThatComesBack holds that a tunnel's sums never fall, and that all counts once, when the relay
// begins to count it anew between two samples.
func TestSumsOfATunnelThatComesBack(t *testing.T) {
	type overview struct{ here, removed *flow.Tunnel }
	of := func(life, up, down int64) *flow.Tunnel {
		return &flow.Tunnel{Name: "t", Life: life, BytesUp: up, BytesDown: down}
	}
	for name, tt := range map[string]struct {
		before, after, then overview
		up, moved           int64 // after the third, and in it
	}{
		"counts on":                   {overview{of(1, 1000, 500), nil}, overview{of(1, 1200, 500), nil}, overview{of(1, 1300, 500), nil}, 1300, 100},
		"anew with fewer bytes":       {overview{of(1, 1000, 500), nil}, overview{of(2, 10, 900), nil}, overview{of(2, 30, 907), nil}, 1030, 20},
		"anew with more bytes":        {overview{of(1, 1000, 500), nil}, overview{of(2, 4000, 600), nil}, overview{of(2, 4001, 600), nil}, 5001, 1},
		"twice":                       {overview{of(1, 1000, 500), nil}, overview{of(2, 10, 0), nil}, overview{of(5, 3, 0), nil}, 1013, 3},
		"its last flow ended":         {overview{nil, of(1, 1000, 500)}, overview{of(2, 0, 0), nil}, overview{of(2, 30, 0), nil}, 1030, 30},
		"removed ones with flows yet": {overview{of(1, 1000, 500), nil}, overview{of(2, 10, 0), of(1, 1100, 500)}, overview{of(2, 30, 0), of(1, 1200, 500)}, 1030, 20},
	} {
		t.Run(name, func(t *testing.T) {
			m := New((&script{}).options())
			var last int64
			var got Tunnel
			for i, now := range []overview{tt.before, tt.after, tt.then} {
				var o Overview
				if now.here != nil {
					o.Tunnels = tunnels(*now.here)
				}
				if now.removed != nil {
					now.removed.FlowsNow = 1
					o.Removed = []flow.Tunnel{*now.removed}
				}
				last = got.BytesUp
				m.beginPass(&o)
				if got = m.endPass(&o).Tunnels[0]; got.BytesUp < last || got.UpBps < 0 || got.DownBps < 0 {
					t.Errorf("overview %d: %d bytes up after %d, at %v and %v b/s", i, got.BytesUp, last, got.UpBps, got.DownBps)
				}
			}
			if got.BytesUp != tt.up || got.BytesUp-last != tt.moved {
				t.Errorf("%d bytes up, %d of them new; want %d, %d", got.BytesUp, got.BytesUp-last, tt.up, tt.moved)
			}
		})
	}
}

// TestRecordsAreBounded: records that are not consumed in time are dropped and
// counted, and no caller waits.
func TestRecordsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{overview: Overview{Tunnels: tunnels(flow.Tunnel{Name: "t", State: "listening"})}}
		opts := s.options()
		var records int
		hold := make(chan struct{})
		opts.OnRecords = func(r []Record) {
			<-hold
			records += len(r)
		}
		opts.Recorded = func(r *Record) bool { return r.Reason != "check" }
		m := New(opts)
		m.Start()
		one := record(flowNow(1, 10, 0), time.Second)
		m.Ended([]Record{one})
		settled(s) // OnRecords blocks the sampler
		batch := make([]Record, 1000)
		for i := range batch {
			batch[i] = one
			batch[i].Flow = flow.ID(i + 2)
			if i%2 == 1 {
				batch[i].Reason = "check"
			}
		}
		const batches = 40
		for range batches {
			m.Ended(batch)
		}
		if want := uint64(batches*1000 - maxEnded); m.Dropped() != want {
			t.Errorf("%d records were dropped, want %d", m.Dropped(), want)
		}
		close(hold)
		settled(s)
		if want := 1 + maxEnded/2; records != want {
			t.Errorf("%d records, want %d", records, want)
		}
		m.Ended([]Record{one})
		m.Close()
		if want := 2 + maxEnded/2; records != want {
			t.Errorf("%d records after Close, want %d", records, want)
		}
		if cap(m.ended.spare) > maxEnded/4 {
			t.Errorf("room for %d records is kept", cap(m.ended.spare))
		}
	})
}

// TestEveryoneAtOnce is for the race detector.
func TestEveryoneAtOnce(t *testing.T) {
	nettest.CheckLeaks(t)
	s := &script{overview: Overview{Tunnels: tunnels(flow.Tunnel{Name: "t", State: "listening", Hops: []flow.Hop{{Name: "far:80"}}})}}
	for i := range 50 {
		f := flowNow(flow.ID(i+1), 1, 1)
		f.TargetLeg.Known, f.TargetLeg.Info = true, info(time.Millisecond, 1, 0, 0)
		s.flows = append(s.flows, f)
	}
	opts := s.options()
	opts.Interval = time.Millisecond
	opts.Sample = func(visit func([]flow.Sample)) (int, error) {
		s.mu.Lock()
		for i := range s.flows {
			s.flows[i].BytesUp += 10
		}
		s.mu.Unlock()
		return s.sample(visit)
	}
	opts.OnRecords = func([]Record) {}
	m := New(opts)
	m.Start()
	ctx, cancel := context.WithCancel(t.Context())
	var users sync.WaitGroup
	for range 4 {
		users.Go(func() {
			for ctx.Err() == nil {
				for _, f := range listed(m) {
					m.Flow(f.ID)
					break
				}
				m.Points("t", time.Now().Add(-time.Minute))
				m.Points("", time.Time{})
				_ = m.Snapshot().Tunnels
			}
		})
		users.Go(func() {
			for range m.Subscribe(ctx) {
			}
		})
		users.Go(func() {
			pace := time.NewTicker(100 * time.Microsecond)
			defer pace.Stop()
			for id := flow.ID(1000); ctx.Err() == nil; id++ {
				m.Ended([]Record{record(flowNow(id, 1, 1), time.Millisecond)})
				<-pace.C
			}
		})
	}
	const samples = 30
	nettest.Eventually(t, time.Minute, func() bool { return m.Snapshot().Sequence > samples }, func() string {
		return fmt.Sprintf("%d samples were taken, want %d", m.Snapshot().Sequence, samples)
	})
	cancel()
	users.Wait()
	m.Close()
	m.Close()
	if got, want := m.Snapshot().Tunnels[0].BytesUp, int64(50*samples*10); got < want {
		t.Errorf("the tunnel has %d bytes up after %d samples, want %d or more", got, samples, want)
	}
}

// TestFlowsMakeNoList: to look at many flows each second leaves no garbage for each.
func TestFlowsMakeNoList(t *testing.T) {
	s := &script{}
	const flows = 1000
	for i := range flows {
		s.flows = append(s.flows, flowNow(flow.ID(i+1), 1, 1))
	}
	m := New(s.options())
	m.sample()
	seen := 0
	made := testing.AllocsPerRun(10, func() {
		seen = 0
		for f := range m.Flows() {
			seen += int(f.BytesUp)
		}
	})
	if seen != flows || made > 4 {
		t.Errorf("a look at %d of %d flows makes %v allocations, want 4 or fewer", seen, flows, made)
	}
}

// BenchmarkSample measures a sample of 10 000 flows without the kernel's part.
func BenchmarkSample(b *testing.B) {
	for _, kind := range []string{"quiet", "busy"} {
		for _, listed := range []bool{false, true} {
			name := kind
			if listed {
				name += ", listed"
			}
			b.Run(name, func(b *testing.B) {
				b.ReportAllocs()
				s := &script{overview: Overview{Tunnels: tunnels(flow.Tunnel{Name: "t", State: "listening", Hops: []flow.Hop{{Name: "far:80"}}})}}
				for i := range 10_000 {
					f := flowNow(flow.ID(i+1), 1, 1)
					if f.Unchanged = kind == "quiet"; !f.Unchanged {
						f.ClientLeg.Known, f.TargetLeg.Known = true, true
						f.ClientLeg.Info, f.TargetLeg.Info = info(time.Millisecond, 1, 0, 0), info(time.Millisecond, 1, 0, 0)
						f.Skipped = i%5 != 0 // as new flows beyond the bound
					}
					s.flows = append(s.flows, f)
				}
				opts := s.options()
				opts.Glance = nil // doctor's
				m := New(opts)
				for b.Loop() {
					if kind == "busy" {
						for i := range s.flows {
							f := &s.flows[i]
							f.BytesUp += 100_000
							f.TargetLeg.Info.BytesSent += 100_000
							f.TargetLeg.Info.BusyTime += time.Second
						}
					}
					m.sample()
					if listed {
						for range m.Flows() {
						}
					}
				}
			})
		}
	}
}

// tunnels are those of an overview.
func tunnels(all ...flow.Tunnel) []Tunnel {
	var out []Tunnel
	for _, t := range all {
		out = append(out, Tunnel{Tunnel: t})
	}
	return out
}

package monitor

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"longhaul/internal/doctor"
)

// script is a relay whose flows are what a test says.
type script struct {
	flows    []FlowSample
	overview Overview
	err      error
}

func (s *script) sample(visit func(*FlowSample)) error {
	for i := range s.flows {
		f := s.flows[i]
		visit(&f)
	}
	return s.err
}

func (s *script) options() Options {
	return Options{
		Sample:   s.sample,
		Overview: func() Overview { o := s.overview; o.Tunnels = append([]Tunnel(nil), o.Tunnels...); return o },
		Glance:   func(_, _ doctor.Sample) doctor.Cause { return "" },
	}
}

var (
	clientAddr = netip.MustParseAddrPort("192.0.2.1:40000")
	targetAddr = netip.MustParseAddrPort("192.0.2.9:80")
)

func flowNow(id FlowID, up, down int64) FlowSample {
	return FlowSample{ID: id, Tunnel: "t", State: "open", Client: clientAddr, Target: targetAddr, Hop: "far:80", Start: time.Now(), BytesUp: up, BytesDown: down}
}

func record(f FlowSample, elapsed time.Duration) Record {
	return Record{Flow: f.ID, Tunnel: f.Tunnel, Client: Address{f.Client}, Target: Address{f.Target}, Hop: f.Hop, Start: f.Start,
		Elapsed: elapsed, BytesUp: f.BytesUp, BytesDown: f.BytesDown, Reason: "end", EndedBy: "both",
		ClientLeg: LegRecord{BytesSent: -1, BytesRetransmitted: -1, Retransmits: -1}, TargetLeg: LegRecord{BytesSent: -1, BytesRetransmitted: -1, Retransmits: -1}}
}

// settled lets a second pass, and what is due in it happen.
func settled() {
	time.Sleep(time.Second)
	synctest.Wait()
}

func TestAFlowFromItsBeginningToItsRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{overview: Overview{FlowsNow: 1, Tunnels: []Tunnel{{Name: "t", State: "listening", FlowsNow: 1}}}}
		var records []Record
		opts := s.options()
		opts.OnRecords = func(r []Record) { records = append(records, r...) }
		m := New(opts)
		if got := m.Snapshot(); got.Sequence != 0 || got.Tunnels == nil || got.Flows == nil {
			t.Errorf("before Start: %+v", got)
		}
		m.Start()
		defer m.Close()
		time.Sleep(time.Second / 2) // samples come at 1, 2, … s
		f := flowNow(7, 0, 0)
		s.flows = []FlowSample{f}
		s.flows[0].BytesUp = 500
		settled()
		snapshot := m.Snapshot()
		if len(snapshot.Flows) != 1 || snapshot.Flows[0].UpBps != 8*500*2 || snapshot.Flows[0].BytesUp != 500 {
			t.Errorf("after half a second: %+v", snapshot.Flows)
		}
		if tunnel := snapshot.Tunnels[0]; tunnel.BytesUp != 500 || tunnel.UpBps != 8*500 {
			t.Errorf("tunnel: %+v", tunnel)
		}
		s.flows[0].BytesUp, s.flows[0].BytesDown = 1500, 4000
		settled()
		if _, series, ok := m.Flow(7); !ok || len(series.UpBps) != 2 || series.Step != time.Second {
			t.Errorf("series: %v %+v", ok, series)
		}
		if got := m.Totals().Tunnels[0]; got.BytesDown != 4000 || got.DownBps != 32000 {
			t.Errorf("tunnel: %+v", got)
		}
		s.flows[0].BytesUp = 2000
		r := record(s.flows[0], 2500*time.Millisecond)
		r.Start = f.Start
		s.flows = nil
		m.Ended([]Record{r})
		settled()
		if len(records) != 1 {
			t.Fatalf("%d records", len(records))
		}
		got := records[0]
		if !got.End.Equal(f.Start.Add(2500*time.Millisecond)) || got.Goodput.Step != time.Second || len(got.Goodput.UpBps) != 3 {
			t.Errorf("%+v", got)
		}
		if tunnel := m.Totals().Tunnels[0]; tunnel.BytesUp != 2000 || len(m.Snapshot().Flows) != 0 {
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

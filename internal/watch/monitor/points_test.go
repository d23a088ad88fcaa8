package monitor

import (
	"testing"
	"testing/synctest"
	"time"

	"longhaul/internal/carry/flow"
)

func TestPoints(t *testing.T) {
	var p points
	second := func(i int) time.Duration { return time.Duration(i) * time.Second }
	const days = 2
	for i := 1; i <= days*86400; i++ {
		p.add(moment{at: second(i), span: 1, up: 10, down: 20, sent: 100, again: 1, flows: int32(i % 7)})
	}
	now := second(days * 86400)
	for _, tt := range []struct {
		name  string
		since time.Duration
		count int
		step  time.Duration
	}{
		{"the last minute", now - time.Minute, 60, time.Second},
		{"as far as seconds go", now - 599*time.Second, 599, time.Second},
		{"an hour", now - time.Hour, 60, time.Minute},
		{"a day", now - 24*time.Hour, 1440, time.Minute},
		{"all there is", 0, 1440, time.Minute},
		{"from before the beginning", -time.Hour, 1440, time.Minute},
		{"the future", now + time.Second, 0, 0},
	} {
		got := p.since(tt.since)
		if len(got) != tt.count {
			t.Errorf("%s: %d points, want %d", tt.name, len(got), tt.count)
			continue
		}
		for i, q := range got {
			if want := now - time.Duration(len(got)-1-i)*tt.step; q.at != want {
				t.Errorf("%s: point %d at %v, want %v", tt.name, i, q.at, want)
				break
			}
			if point := q.point("t"); point.UpBps != 80 || point.DownBps != 160 || point.RetransmittedShare < 0.0099 || point.RetransmittedShare > 0.0101 {
				t.Errorf("%s: %+v", tt.name, point)
				break
			}
		}
	}
	if len(p.short.values) != shortPoints || len(p.long.values) != longPoints {
		t.Errorf("%d and %d points are kept", len(p.short.values), len(p.long.values))
	}
}

func TestPointsOfTunnels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{overview: Overview{Tunnels: tunnels(flow.Tunnel{Name: "a", State: "listening", FlowsNow: 1}, flow.Tunnel{Name: "b", State: "listening"})}}
		m := New(s.options())
		m.Start()
		defer m.Close()
		f := flowNow(1, 0, 0)
		f.Tunnel = "a"
		s.flows = []flow.Sample{f}
		began := time.Now()
		for i := range 5 {
			s.flows[0].BytesUp += int64(i) * 100
			settled(s)
		}
		for tunnel, up := range map[string]float64{"a": 800, "b": 0, "": 800} {
			got := m.Points(tunnel, began)
			if len(got) != 5 {
				t.Fatalf("%q: %d points", tunnel, len(got))
			}
			for i, p := range got {
				if p.UpBps != up*float64(i) || p.Tunnel != tunnel || p.RetransmittedShare != -1 || !p.At.Equal(began.Add(time.Duration(i+1)*time.Second)) {
					t.Errorf("%q: point %d: %+v", tunnel, i, p)
				}
			}
		}
		if got := m.Points("nowhere", began); got == nil || len(got) != 0 {
			t.Errorf("a tunnel that is not there: %v", got)
		}
		if got := m.Points("a", time.Now()); len(got) != 0 {
			t.Errorf("since now: %v", got)
		}
		// Two minutes by the minute, and the incomplete third.
		for range 150 {
			settled(s)
		}
		m.mu.Lock()
		long := m.tunnels["a"].points.long.since(0)
		rest := m.tunnels["a"].points.rest()
		m.mu.Unlock()
		if len(long) != 2 || len(rest) != 1 {
			t.Errorf("%d minutes, rest %v", len(long), rest)
		}
	})
}

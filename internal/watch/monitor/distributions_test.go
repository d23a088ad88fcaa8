package monitor

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/words/units"
)

// observing runs a monitor with a tunnel t whose hop is far:80.
func observing(t *testing.T) (s *script, m *Monitor, now func() *Tunnel) {
	t.Helper()
	s = &script{overview: Overview{Tunnels: tunnels(flow.Tunnel{Name: "t", State: "listening", Hops: []flow.Hop{{Name: "far:80"}}})}}
	opts := s.options()
	opts.Recorded = func(r *Record) bool { return r.Reason != flow.EndCheck }
	m = New(opts)
	m.Start()
	t.Cleanup(m.Close)
	return s, m, func() *Tunnel { return &m.Snapshot().Tunnels[0] }
}

// The histograms count what the records have: goodput of flows that are large enough, outage of those that
// resumed, duration of all but integrity checks, and each target's connect once.
func TestDistributions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, m, now := observing(t)
		if d := now(); d.Duration.Count != 0 || d.Hops[0].Connect.Count != 0 {
			t.Fatalf("before any flow: %+v", d.Distributions)
		}
		seen := flowNow(1, 4<<20, 0)
		seen.Connect = 3 * time.Millisecond
		s.flows = []flow.Sample{seen}
		settled(s)
		settled(s)
		if d := now(); d.Duration.Count != 0 || d.Hops[0].Connect.Count != 1 || d.Hops[0].Connect.Sum != 0.003 {
			t.Errorf("while it runs: %+v, connect %+v", d.Distributions, d.Hops[0].Connect)
		}
		s.flows = nil
		large := record(seen, 2*time.Second)
		large.Connect, large.Name, large.Resumes, large.Outage = seen.Connect, flow.NewName(), 1, units.Seconds(time.Second)
		small := record(flowNow(2, 1000, 0), time.Second/2)
		small.Connect, small.Name = time.Millisecond, flow.NewName()
		check := record(flowNow(3, 4<<20, 0), time.Second)
		check.Reason = flow.EndCheck
		m.Ended([]Record{large, small, check})
		settled(s)
		d := now()
		if d.Duration.Count != 2 || d.Duration.Sum != 2.5 || d.Goodput.Count != 1 || d.Goodput.Sum != 2<<20 || d.Outage.Count != 1 || d.Outage.Sum != 1 {
			t.Errorf("duration %+v, goodput %+v, outage %+v", d.Duration, d.Goodput, d.Outage)
		}
		if c := d.Hops[0].Connect; c.Count != 2 || c.Sum != 0.004 {
			t.Errorf("connect: %+v", c)
		}
		if e := d.Duration.Exemplar; e.Flow != large.Name || e.Value != 2 || e.At.IsZero() {
			t.Errorf("the longest is %s, the exemplar %+v", large.Name, e)
		}
		settled(s)
		if again := now(); again.Duration != d.Duration || again.Hops[0].Connect != d.Hops[0].Connect {
			t.Error("a quiet second copies the histograms")
		}
		m.Ended([]Record{small})
		settled(s)
		if e := now().Duration.Exemplar; e.Flow != small.Name {
			t.Errorf("the last interval had one flow, %s, the exemplar is %+v", small.Name, e)
		}
		if d.Duration.Count != 2 {
			t.Error("a published histogram has changed")
		}
	})
}

// Another process's flows count once, though it could not pass them on at once; and a process that passes
// its own on counts them no more.
func TestObservationsPassOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, newer, now := observing(t)
		s, older, was := observing(t)
		taken := -1 // refuses all
		older.PassOn(func(all []Observation) (int, error) {
			if taken < 0 {
				return 0, errors.New("busy")
			}
			n := min(taken, len(all))
			newer.Observe(all[:n])
			return n, nil
		})
		one := record(flowNow(1, 4<<20, 0), 2*time.Second)
		one.Connect = time.Millisecond
		older.Ended([]Record{one, one})
		settled(s)
		taken = 4
		for range 3 { // two to pass six on, and one for the newer process to show them
			settled(s)
		}
		if d := now(); d.Duration.Count != 2 || d.Goodput.Count != 2 || d.Hops[0].Connect.Count != 2 {
			t.Errorf("duration %d, goodput %d, connect %d, want 2 of each", d.Duration.Count, d.Goodput.Count, d.Hops[0].Connect.Count)
		}
		if n := was().Duration.Count; n != 0 {
			t.Errorf("the older process counts %d", n)
		}
		older.Ended([]Record{one})
		older.Close() // with the last flow
		newer.Observe([]Observation{{Of: Duration, Tunnel: "removed", Value: 1}})
		settled(s)
		if d := now(); d.Duration.Count != 3 || len(newer.Snapshot().Tunnels) != 1 {
			t.Errorf("%d after the end of the older process, %d tunnels", d.Duration.Count, len(newer.Snapshot().Tunnels))
		}
	})
}

// What waits for a process that takes nothing has a bound.
func TestWaitingObservationsAreBounded(t *testing.T) {
	m := New(Options{})
	m.PassOn(func([]Observation) (int, error) { return 0, errors.New("no") })
	for range maxEnded + 10 {
		m.observe(Observation{Of: Duration, Tunnel: "t", Value: 1})
	}
	if n := len(m.observed.waiting); n != maxEnded {
		t.Errorf("%d wait", n)
	}
}

package daemon

import (
	"context"
	"net/url"
	"sync"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay"
	"longhaul/internal/carry/usable"
)

// statesBeat is how often the states of the relay are looked at, so that no change stays
// unseen because nobody asks.
const statesBeat = 250 * time.Millisecond

// states are those of the relay's tunnels and what they depend on, with what is decided of them.
type states struct {
	relay     *relay.Relay
	discovery *discovery
	rules     *interception
	pairs     *pairs
	judge     *usable.Judge

	mu      sync.Mutex // held to decide: an older overview must not be decided on after a newer one
	decided time.Time
}

// overview is the relay's overview with what is decided of its tunnels. It waits for nobody but
// others that decide.
func (s *states) overview() relay.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.relay.Overview()
	s.discovery.add(now.Tunnels)
	s.rules.addBypasses(now.Tunnels)
	s.decideLocked(now.Tunnels)
	return now
}

// decide is overview with the [relay.Relay.Standing] of the tunnels alone, which costs a
// fraction: for what looks many times a second. The result reuses into.
func (s *states) decide(into []flow.Tunnel) []flow.Tunnel {
	s.mu.Lock()
	defer s.mu.Unlock()
	into = s.relay.Standing(into)
	s.discovery.add(into)
	s.rules.addProblems(into)
	s.decideLocked(into)
	return into
}

func (s *states) decideLocked(tunnels []flow.Tunnel) {
	s.judge.Decide(tunnels)
	s.pairs.noteTroubles(tunnels)
	s.decided = time.Now()
}

// snapshot waits for every event loop. What is decided is as new as its end.
func (s *states) snapshot() relay.Snapshot {
	all := s.relay.Snapshot()
	s.discovery.add(all.Tunnels)
	s.rules.addBypasses(all.Tunnels)
	decided := map[string]*flow.Tunnel{}
	now := s.decide(nil)
	for i := range now {
		decided[now[i].Name] = &now[i]
	}
	for i := range all.Tunnels {
		t := &all.Tunnels[i]
		d := decided[t.Name]
		if d == nil {
			continue // removed meanwhile
		}
		t.Usability = d.Usability
		for n := range min(len(t.Hops), len(d.Hops)) {
			if h := d.Hops[n]; h.Name == t.Hops[n].Name {
				t.Hops[n].State, t.Hops[n].Usable, t.Hops[n].Since, t.Hops[n].LastError = h.State, h.Usable, h.Since, h.LastError
			}
		}
	}
	return all
}

// sinceDecided is how long nobody has looked at the states.
func (s *states) sinceDecided() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.decided)
}

// Events is the answer of POST /v1/events.
type Events struct {
	Events []flow.Event `json:"events"` // the oldest first
}

func (s *states) events(_ context.Context, arguments url.Values) (any, error) {
	var since time.Time
	if text := arguments.Get("since"); text != "" {
		var err error
		if since, err = time.Parse(time.RFC3339Nano, text); err != nil {
			return nil, err
		}
	}
	s.overview() // what has changed since the last look is among them
	return Events{s.judge.Events(since)}, nil
}

// watch looks at the states that nobody else looks at, until the returned function is called.
func (s *states) watch() (stop func()) {
	done := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		beat := time.NewTicker(statesBeat)
		defer beat.Stop()
		var tunnels []flow.Tunnel
		for {
			select {
			case <-done:
				return
			case <-beat.C:
				if s.sinceDecided() >= statesBeat { // else the interception has
					tunnels = s.decide(tunnels)
				}
			}
		}
	})
	return func() { close(done); running.Wait() }
}

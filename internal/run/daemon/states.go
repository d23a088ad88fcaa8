package daemon

import (
	"context"
	"net/url"
	"sync"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay"
)

// statesBeat is how often the states of the relay are looked at, so that no change stays
// unseen because nobody asks.
const statesBeat = 250 * time.Millisecond

// overviewNow is the relay's overview with what is decided of its tunnels. It waits for nobody but
// others that decide: an older overview must not be decided on after a newer one.
func (d *daemon) overviewNow() relay.Snapshot {
	d.deciding.Lock()
	defer d.deciding.Unlock()
	s := d.relay.Overview()
	d.rules.addBypasses(s.Tunnels)
	d.judge.Decide(s.Tunnels)
	d.pairs.noteTroubles(s.Tunnels)
	d.decided = time.Now()
	return s
}

// decide is overviewNow with the [relay.Relay.Standing] of the tunnels alone, which costs a
// fraction: for what looks many times a second. The result reuses into.
func (d *daemon) decide(into []flow.Tunnel) []flow.Tunnel {
	d.deciding.Lock()
	defer d.deciding.Unlock()
	into = d.relay.Standing(into)
	d.rules.addProblems(into)
	d.judge.Decide(into)
	d.pairs.noteTroubles(into)
	d.decided = time.Now()
	return into
}

// sinceDecided is how long nobody has looked at the states.
func (d *daemon) sinceDecided() time.Duration {
	d.deciding.Lock()
	defer d.deciding.Unlock()
	return time.Since(d.decided)
}

// Events is the answer of POST /v1/events.
type Events struct {
	Events []flow.Event `json:"events"` // the oldest first
}

func (d *daemon) eventsVerb(_ context.Context, arguments url.Values) (any, error) {
	var since time.Time
	if text := arguments.Get("since"); text != "" {
		var err error
		if since, err = time.Parse(time.RFC3339Nano, text); err != nil {
			return nil, err
		}
	}
	d.overviewNow() // what has changed since the last look is among them
	return Events{d.judge.Events(since)}, nil
}

// watchStates looks at the states that nobody else looks at, until the returned function is called.
func (d *daemon) watchStates() (stop func()) {
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
				if d.sinceDecided() >= statesBeat { // else the interception has
					tunnels = d.decide(tunnels)
				}
			}
		}
	})
	return func() { close(done); running.Wait() }
}

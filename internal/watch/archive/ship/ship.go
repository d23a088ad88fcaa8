// Package ship moves records from a relay's history to the sinks of its
// configuration. Each sink has a goroutine, which reads what the sink lacks from
// the file, hands it over, and moves the sink's cursor in the file. So a sink
// that is away costs nothing but room in the file, and forwarding never waits.
package ship

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/words/units"
)

const (
	// batchLen bounds the records that a sink is handed at once, some 5 MB.
	batchLen = 5000
	// batchInterval is the least time between two deliveries of fewer records.
	batchInterval = time.Second
	// deliverPatience bounds one delivery.
	deliverPatience = 30 * time.Second
	// Pauses after failures. They double.
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
	// lookInterval is how often a sink that does not take records has its lag measured.
	lookInterval = 2 * time.Second
	// reportInterval is between two lines about trouble that lasts.
	reportInterval = time.Minute
)

// MaxSinks bounds the sinks of a relay, and with them memory.
const MaxSinks = 8

// Options are what shippers need.
type Options struct {
	// Relay and Site are the relay's own, for records that have none.
	Relay, Site string
	// Open makes a sink. It must not wait for the network: Deliver does.
	Open func(archive.Target) (archive.Sink, error)
	Log  *slog.Logger // nil: nothing is said
}

// State is how shipping to one sink goes.
type State struct {
	Sink     string        `json:"sink"`
	Kind     archive.Kind  `json:"kind"`
	Problem  string        `json:"problem,omitempty"`  // why nothing is delivered; empty: it is
	Remedy   string        `json:"remedy,omitempty"`   // of Problem
	Shipped  int64         `json:"shipped"`            // records, by this process
	Waiting  int64         `json:"waiting"`            // records in the history that the sink lacks
	Lost     int64         `json:"lost"`               // records that the history let go of before the sink had them
	Lag      units.Seconds `json:"lag_seconds"`        // age of the oldest record that waits; 0: none does
	LastSent time.Time     `json:"last_sent,omitzero"` // when the sink took records last
}

// Shippers ship the records of one history.
type Shippers struct {
	store *history.Store
	opts  Options

	mu   sync.Mutex
	all  []*shipper // in the order of the configuration
	done bool
}

// New begins without sinks. The store must be open until Close has returned.
func New(store *history.Store, opts Options) *Shippers {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	return &Shippers{store: store, opts: opts}
}

// Set replaces the sinks. One whose target is the same goes on undisturbed. It
// waits for a delivery that goes on to a sink which is taken away, a moment at most.
func (s *Shippers) Set(targets []archive.Target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		return
	}
	targets = targets[:min(len(targets), MaxSinks)]
	names := make([]string, 0, len(targets))
	for i := range targets {
		names = append(names, targets[i].Label())
	}
	// First: what is to be kept for a new sink must not be let go of meanwhile.
	s.store.SetSinks(names)
	var kept []*shipper
	for _, old := range s.all {
		if slices.Contains(targets, old.target) {
			kept = append(kept, old)
		} else {
			old.end()
		}
	}
	all := make([]*shipper, 0, len(targets))
	for _, t := range targets {
		at := slices.IndexFunc(kept, func(old *shipper) bool { return old.target == t })
		if at >= 0 {
			all = append(all, kept[at])
			continue
		}
		one := newShipper(s.store, t, s.opts)
		all = append(all, one)
	}
	s.all = all
}

// States are those of the sinks, in the order of the configuration.
func (s *Shippers) States() []State {
	s.mu.Lock()
	defer s.mu.Unlock()
	states := make([]State, 0, len(s.all))
	for _, one := range s.all {
		states = append(states, one.now())
	}
	return states
}

// Close ends the shipping: what is not delivered stays in the history. A
// successor goes on from there.
func (s *Shippers) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = true
	for _, one := range s.all {
		one.cancel()
	}
	for _, one := range s.all {
		one.end()
	}
	s.all = nil
}

// end ends one shipper and returns when it has let go of everything.
func (s *shipper) end() {
	s.cancel()
	<-s.ended
}

// sleep waits; false: the shipper is to end.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

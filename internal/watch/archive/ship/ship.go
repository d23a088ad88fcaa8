// Package ship moves records from a relay's history to the sinks of its
// configuration. Each sink has a goroutine, which reads what the sink lacks from
// the file, hands it over, and moves the sink's cursor in the file. So a sink
// that is away costs nothing but room in the file, and forwarding never waits.
//
//	idle ── the history has more ──▶ read ──▶ deliver ──▶ move the cursor ──▶ rest ──▶ idle
//	                                   └────── error ─────▶ pause, look at the lag ──▶ read
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
	// MaxSinks bounds the sinks of a relay, and with them memory.
	MaxSinks = 8
	// MaxBatch bounds the records that a sink is handed at once: some 4 MB, with their series.
	MaxBatch = 2000
	// minBatch is what is left of it on a path that carries no more in deliverPatience.
	minBatch = 20
	// batchInterval is the least time between two deliveries of fewer records.
	batchInterval = time.Second
	// restShare is how long a shipper that has more rests after a full batch, in times that the batch
	// took: so a backfill takes a quarter of a core at most. lastRest bounds it.
	restShare = 3
	lastRest  = time.Second
	// deliverPatience bounds one delivery, stopPatience what is left of it when the shipping ends, and
	// returnPatience the return of a sink after that.
	deliverPatience = 30 * time.Second
	stopPatience    = time.Second
	returnPatience  = 500 * time.Millisecond
	// closePatience bounds [Shippers.Close], also where a disk does not answer.
	closePatience = 3 * time.Second
	// startPatience is how long the history may take to make its file until that is a problem.
	startPatience = 5 * time.Second
	startInterval = 50 * time.Millisecond
	// Pauses after failures. They double.
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
	// lookInterval is how often a sink that does not take records has its lag measured.
	lookInterval = 2 * time.Second
	// othersInterval is how often the file is looked at for records of other processes: one that
	// finishes its flows after an upgrade.
	othersInterval = 10 * time.Second
	// reportInterval is between two lines about trouble that lasts.
	reportInterval = time.Minute
)

// Options are what shippers need.
type Options struct {
	// Relay and Site are the relay's own, for records that have none.
	Relay, Site string
	// Open makes a sink. It must not wait for the network: Deliver does.
	Open func(archive.Target) (archive.Sink, error)
	Log  *slog.Logger // nil: nothing is said

	patience time.Duration // of tests, instead of deliverPatience
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

// Shippers ship the records of one history. Their methods may be called at the same time.
type Shippers struct {
	store *history.Store
	opts  Options

	mu     sync.Mutex
	site   string
	all    []*shipper // in the order of the configuration
	ending []*shipper // taken away; some may have a delivery that goes on
	closed bool
}

// New begins without sinks. The store must be open until Close has returned.
func New(store *history.Store, opts Options) *Shippers {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.patience == 0 {
		opts.patience = deliverPatience
	}
	return &Shippers{store: store, opts: opts, site: opts.Site}
}

// SetSite replaces the relay's site in what is shipped from now on.
func (s *Shippers) SetSite(site string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.site = site
}

func (s *Shippers) siteNow() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.site
}

// Set replaces the sinks. One whose target is the same goes on undisturbed. Set waits for nothing: a
// sink that replaces one of its name begins once that one has ended.
func (s *Shippers) Set(targets []archive.Target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	targets = targets[:min(len(targets), MaxSinks)]
	names := make([]string, 0, len(targets))
	for i := range targets {
		names = append(names, targets[i].Label())
	}
	// First: what is to be kept for a new sink must not be let go of meanwhile.
	s.store.SetSinks(names)
	s.ending = slices.DeleteFunc(s.ending, func(one *shipper) bool { return one.hasEnded() })
	before := s.all
	for _, old := range before {
		if !slices.Contains(targets, old.target) {
			old.stop()
			s.ending = append(s.ending, old)
		}
	}
	s.all = make([]*shipper, 0, len(targets))
	for _, t := range targets {
		if at := slices.IndexFunc(before, func(old *shipper) bool { return old.target == t }); at >= 0 {
			s.all = append(s.all, before[at])
			continue
		}
		var after []*shipper
		for _, old := range s.ending {
			if old.target.Label() == t.Label() {
				after = append(after, old)
			}
		}
		s.all = append(s.all, s.begin(t, after))
	}
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

// Close ends the shipping, within closePatience. A delivery that goes on may end first. What is not
// delivered stays in the history, which keeps it on; a successor goes on from there.
func (s *Shippers) Close() {
	s.mu.Lock()
	all := slices.Concat(s.all, s.ending)
	s.all, s.ending, s.closed = nil, nil, true
	s.mu.Unlock()
	for _, one := range all {
		one.stop()
	}
	late := time.NewTimer(closePatience)
	defer late.Stop()
	for _, one := range all {
		select {
		case <-one.ended:
		case <-late.C: // a disk holds it up
			return
		}
	}
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

// Package monitor watches a relay from the outside. Once per interval it
// samples the flows to which something has happened, up to a bound, and
// computes rates, series and limiting causes. Sums of tunnels are the relay's
// own, so they need no flow. For every flow that has ended it makes a [Record].
//
// Metrics, the history and the dashboard read only its [Snapshot] and its
// records, so none of them can block the data path.
package monitor

import (
	"context"
	"iter"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/find/doctor"
	"longhaul/internal/words/units"
)

// DefaultInterval is the time between two samples.
const DefaultInterval = time.Second

const (
	endedPause = 100 * time.Millisecond // a wakeup per ended flow would cost more than its record
	maxEnded   = 1 << 15                // records waiting to be processed

	shownAtOnce  = 128              // flows that a reader sees while samples wait
	passedAtOnce = 64 * shownAtOnce // and those that it passes by
)

// Options are the sources and the consumers of a Monitor.
type Options struct {
	// Interval is the time between two samples; 0 means DefaultInterval.
	Interval time.Duration

	// Sample visits flows to which something has happened since their last
	// visit, in portions, and each new flow. It reuses the portion when visit
	// returns. lag is for how many samples a flow waits that was not visited.
	Sample func(visit func(portion []flow.Sample)) (lag int, err error)

	// Running visits the IDs of the flows that run, for a monitor that has lost
	// records; nil: it forgets none of these flows.
	Running func(visit func(portion []flow.ID)) error

	// Overview describes the process and its tunnels without rates, legs and
	// causes.
	Overview func() Overview

	// Glance returns the cause that limits a leg's sender between two samples;
	// nil means [doctor.Glance].
	Glance func(before, after doctor.Sample) doctor.Cause

	// OnRecords receives the records of flows soon after they end. The monitor
	// reuses the slice, but not its contents, once OnRecords returns. Samples
	// wait for it.
	OnRecords func([]Record)

	// Recorded reports whether to make a record of a flow; nil means of every
	// flow.
	Recorded func(*Record) bool

	// Log receives failures to take samples. Nil discards it.
	Log *slog.Logger
}

// Overview is the state of a relay without its flows.
type Overview struct {
	Process  Process
	FlowsNow int64
	Tunnels  []Tunnel
	Removed  []flow.Tunnel // by a reload, that still have flows
	Pairs    *flow.Pairs   // nil: no tunnel is paired
}

// Monitor samples a relay from Start to Close. Its methods may be called from
// any goroutine.
type Monitor struct {
	opts  Options
	log   *slog.Logger
	begin time.Time // zero of the monotonic times

	latest  atomic.Pointer[Snapshot]
	dropped atomic.Uint64 // records
	lost    atomic.Bool   // some were dropped since the flows were last held against those that run
	failing bool          // the latest sample failed

	ended struct {
		sync.Mutex
		waiting []Record
		spare   []Record
		ready   chan struct{}
	}

	looks sync.Mutex // held by one reader of Flows at a time, taken before mu

	mu       sync.Mutex // guards the fields below
	observed struct {
		to      func([]Observation) (taken int, err error) // nil: this process counts
		waiting []Observation
	}
	flows      map[flow.ID]*flowTrack
	rates      map[flow.ID]float64 // bits per second both ways, of flows that move data
	ratesMost  int                 // entries that rates has had, and keeps memory of
	tunnels    map[string]*tunnelTrack
	pairTracks map[pairKey]*pairTrack
	all        points // of all tunnels together
	pass       uint64
	at         time.Duration // of the latest pass
	passBegan  time.Duration
	step       time.Duration // from the begin of the pass before to that
	lag        time.Duration // for how long the flow has waited that has waited longest for its sample
	subs       map[chan *Snapshot]struct{}
	stopping   chan struct{}
	stopOnce   sync.Once
	done       chan struct{} // nil before Start
}

// New makes a monitor. Before Start it only collects the records passed to
// Ended.
func New(opts Options) *Monitor {
	if opts.Interval <= 0 {
		opts.Interval = DefaultInterval
	}
	if opts.Glance == nil {
		opts.Glance = doctor.Glance
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	m := &Monitor{
		opts:       opts,
		log:        opts.Log,
		begin:      time.Now(),
		flows:      map[flow.ID]*flowTrack{},
		rates:      map[flow.ID]float64{},
		tunnels:    map[string]*tunnelTrack{},
		pairTracks: map[pairKey]*pairTrack{},
		subs:       map[chan *Snapshot]struct{}{},
		stopping:   make(chan struct{}),
	}
	m.ended.ready = make(chan struct{}, 1)
	nothing := &Snapshot{At: time.Now(), Interval: units.Seconds(opts.Interval), Tunnels: []Tunnel{}}
	m.latest.Store(nothing)
	return m
}

// Start takes the first sample and starts the sampling loop.
func (m *Monitor) Start() {
	m.mu.Lock()
	if m.done != nil {
		m.mu.Unlock()
		return
	}
	m.done = make(chan struct{})
	m.mu.Unlock()
	m.sample()
	go m.loop()
}

// Close ends sampling, delivers the remaining records and closes the channels
// of Subscribe. Later calls answer from the latest sample.
func (m *Monitor) Close() {
	m.stopOnce.Do(func() { close(m.stopping) })
	m.mu.Lock()
	done := m.done
	m.mu.Unlock()
	if done != nil {
		<-done
	}
	m.takeEnded()
	m.passOn()
	m.mu.Lock()
	defer m.mu.Unlock()
	for c := range m.subs {
		delete(m.subs, c)
		close(c)
	}
}

func (m *Monitor) loop() {
	defer close(m.done)
	tick := time.NewTicker(m.opts.Interval)
	defer tick.Stop()
	pause := time.NewTimer(endedPause)
	pause.Stop()
	defer pause.Stop()
	for {
		select {
		case <-m.stopping:
			return
		case <-tick.C:
			m.sample()
		case <-m.ended.ready:
			pause.Reset(endedPause)
		case <-pause.C:
			m.takeEnded()
		}
	}
}

// now is the time since the monitor was made, by a clock that does not step.
func (m *Monitor) now() time.Duration { return time.Since(m.begin) }

// Ended adds the records of ended flows; the monitor fills in Goodput and
// Cause. It never waits for the consumers of records.
func (m *Monitor) Ended(flows []Record) {
	e := &m.ended
	e.Lock()
	taken := min(len(flows), maxEnded-len(e.waiting))
	first := len(e.waiting) == 0 && taken > 0
	e.waiting = append(e.waiting, flows[:taken]...)
	e.Unlock()
	if taken < len(flows) {
		m.dropped.Add(uint64(len(flows) - taken))
		m.lost.Store(true)
	}
	if first {
		select {
		case e.ready <- struct{}{}:
		default:
		}
	}
}

// Dropped counts the flows without a record, because too many ended at once.
func (m *Monitor) Dropped() uint64 { return m.dropped.Load() }

// takeEnded completes the waiting records and delivers them.
func (m *Monitor) takeEnded() {
	e := &m.ended
	e.Lock()
	records := e.waiting
	e.waiting, e.spare = e.spare, nil
	e.Unlock()
	if len(records) == 0 {
		e.Lock()
		e.spare = records
		e.Unlock()
		return
	}
	whole := len(records)
	m.mu.Lock()
	kept := records[:0]
	for i := range records {
		r := &records[i]
		m.finish(r)
		if m.opts.Recorded != nil && !m.opts.Recorded(r) {
			continue
		}
		m.observeEnd(r)
		if m.opts.OnRecords != nil {
			kept = append(kept, *r)
		}
	}
	m.mu.Unlock()
	if len(kept) > 0 {
		m.opts.OnRecords(kept)
	}
	clear(records[:whole])
	e.Lock()
	if cap(records) <= maxEnded/4 { // release the memory of a flood
		e.spare = records[:0]
	}
	e.Unlock()
}

// sample samples everything and publishes a snapshot.
func (m *Monitor) sample() {
	o := m.opts.Overview()
	m.mu.Lock()
	m.beginPass(&o)
	m.mu.Unlock()
	lag, err := m.opts.Sample(func(portion []flow.Sample) {
		at := m.now()
		m.mu.Lock()
		for i := range portion {
			m.visit(&portion[i], at)
		}
		m.mu.Unlock()
	})
	if failing := err != nil; failing != m.failing {
		m.failing = failing
		if failing {
			m.log.Debug("cannot sample the flows", "error", err)
		}
	}
	if m.lost.Swap(false) {
		m.forgetLost()
	} else {
		m.takeEnded()
	}
	m.passOn()

	m.mu.Lock()
	defer m.mu.Unlock()
	m.lag = time.Duration(lag) * m.step
	s := m.endPass(&o)
	m.latest.Store(s)
	for c := range m.subs {
		offer(c, s)
	}
}

// forgetLost forgets the flows that have ended and whose records were dropped.
func (m *Monitor) forgetLost() {
	if m.opts.Running == nil {
		m.takeEnded()
		return
	}
	running := map[flow.ID]bool{}
	err := m.opts.Running(func(portion []flow.ID) {
		for _, id := range portion {
			running[id] = true
		}
	})
	m.takeEnded() // the records of all that do not run are here, or were dropped
	if err != nil {
		m.lost.Store(true)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, f := range m.flows {
		if !running[id] {
			m.forget(id, f)
		}
	}
}

// forget removes a flow that has ended.
func (m *Monitor) forget(id flow.ID, f *flowTrack) {
	f.tally(-1)
	delete(m.flows, id)
	delete(m.rates, id)
}

// offer replaces the snapshot that a subscriber has not yet received. Only one
// goroutine at a time may call it for a channel.
func offer(c chan *Snapshot, s *Snapshot) {
	select {
	case <-c:
	default:
	}
	c <- s
}

// Snapshot is the result of the latest sample. Before the first sample it is
// empty, with Sequence 0.
func (m *Monitor) Snapshot() *Snapshot { return m.latest.Load() }

// Flows are the running flows as of their latest samples, in any order. The loop
// over them reuses the Flow, since a list of thousands would be megabytes of
// garbage each second. Other loops wait for its end, and samples for some of its
// flows. It may not call the monitor.
func (m *Monitor) Flows() iter.Seq[*Flow] {
	return look(m, func() map[flow.ID]*flowTrack { return m.flows }, func(*flowTrack) bool { return true })
}

// Moving are the running flows that move at least so many bits per second both ways together, as Flows. The loop
// may raise least as it goes on: a flow that is left out costs a hundredth of one that is shown.
func (m *Monitor) Moving(least *float64) iter.Seq[*Flow] {
	return look(m, func() map[flow.ID]float64 { return m.rates }, func(bps float64) bool { return bps >= *least })
}

// Known is the number of flows that Flows has.
func (m *Monitor) Known() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.flows)
}

// shrinkRates releases the memory of rates after a flood: a map keeps that of its most entries.
func (m *Monitor) shrinkRates() {
	if m.ratesMost = max(m.ratesMost, len(m.rates)); len(m.rates) >= m.ratesMost/8 {
		return
	}
	m.ratesMost = len(m.rates)
	few := make(map[flow.ID]float64, len(m.rates))
	maps.Copy(few, m.rates)
	m.rates = few
}

// look visits the flows of a table that are wanted. Few looks at flows do not hold samples up.
func look[V any](m *Monitor, table func() map[flow.ID]V, wanted func(V) bool) iter.Seq[*Flow] {
	return func(yield func(*Flow) bool) {
		m.looks.Lock()
		defer m.looks.Unlock()
		m.mu.Lock()
		defer m.mu.Unlock()
		var out Flow
		seen := 0
		for id, v := range table() {
			if f := m.flows[id]; f != nil && wanted(v) { // nil: it has ended, and another table took this one's place
				if m.show(id, f, &out); !yield(&out) {
					return
				}
				seen += passedAtOnce / shownAtOnce
			}
			if seen++; seen >= passedAtOnce {
				seen = 0
				m.mu.Unlock()
				m.mu.Lock()
			}
		}
	}
}

// Subscribe returns a channel that delivers the latest snapshot at once and
// then every new one. A slow reader misses some. The channel is closed when ctx
// ends or the monitor is closed.
func (m *Monitor) Subscribe(ctx context.Context) <-chan *Snapshot {
	c := make(chan *Snapshot, 1)
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.stopping:
		close(c)
		return c
	default:
	}
	c <- m.latest.Load()
	m.subs[c] = struct{}{}
	context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if _, ok := m.subs[c]; ok {
			delete(m.subs, c)
			close(c)
		}
	})
	return c
}

// Flow is one running flow with its goodput so far. It returns false if the
// flow has ended.
func (m *Monitor) Flow(id flow.ID) (Flow, Series, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.flows[id]
	if f == nil {
		return Flow{}, Series{}, false
	}
	var out Flow
	m.show(id, f, &out)
	return out, f.goodput(m.opts.Interval, f.seen-f.born), true
}

// Points returns the points of a tunnel since a time, oldest first; an empty
// name means all tunnels together. The step is a second if that time is at most
// ten minutes ago, otherwise a minute.
func (m *Monitor) Points(tunnel string, since time.Time) []Point {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := &m.all
	if tunnel != "" {
		t := m.tunnels[tunnel]
		if t == nil {
			return []Point{}
		}
		p = &t.points
	}
	// Both times are the wall clock's at this moment, so that a step of it
	// moves all points together.
	now, at := time.Now().Round(0), m.now()
	points := p.since(at - now.Sub(since))
	out := make([]Point, len(points))
	for i, q := range points {
		out[i] = q.point(tunnel)
		out[i].At = now.Add(q.at - at)
	}
	return out
}

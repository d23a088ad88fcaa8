package monitor

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"longhaul/internal/doctor"
)

// DefaultInterval is the time between two samples.
const DefaultInterval = time.Second

const (
	endedPause = 100 * time.Millisecond // between two looks at what has ended: waking up for every flow costs more than its record
	endedMost  = 1 << 15                // records that wait for one
)

// Options are what a Monitor looks at, and who is told.
type Options struct {
	// Interval is the time between two samples; 0 means DefaultInterval.
	Interval time.Duration

	// Sample visits every flow once. The sample is used again when visit
	// returns. Flows that begin or end meanwhile may be left out.
	Sample func(visit func(*FlowSample)) error

	// Overview tells of the process and its tunnels without their rates, legs
	// and causes; a tunnel's bytes are those of flows that have ended.
	Overview func() Overview

	// Glance names what limits a leg's sender between two samples of it; nil
	// means doctor's.
	Glance func(before, after doctor.Sample) doctor.Cause

	// OnRecords is given the records of flows that have ended, soon after.
	// The slice is used again once it returns; what it holds is not. Samples
	// wait for it.
	OnRecords func([]Record)

	// Recorded says whether there is to be a record of a flow; nil means of
	// every one.
	Recorded func(*Record) bool

	// Log is told when samples cannot be taken. Nil discards it.
	Log *slog.Logger
}

// Overview is what is known of a relay without looking at its flows.
type Overview struct {
	Process  Process
	FlowsNow int64
	Tunnels  []Tunnel
}

// Monitor takes samples of a relay from Start to Close. Its methods may be called
// from any goroutine.
type Monitor struct {
	opts  Options
	log   *slog.Logger
	begin time.Time // what the monotonic times here count from

	totals  atomic.Pointer[Snapshot] // the last one, without flows
	full    atomic.Pointer[Snapshot] // with them, where somebody asked
	dropped atomic.Uint64            // records
	failing bool                     // the last sample could not be taken

	ended struct {
		sync.Mutex
		waiting []Record
		spare   []Record
		some    chan struct{}
	}

	mu        sync.Mutex // guards what follows
	flows     map[FlowID]*flowTrack
	tunnels   map[string]*tunnelTrack
	all       points // of all tunnels together
	pass      uint64
	at        time.Duration // of the last pass
	passBegan time.Duration
	subs      map[chan *Snapshot]struct{}
	stopping  chan struct{}
	stopOnce  sync.Once
	done      chan struct{} // nil before Start
}

// New makes a monitor that does nothing until Start but to take what Ended is
// told.
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
		opts:     opts,
		log:      opts.Log,
		begin:    time.Now(),
		flows:    map[FlowID]*flowTrack{},
		tunnels:  map[string]*tunnelTrack{},
		subs:     map[chan *Snapshot]struct{}{},
		stopping: make(chan struct{}),
	}
	m.ended.some = make(chan struct{}, 1)
	nothing := &Snapshot{At: time.Now(), Interval: opts.Interval, Tunnels: []Tunnel{}, Flows: []Flow{}}
	m.totals.Store(nothing)
	m.full.Store(nothing)
	return m
}

// Start takes the first sample, and begins to take others.
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

// Close ends sampling, hands over what records are left, and closes the channels
// of Subscribe. What is asked afterwards is answered from the last sample.
func (m *Monitor) Close() {
	m.stopOnce.Do(func() { close(m.stopping) })
	m.mu.Lock()
	done := m.done
	m.mu.Unlock()
	if done != nil {
		<-done
	}
	m.takeEnded()
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
		case <-m.ended.some:
			pause.Reset(endedPause)
		case <-pause.C:
			m.takeEnded()
		}
	}
}

// now is the time since the monitor was made, by a clock that does not step.
func (m *Monitor) now() time.Duration { return time.Since(m.begin) }

// Ended is told of flows that have ended: what is known of each but for its
// Goodput and Cause, which are added. It never waits for those who use records.
func (m *Monitor) Ended(flows []Record) {
	e := &m.ended
	e.Lock()
	taken := min(len(flows), endedMost-len(e.waiting))
	first := len(e.waiting) == 0 && taken > 0
	e.waiting = append(e.waiting, flows[:taken]...)
	e.Unlock()
	m.dropped.Add(uint64(len(flows) - taken))
	if first {
		select {
		case e.some <- struct{}{}:
		default:
		}
	}
}

// Dropped is how many flows ended so fast that there is no record of them.
func (m *Monitor) Dropped() uint64 { return m.dropped.Load() }

// takeEnded makes the records of what has ended, and hands them over.
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
		if m.opts.OnRecords != nil && (m.opts.Recorded == nil || m.opts.Recorded(r)) {
			kept = append(kept, *r)
		}
	}
	m.mu.Unlock()
	if len(kept) > 0 {
		m.opts.OnRecords(kept)
	}
	clear(records[:whole])
	e.Lock()
	if cap(records) <= endedMost/4 { // what a flood took is given back
		e.spare = records[:0]
	}
	e.Unlock()
}

// sample takes one of everything, and publishes what it shows.
func (m *Monitor) sample() {
	// First what has ended, then what lasts: a flow that ends in between is
	// missing from both, and never in both.
	o := m.opts.Overview()
	m.mu.Lock()
	m.beginPass(&o)
	m.mu.Unlock()
	err := m.opts.Sample(func(s *FlowSample) {
		at := m.now()
		m.mu.Lock()
		m.visit(s, at)
		m.mu.Unlock()
	})
	if failing := err != nil; failing != m.failing {
		m.failing = failing
		if failing {
			m.log.Debug("the flows could not be looked at", "error", err)
		}
	}
	m.takeEnded()

	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.endPass(&o, err == nil)
	m.totals.Store(s)
	if len(m.subs) == 0 {
		return
	}
	full := m.fill(s)
	for c := range m.subs {
		offer(c, full)
	}
}

// offer replaces what a subscriber has not yet taken. Only one goroutine at a
// time may call it for a channel.
func offer(c chan *Snapshot, s *Snapshot) {
	select {
	case <-c:
	default:
	}
	c <- s
}

// Totals is the last snapshot without its flows, whose listing costs something
// where there are many.
func (m *Monitor) Totals() *Snapshot { return m.totals.Load() }

// Snapshot is what the last sample has shown. Before the first one it is empty,
// with Sequence 0.
func (m *Monitor) Snapshot() *Snapshot {
	if s := m.full.Load(); s.Sequence == m.totals.Load().Sequence {
		return s
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fill(m.totals.Load())
}

// fill adds the flows to a snapshot, which it leaves as it is.
func (m *Monitor) fill(s *Snapshot) *Snapshot {
	if full := m.full.Load(); full.Sequence == s.Sequence {
		return full
	}
	full := *s
	full.Flows = make([]Flow, 0, len(m.flows))
	for _, id := range slices.Sorted(maps.Keys(m.flows)) { // a flow is large: it is not sorted itself
		full.Flows = append(full.Flows, m.flows[id].flow)
	}
	m.full.Store(&full)
	return &full
}

// Subscribe returns a channel on which the last snapshot comes at once and every
// new one after it. Who reads slowly misses some. The channel is closed when ctx
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
	c <- m.fill(m.totals.Load())
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

// Flow is one flow of the moment, with its goodput so far. It returns false if
// there is no such flow any more.
func (m *Monitor) Flow(id FlowID) (Flow, Series, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.flows[id]
	if f == nil {
		return Flow{}, Series{}, false
	}
	return f.flow, f.series.view(f.seen - f.born), true
}

// Points are the course of a tunnel since a time, of all tunnels together where
// no name is given, the oldest first: by the second if that time is at most ten
// minutes ago, or else by the minute.
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
	// Both times are the wall clock's of this moment, so that steps of it move
	// all points together.
	now, at := time.Now().Round(0), m.now()
	points := p.since(at - now.Sub(since))
	out := make([]Point, len(points))
	for i, q := range points {
		out[i] = q.point(tunnel)
		out[i].At = now.Add(q.at - at)
	}
	return out
}

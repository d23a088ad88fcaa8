package resources

import (
	"runtime/debug"
	"sync"
	"time"
)

// The intervals of samples.
const (
	interval     = time.Second
	intervalNear = 100 * time.Millisecond // while a limit is near
	memoryReturn = 5 * time.Second        // between two returns of unused memory
)

// Options of a Monitor.
type Options struct {
	Limits Limits

	// LoopDelay, unless nil, returns the answer time of the slowest event loop;
	// unknown without an answer. It is called before each sample.
	LoopDelay func() Amount

	// OnState is called with every state, and with the changes since the previous
	// one. It must not call the Monitor.
	OnState func(State, []Change)

	// sample replaces the system in tests.
	sample func(time.Time) State
}

// Monitor takes samples until Close.
type Monitor struct {
	opts Options

	mu     sync.Mutex
	limits Limits
	state  State

	guard      guard
	returnedAt time.Time
	rest       rest
	goLimit    int64 // of the runtime, before the first change
	goBound    int64 // of BoundRuntime; 0: none

	changed chan struct{}
	stop    chan struct{}
	done    chan struct{}
}

// Start takes the first sample, calls OnState, and continues in the background.
func Start(o Options) *Monitor {
	m := &Monitor{
		opts: o, limits: o.Limits,
		goLimit: debug.SetMemoryLimit(-1),
		changed: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	if m.opts.sample == nil {
		m.opts.sample = newReader().sample
	}
	m.limitRuntime(o.Limits)
	m.look()
	go m.loop()
	return m
}

// SetLimits changes the limits at once.
func (m *Monitor) SetLimits(l Limits) {
	m.mu.Lock()
	m.limits = l
	m.mu.Unlock()
	m.limitRuntime(l)
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// BoundRuntime has the garbage collector work harder below so many bytes; 0: there is no such bound.
func (m *Monitor) BoundRuntime(bytes int64) {
	m.mu.Lock()
	m.goBound = bytes
	limits := m.limits
	m.mu.Unlock()
	m.limitRuntime(limits)
}

// State returns the last state.
func (m *Monitor) State() State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

// Close ends the samples. OnState is not called after it.
func (m *Monitor) Close() {
	close(m.stop)
	<-m.done
	debug.SetMemoryLimit(m.goLimit)
}

func (m *Monitor) loop() {
	defer close(m.done)
	timer := time.NewTimer(m.pause())
	defer timer.Stop()
	for {
		select {
		case <-m.stop:
			return
		case <-m.changed:
		case <-timer.C:
		}
		m.look()
		timer.Reset(m.pause())
	}
}

func (m *Monitor) pause() time.Duration {
	if m.State().near() {
		return intervalNear
	}
	return interval
}

// look takes and judges a sample.
func (m *Monitor) look() {
	delay := Unknown
	if m.opts.LoopDelay != nil {
		delay = m.opts.LoopDelay()
	}
	s := m.opts.sample(time.Now())
	s.LoopDelay = delay
	m.mu.Lock()
	changes := m.guard.judge(&s, m.limits)
	m.state = s
	m.mu.Unlock()
	if m.opts.OnState != nil {
		m.opts.OnState(s, changes)
	}
	// Ended flows leave garbage, and a relay that sheds or rests hardly allocates, so the
	// collector rarely runs.
	if s.Figure(Memory).SheddingSince != nil && s.At.Sub(m.returnedAt) >= memoryReturn || m.rest.due(readHeap(), s.At) {
		m.returnedAt = s.At
		debug.FreeOSMemory()
	}
}

// limitRuntime makes the garbage collector work harder near the memory limit, so that
// garbage does not count against it.
func (m *Monitor) limitRuntime(l Limits) {
	limit := m.goLimit
	if bytes := l[Memory].Amount; bytes > 0 {
		limit = min(limit, int64(resume*bytes))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.goBound > 0 {
		limit = min(limit, m.goBound)
	}
	debug.SetMemoryLimit(limit)
}

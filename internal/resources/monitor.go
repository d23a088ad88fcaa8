package resources

import (
	"runtime/debug"
	"sync"
	"time"
)

// How often samples are taken.
const (
	interval     = time.Second
	intervalNear = 100 * time.Millisecond // while a limit is near
	memoryReturn = 5 * time.Second        // between two times that unused memory is given back
)

// Options of a Monitor.
type Options struct {
	Limits Limits

	// LoopDelay says how long the slowest event loop took to answer, unknown
	// if it did not. It is asked before each sample. Nil means that there is
	// none to ask.
	LoopDelay func() Amount

	// OnState is called with every state, and with what has changed since the
	// one before. It must not call the Monitor.
	OnState func(State, []Change)

	// sample stands in for the system, in tests.
	sample func(time.Time) State
}

// Monitor takes samples until it is closed.
type Monitor struct {
	opts Options

	mu     sync.Mutex
	limits Limits
	state  State

	guard      guard
	returnedAt time.Time
	goLimit    int64 // of the runtime, as it was found

	changed chan struct{}
	stop    chan struct{}
	done    chan struct{}
}

// Start takes the first sample, tells OnState of it, and goes on.
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

// SetLimits changes the limits; they count at once.
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

// State is the last one.
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

// look takes a sample and judges it.
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
	// What flows have left behind is garbage until it is collected, and a relay
	// that sheds has little reason to collect: it hardly allocates.
	if s.Figure(Memory).SheddingSince != nil && s.At.Sub(m.returnedAt) >= memoryReturn {
		m.returnedAt = s.At
		debug.FreeOSMemory()
	}
}

// limitRuntime has the garbage collector work harder before the memory's limit
// is reached, rather than have garbage count against it.
func (m *Monitor) limitRuntime(l Limits) {
	limit := m.goLimit
	if bytes := l[Memory].Amount; bytes > 0 {
		limit = min(limit, int64(resume*bytes))
	}
	debug.SetMemoryLimit(limit)
}

package relay

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	report "longhaul/internal/flow"
	"longhaul/internal/relay/monotime"
	"longhaul/internal/units"
)

// Defaults of Health.
const (
	DefaultHealthInterval = 2 * time.Second
	DefaultHealthTimeout  = time.Second
	DefaultRise           = 2
	DefaultFall           = 2
	DefaultEjectAfter     = 3
	DefaultEjectFor       = 10 * time.Second
	DefaultSlowReturn     = 30 * time.Second
)

const (
	ejectDoublings = 6   // doublings of an ejection's duration at most
	minShare       = 0.1 // part of its weight with which a hop returns
)

// Health configures when a hop gets no new flows.
type Health struct {
	// Probe checks every hop; nil: only the flows' connects count.
	Probe Prober

	Interval   time.Duration // between two probes of a hop; 0 means 2 s
	Timeout    time.Duration // of a probe; 0 means 1 s
	Rise, Fall int           // consecutive probes that bring a hop up or down; 0 means 2

	EjectAfter int           // consecutive failed connects that eject a hop; 0 means 3, negative never
	EjectFor   time.Duration // first ejection's duration, doubled each time in a row up to 64 times; 0 means 10 s
	SlowReturn time.Duration // time in which a returning hop regains its share; 0 means 30 s, negative at once
}

func (h Health) withDefaults() Health {
	fill := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	fill(&h.Interval, DefaultHealthInterval)
	fill(&h.Timeout, DefaultHealthTimeout)
	fill(&h.EjectFor, DefaultEjectFor)
	fill(&h.SlowReturn, DefaultSlowReturn)
	for n, v := range map[*int]int{&h.Rise: DefaultRise, &h.Fall: DefaultFall, &h.EjectAfter: DefaultEjectAfter} {
		if *n == 0 {
			*n = v
		}
	}
	return h
}

// hop is the state of one of a tunnel's hops. It outlives reloads, and every
// event loop uses it. Times are the monotonic clock's.
type hop struct {
	name string // as configured

	flows  atomic.Int64 // connecting or connected
	total  atomic.Int64 // flows that were connected
	failed atomic.Int64 // flows whose connect failed
	turn   atomic.Uint32

	drained  atomic.Bool
	down     atomic.Bool     // by probes
	ejected  monotime.Atomic // end of the latest ejection; 0: never ejected
	back     monotime.Atomic // when probes last brought it up; 0: never down
	failures atomic.Int32    // consecutive failed connects

	mu        sync.Mutex    // guards the fields below
	ejections int           // in a row, without a success in between
	row       int           // consecutive probes that contradict down
	since     time.Duration // when its state last changed
	reason    string        // of the last failure
	rtt       time.Duration
	probed    bool
	current   float64 // of weighted round robin; guarded by tunnelState.mu
}

// usable reports whether new flows should go to the hop.
func (h *hop) usable(now time.Duration) bool {
	return !h.drained.Load() && !h.down.Load() && now >= h.ejected.Load()
}

// share is the current fraction of the hop's weight: a returning hop gets its
// flows little by little.
func (h *hop) share(now time.Duration, slow time.Duration) float64 {
	back := max(h.back.Load(), h.ejected.Load())
	if back == 0 || slow <= 0 || now >= back+slow {
		return 1
	}
	return max(minShare, float64(now-back)/float64(slow))
}

// connected records a successful connect of a flow.
func (h *hop) connected() {
	h.total.Add(1)
	if h.failures.Load() == 0 {
		return
	}
	h.failures.Store(0)
	h.mu.Lock()
	h.ejections = 0
	h.mu.Unlock()
}

// connectFailed records a failed connect of a flow. It returns the duration of
// the ejection that follows, 0 for none.
func (h *hop) connectFailed(now time.Duration, health *Health, err error) time.Duration {
	h.failed.Add(1)
	failures := h.failures.Add(1)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reason = fmt.Sprint(err)
	if health.EjectAfter < 0 || int(failures) < health.EjectAfter || now < h.ejected.Load() {
		return 0
	}
	span := health.EjectFor << min(h.ejections, ejectDoublings)
	h.ejections++
	h.since = now
	h.ejected.Store(now + span)
	return span
}

// probedAs records the result of a probe and reports whether it changed the
// hop's state.
func (h *hop) probedAs(now time.Duration, health *Health, rtt time.Duration, err error) (changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	first := !h.probed
	h.probed = true
	if err != nil {
		h.reason = err.Error()
	} else {
		h.rtt = rtt
	}
	if down := h.down.Load(); down == (err != nil) {
		h.row = 0
		return false
	}
	h.row++
	need := health.Fall
	if err == nil {
		need = health.Rise
	} else if first {
		need = 1 // a hop that was never up needs no second failure
	}
	if h.row < need {
		return false
	}
	h.row, h.since = 0, now
	if err == nil {
		h.back.Store(now)
	}
	h.down.Store(err != nil)
	return true
}

// unprobed clears the results of probes when probing of the hop ends.
func (h *hop) unprobed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.probed, h.row = false, 0
	h.down.Store(false)
}

// drain sets or clears the hop's drained state.
func (h *hop) drain(drained bool) {
	if h.drained.Swap(drained) != drained {
		h.mu.Lock()
		h.since = monotime.Now()
		h.mu.Unlock()
	}
}

func (h *hop) snapshot(t *Target, slow time.Duration, now time.Duration) report.Hop {
	s := report.Hop{
		Name:       h.name,
		State:      report.HopUp,
		Weight:     t.Weight,
		Priority:   t.Priority,
		FlowsNow:   h.flows.Load(),
		FlowsTotal: h.total.Load(),
		Failed:     h.failed.Load(),
	}
	var since time.Duration
	h.mu.Lock()
	s.LastError, s.Checked, since = h.reason, h.probed, h.since
	s.RTT = units.Seconds(h.rtt)
	h.mu.Unlock()
	switch {
	case h.drained.Load():
		s.State = report.HopDrained
	case h.down.Load():
		s.State = report.HopDown
	case now < h.ejected.Load():
		s.State = report.HopEjected
	case h.share(now, slow) < 1:
		s.State = report.HopReturning
		since = max(since, h.ejected.Load())
	}
	if since > 0 {
		s.Since = time.Now().Add(since - now)
	}
	s.Usable = s.State.Usable()
	return s
}

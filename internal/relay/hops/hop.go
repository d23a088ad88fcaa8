package hops

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"longhaul/internal/flow"
	"longhaul/internal/relay/monotime"
	"longhaul/internal/units"
)

// Hop is the state of one of a tunnel's hops. It outlives reloads, and every
// event loop uses it. Times are those of [monotime.Now].
type Hop struct {
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
	current   float64 // of weighted round robin; guarded by Set.turns
}

// Name is the hop's host and port as configured.
func (h *Hop) Name() string { return h.name }

// Join counts a flow that is connecting to the hop, until Leave.
func (h *Hop) Join() { h.flows.Add(1) }

// Leave removes a flow that has joined.
func (h *Hop) Leave() { h.flows.Add(-1) }

// Flows counts the flows that are connecting to the hop or connected.
func (h *Hop) Flows() int64 { return h.flows.Load() }

// Drained reports whether the operator has taken the hop out of service.
func (h *Hop) Drained() bool { return h.drained.Load() }

// Usable reports whether new flows should go to the hop.
func (h *Hop) Usable(now time.Duration) bool {
	return !h.drained.Load() && !h.down.Load() && now >= h.ejected.Load()
}

// share is the current fraction of the hop's weight: a returning hop gets its
// flows little by little.
func (h *Hop) share(now, slow time.Duration) float64 {
	back := max(h.back.Load(), h.ejected.Load())
	if back == 0 || slow <= 0 || now >= back+slow {
		return 1
	}
	return max(minShare, float64(now-back)/float64(slow))
}

// Connected records a successful connect of a flow.
func (h *Hop) Connected() {
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
func (h *Hop) connectFailed(now time.Duration, health *Health, err error) time.Duration {
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
func (h *Hop) probedAs(now time.Duration, health *Health, rtt time.Duration, err error) (changed bool) {
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
func (h *Hop) unprobed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.probed, h.row = false, 0
	h.down.Store(false)
}

// Drain sets or clears the hop's drained state.
func (h *Hop) Drain(drained bool) {
	if h.drained.Swap(drained) != drained {
		h.mu.Lock()
		h.since = monotime.Now()
		h.mu.Unlock()
	}
}

func (h *Hop) snapshot(t *Target, slow, now time.Duration) flow.Hop {
	s := flow.Hop{
		Name:       h.name,
		State:      flow.HopUp,
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
		s.State = flow.HopDrained
	case h.down.Load():
		s.State = flow.HopDown
	case now < h.ejected.Load():
		s.State = flow.HopEjected
	case h.share(now, slow) < 1:
		s.State = flow.HopReturning
		since = max(since, h.ejected.Load())
	}
	if since > 0 {
		s.Since = time.Now().Add(since - now)
	}
	s.Usable = s.State.Usable()
	return s
}

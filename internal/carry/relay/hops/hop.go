package hops

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay/monotime"
	"longhaul/internal/words/units"
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
	worked   atomic.Bool     // a connect or a probe has succeeded
	failing  atomic.Bool     // connects failed one after another, and nothing has succeeded since
	ejected  monotime.Atomic // end of the latest ejection; 0: none since the last success
	back     monotime.Atomic // when a success last ended failing or down; 0: never
	failures atomic.Int32    // consecutive failed connects
	port     atomic.Uint32   // of the last failed connect
	watched  atomic.Bool     // it is probed because connects failed
	away     atomic.Bool     // its session did not stand at the last look, for longer than a moment
	suspect  monotime.Atomic // since when its far relay owes an answer; 0: it does not
	changed  monotime.Atomic // when it last came back other than by its session; 0: never

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

// usable reports whether new flows should go to a hop in a state. kept: it gets flows while it returns.
func usable(state flow.HopState, kept bool) bool {
	switch state {
	case flow.HopUp, flow.HopUntried:
		return true
	case flow.HopReturning:
		return kept
	}
	return false
}

// state is the only place that decides how a hop is.
//
//	untried ──success──▶ up ──failures──▶ ejected ──time──▶ returning ──success──▶ up
func (h *Hop) state(now time.Duration) flow.HopState {
	switch {
	case h.drained.Load():
		return flow.HopDrained
	case h.down.Load():
		return flow.HopDown
	case h.failing.Load() && now < h.ejected.Load():
		return flow.HopEjected
	case h.failing.Load():
		return flow.HopReturning
	case !h.worked.Load():
		return flow.HopUntried
	}
	return flow.HopUp
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
func (h *Hop) Connected(now time.Duration) {
	h.total.Add(1)
	if h.failures.Load() == 0 && h.worked.Load() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ejections = 0
	h.succeeded(now)
}

// succeeded records that a connect or a probe has succeeded. It reports whether the hop
// gets new flows again by that. The caller holds mu.
func (h *Hop) succeeded(now time.Duration) (returned bool) {
	returned = h.failing.Load()
	if returned {
		h.back.Store(now)
		h.changed.Store(now)
	}
	if returned || !h.worked.Load() {
		h.since = now
	}
	h.failures.Store(0)
	h.ejected.Store(0)
	h.failing.Store(false)
	h.worked.Store(true)
	return returned
}

// Lost counts a flow whose far relay was lost before it had a target.
func (h *Hop) Lost() { h.failed.Add(1) }

// connectFailed records a failed connect of a flow. It returns the duration of
// the ejection that follows, 0 for none.
func (h *Hop) connectFailed(now time.Duration, health *Health, err error) time.Duration {
	h.failed.Add(1)
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failure(now, health, err)
}

// failure counts a failed connect, of a flow or a probe. The caller holds mu.
func (h *Hop) failure(now time.Duration, health *Health, err error) time.Duration {
	failures := int(h.failures.Add(1))
	h.reason = fmt.Sprint(err)
	ejectAfter := health.EjectAfter
	if ejectAfter < 0 {
		ejectAfter = DefaultEjectAfter
	}
	if failures < ejectAfter || h.failing.Load() && now < h.ejected.Load() {
		return 0
	}
	if health.EjectAfter < 0 {
		if !h.failing.Swap(true) {
			h.since = now
		}
		return 0
	}
	span := health.EjectFor << min(h.ejections, ejectDoublings)
	h.ejections++
	h.since = now
	h.ejected.Store(now + span)
	h.failing.Store(true)
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
		changed = h.succeeded(now) && !h.down.Load()
	}
	if down := h.down.Load(); down == (err != nil) {
		h.row = 0
		return changed
	}
	h.row++
	need := health.Fall
	if err == nil {
		need = health.Rise
	} else if first {
		need = 1 // a hop that was never up needs no second failure
	}
	if h.row < need {
		return changed
	}
	h.row, h.since = 0, now
	if err == nil {
		h.back.Store(now)
	}
	h.down.Store(err != nil)
	return true
}

// retriedAs records the result of a probe that was made because connects failed. It reports
// whether it changed the hop's state. Failures count as those of flows, until the hop is out.
func (h *Hop) retriedAs(now time.Duration, health *Health, rtt time.Duration, err error) (changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil:
		h.rtt = rtt
		return h.succeeded(now)
	case h.failing.Load():
		h.reason = err.Error()
		return false
	}
	h.failure(now, health, err)
	return h.failing.Load()
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
		h.changed.Store(monotime.Now())
		h.mu.Lock()
		h.since = monotime.Now()
		h.mu.Unlock()
	}
}

func (h *Hop) snapshot(t *Target, kept bool, now time.Duration) flow.Hop {
	s := flow.Hop{
		Name:       h.name,
		State:      h.state(now),
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
	if s.State == flow.HopReturning {
		since = max(since, h.ejected.Load())
	}
	if since > 0 {
		s.Since = time.Now().Add(since - now)
	}
	s.Usable = usable(s.State, kept)
	return s
}

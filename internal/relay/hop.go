package relay

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Defaults of Health.
const (
	DefaultCheckInterval = 2 * time.Second
	DefaultCheckTimeout  = time.Second
	DefaultRise          = 2
	DefaultFall          = 2
	DefaultEjectAfter    = 3
	DefaultEjectFor      = 10 * time.Second
	DefaultSlowReturn    = 30 * time.Second
)

const (
	ejectDoublings = 6   // how often the time of an ejection doubles
	leastShare     = 0.1 // of its weight that a hop has when it comes back
)

// Health says when a hop is left out of the choice.
type Health struct {
	// Probe is asked about every hop; nil: only the flows' own connects tell.
	Probe Prober

	Interval   time.Duration // between two probes of a hop; 0 means 2 s
	Timeout    time.Duration // of a probe; 0 means 1 s
	Rise, Fall int           // probes in a row that bring a hop back or take it away; 0 means 2

	EjectAfter int           // failed connects of flows in a row that eject a hop; 0 means 3, negative never
	EjectFor   time.Duration // for how long, doubled each time in a row up to 64 times; 0 means 10 s
	SlowReturn time.Duration // over which a hop that comes back gets its share again; 0 means 30 s, negative at once
}

func (h Health) withDefaults() Health {
	fill := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	fill(&h.Interval, DefaultCheckInterval)
	fill(&h.Timeout, DefaultCheckTimeout)
	fill(&h.EjectFor, DefaultEjectFor)
	fill(&h.SlowReturn, DefaultSlowReturn)
	for n, v := range map[*int]int{&h.Rise: DefaultRise, &h.Fall: DefaultFall, &h.EjectAfter: DefaultEjectAfter} {
		if *n == 0 {
			*n = v
		}
	}
	return h
}

// hop is what a tunnel knows of one of its hops. It outlives a reload, and
// every event loop uses it. Times are the monotonic clock's.
type hop struct {
	name string // as it is configured

	flows  atomic.Int64 // that are connecting to it or stand
	total  atomic.Int64 // flows that stood
	failed atomic.Int64 // flows whose connect failed here
	turn   atomic.Uint32

	drained  atomic.Bool
	down     atomic.Bool  // says the check
	ejected  atomic.Int64 // until when; 0: never was
	back     atomic.Int64 // when the check said it was up again; 0: it never was down
	failures atomic.Int32 // connects that failed in a row

	mu        sync.Mutex // guards what follows
	ejections int        // without a success in between
	row       int        // probes in a row that say the opposite of down
	since     int64      // when its state last changed
	reason    string     // of the last failure
	rtt       time.Duration
	probed    bool
	current   float64 // of the turn by weights, guarded by the tunnel's lock
}

// usable says whether new flows should go to the hop.
func (h *hop) usable(now int64) bool {
	return !h.drained.Load() && !h.down.Load() && now >= h.ejected.Load()
}

// share is the part of its weight that the hop has now: a hop that has just
// come back gets its flows little by little.
func (h *hop) share(now int64, slow time.Duration) float64 {
	back := max(h.back.Load(), h.ejected.Load())
	if back == 0 || slow <= 0 || now >= back+int64(slow) {
		return 1
	}
	return max(leastShare, float64(now-back)/float64(slow))
}

// connected notes that a flow's connect succeeded.
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

// connectFailed notes that a flow's connect failed. It returns for how long
// that ejects the hop, 0 if it does not.
func (h *hop) connectFailed(now int64, health *Health, err error) time.Duration {
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
	h.ejected.Store(now + int64(span))
	return span
}

// probedAs notes the outcome of a probe and returns whether it changed the
// hop's state.
func (h *hop) probedAs(now int64, health *Health, rtt time.Duration, err error) (changed bool) {
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
		need = 1 // nothing speaks for a hop that was never seen up
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

// unprobed forgets what checks said: nobody makes them any more.
func (h *hop) unprobed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.probed, h.row = false, 0
	h.down.Store(false)
}

// drain takes the hop out of the choice, or puts it back.
func (h *hop) drain(drained bool) {
	if h.drained.Swap(drained) != drained {
		h.mu.Lock()
		h.since = monotonic()
		h.mu.Unlock()
	}
}

// HopState says whether new flows go to a hop.
type HopState string

// The states of a hop.
const (
	HopUp        HopState = "up"
	HopReturning HopState = "returning" // up, with a part of its share
	HopDown      HopState = "down"      // says the check
	HopEjected   HopState = "ejected"   // by failed connects
	HopDrained   HopState = "drained"   // by the operator
)

// HopSnapshot is one hop of a tunnel.
type HopSnapshot struct {
	Hop      string   `json:"hop"` // as it is configured
	State    HopState `json:"state"`
	Weight   int      `json:"weight"`
	Priority int      `json:"priority"`

	SinceSeconds *float64 `json:"since_seconds"` // since its state changed; null: it never did
	Checked      bool     `json:"checked"`       // probes are made, and one has ended
	RTTSeconds   *float64 `json:"rtt_seconds"`   // of the last probe that succeeded; null: none did
	FlowsNow     int64    `json:"flows_now"`
	FlowsTotal   int64    `json:"flows_total"`
	Failed       int64    `json:"failed_total"`         // flows whose connect failed here
	LastError    string   `json:"last_error,omitempty"` // of a connect or a probe
}

func (h *hop) snapshot(t *Target, slow time.Duration, now int64) HopSnapshot {
	s := HopSnapshot{
		Hop:        h.name,
		State:      HopUp,
		Weight:     t.Weight,
		Priority:   t.Priority,
		FlowsNow:   h.flows.Load(),
		FlowsTotal: h.total.Load(),
		Failed:     h.failed.Load(),
	}
	since := int64(0)
	h.mu.Lock()
	s.LastError, s.Checked, since = h.reason, h.probed, h.since
	if h.rtt > 0 {
		rtt := h.rtt.Seconds()
		s.RTTSeconds = &rtt
	}
	h.mu.Unlock()
	switch {
	case h.drained.Load():
		s.State = HopDrained
	case h.down.Load():
		s.State = HopDown
	case now < h.ejected.Load():
		s.State = HopEjected
	case h.share(now, slow) < 1:
		s.State = HopReturning
		since = max(since, h.ejected.Load())
	}
	if since > 0 {
		seconds := time.Duration(now - since).Seconds()
		s.SinceSeconds = &seconds
	}
	return s
}

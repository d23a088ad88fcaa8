package monitor

import (
	"slices"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/words/stats"
)

// Quantity is what a histogram of flows is of.
type Quantity string

// The quantities. They are of one tunnel; Connect is of one hop of it.
const (
	Goodput  Quantity = "goodput"  // bytes per second both ways, of ended flows with at least MinTransfer
	Duration Quantity = "duration" // seconds, of ended flows
	Outage   Quantity = "outage"   // seconds without a connection that it needed, of ended flows that resumed
	Connect  Quantity = "connect"  // seconds that a target took to accept
)

// MinTransfer is the size of the flows whose goodput counts, in bytes: that of shorter ones is mostly their
// round-trip time. The history leaves out the same.
const MinTransfer = 1 << 20

// Distribution is a histogram of a quantity since the start. It never changes.
type Distribution struct {
	*stats.Histogram
	// Exemplar is the flow with the worst value of the last interval that had any.
	Exemplar Exemplar
}

// Exemplar is the value of a flow. A zero name means that there is none.
type Exemplar struct {
	Flow  flow.Name
	Value float64
	At    time.Time
}

// Distributions are those of a tunnel.
type Distributions struct{ Goodput, Duration, Outage *Distribution }

// Observation is a value of a quantity.
type Observation struct {
	Of     Quantity `json:"of"`
	Tunnel string   `json:"tunnel"`
	Hop    string   `json:"hop,omitempty"` // of Connect
	Value  float64  `json:"value"`
	flow   flow.Name
	at     time.Time
}

// distribution is a Distribution that goes on.
type distribution struct {
	stats.Histogram
	worst Exemplar      // of the last interval with any
	fresh bool          // worst is of this interval
	shown *Distribution // nil: it has changed since
}

var noDistribution = &Distribution{Histogram: &stats.Histogram{}}

func (d *distribution) add(o *Observation) {
	d.Observe(o.Value)
	d.shown = nil
	if !o.flow.IsZero() && (!d.fresh || o.Value > d.worst.Value != (o.Of == Goodput)) {
		d.worst, d.fresh = Exemplar{o.flow, o.Value, o.at}, true
	}
}

// snapshot returns what was observed so far, and ends an interval.
func (d *distribution) snapshot() *Distribution {
	if d.shown == nil {
		d.shown = noDistribution
		if d.Count > 0 {
			d.shown = &Distribution{d.Clone(), d.worst}
		}
		d.fresh = false
	}
	return d.shown
}

// connected observes how long a target took to accept, once for each flow.
func (m *Monitor) connected(f *flowTrack, tunnel, hop string, took time.Duration, name flow.Name) {
	if took <= 0 || f != nil && f.connected {
		return
	}
	if f != nil {
		f.connected = true
	}
	m.observe(Observation{Of: Connect, Tunnel: tunnel, Hop: hop, Value: took.Seconds(), flow: name, at: time.Now()})
}

// observeEnd observes a flow that has ended.
func (m *Monitor) observeEnd(r *Record) {
	o := Observation{Tunnel: r.Tunnel, flow: r.Name, at: r.End}
	see := func(of Quantity, v float64) {
		o.Of, o.Value = of, v
		m.observe(o)
	}
	see(Duration, r.Elapsed.Duration().Seconds())
	if r.BytesUp+r.BytesDown >= MinTransfer && r.Elapsed > 0 {
		see(Goodput, r.GoodputBps()/8)
	}
	if r.Resumes > 0 {
		see(Outage, r.Outage.Duration().Seconds())
	}
}

// observe counts a value, or keeps it for another process.
func (m *Monitor) observe(o Observation) {
	if m.observed.to != nil {
		if len(m.observed.waiting) < maxEnded {
			m.observed.waiting = append(m.observed.waiting, o)
		}
		return
	}
	t := m.tunnel(o.Tunnel)
	switch o.Of {
	case Goodput:
		t.goodput.add(&o)
	case Duration:
		t.duration.add(&o)
	case Outage:
		t.outage.add(&o)
	case Connect:
		t.hop(o.Hop).connect.add(&o)
	}
}

// Observe counts values that another process of this relay has observed. It ignores those of tunnels that
// the relay has no more.
func (m *Monitor) Observe(all []Observation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range all {
		if m.tunnels[o.Tunnel] != nil {
			m.observe(o)
		}
	}
}

// PassOn has all values from now on handed to the process that has taken over, whose metrics are read: once
// each interval, and at the end. Those that to does not take, with an error, are handed to it again. At most
// 32 768 wait.
func (m *Monitor) PassOn(to func([]Observation) (taken int, err error)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.observed.to = to
}

// passOn hands the waiting values on. Others only append some meanwhile.
func (m *Monitor) passOn() {
	m.mu.Lock()
	to, all := m.observed.to, slices.Clip(m.observed.waiting)
	m.mu.Unlock()
	if to == nil || len(all) == 0 {
		return
	}
	taken, err := to(all)
	if err != nil {
		m.log.Debug("cannot pass figures of ended flows on to the process that has taken over", "error", err)
	}
	m.mu.Lock()
	m.observed.waiting = slices.Delete(m.observed.waiting, 0, taken)
	m.mu.Unlock()
}

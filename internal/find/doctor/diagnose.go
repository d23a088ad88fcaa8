package doctor

import (
	"fmt"
	"math"
	"slices"
	"time"

	"longhaul/internal/words/sorted"
	"longhaul/internal/words/units"
)

// Finding is a cause that the figures indicate.
type Finding struct {
	Cause    Cause    `json:"cause"`
	Evidence []string `json:"evidence"` // a clause each, with figures
	// BoundBps is the goodput that the cause allows, in bits per second. Removing
	// the cause brings the goodput that the other causes allow.
	BoundBps float64 `json:"bound_bps,omitempty"`
	// PredictedBps is the expected goodput without the cause, and Next its limit
	// then. 0 is unknown: no figure shows the path's capacity.
	PredictedBps float64 `json:"predicted_bps,omitempty"`
	Next         string  `json:"next_limit,omitempty"`
	// pathShare is the factor that the removal of the cause brings to the path's
	// capacity, as the trial found it; 0: none.
	pathShare float64
	// strength and doubt are those of a rule that knows them itself; empty: those of the
	// cause.
	strength Strength
	doubt    string
	// unpredicted is why no figure shows the goodput without the cause; empty: one may.
	unpredicted string
}

// Report is the doctor's report.
type Report struct {
	// Observation is the observed connection, without the samples.
	Observation Observation `json:"observation"`
	Figures     Figures     `json:"figures"`
	// Counts is what was counted: by the capture, or by the kernel meanwhile.
	Counts Counts `json:"counts"`

	GoodputBps float64 `json:"goodput_bps"`
	Cause      Cause   `json:"cause"`
	// Findings are all found causes, the verdict's first.
	Findings []Finding `json:"findings"`
	Remedies []Remedy  `json:"remedies,omitempty"`
	// RelayPair is the outlook of a relay at each site. It is no remedy if it
	// brings little. Nil: none of the figures shows it.
	RelayPair *Outlook `json:"relay_pair,omitempty"`
	// Together: several causes limit the connection to about the same rate, so
	// removing one alone brings little.
	Together bool `json:"together,omitempty"`
	// Strength is how far the evidence goes. Doubt says what else would show the same
	// figures, and how to distinguish them; empty if the verdict is certain.
	Strength Strength `json:"strength"`
	Doubt    string   `json:"doubt,omitempty"`
	// Unpredicted says why remedies have no prediction, and how to get one.
	Unpredicted string `json:"unpredicted,omitempty"`
}

// ErrTooLittle reports that the observation is too short for a verdict.
type ErrTooLittle struct{ Seen, Needed string }

func (e *ErrTooLittle) Error() string {
	return fmt.Sprintf("too little data for a verdict: %s; needed: %s", e.Seen, e.Needed)
}

// Worthwhile is the minimum gain of a remedy, and of the cause that a verdict names.
const Worthwhile = 1.2

// Diagnose names the cause that limits the connection. The error is an *ErrTooLittle.
func Diagnose(o Observation) (Report, error) {
	f := o.Figures()
	r := Report{Observation: o, Figures: f, Counts: o.counts(&f), GoodputBps: zeroIfNaN(f.GoodputBps)}
	r.Observation.Samples = nil
	if o.Pair.isDown() {
		return o.Pair.diagnose(r), nil
	}
	c := newPatient(o, f)
	err := enough(o, f)
	if c.captured() {
		err = c.enoughCaptured()
	}
	if err != nil {
		return r, err
	}
	r.GoodputBps = c.goodput
	if !c.captured() && c.receives() {
		return c.diagnoseReceiver(r), nil
	}
	for _, entry := range causes {
		if c.lacks() && entry != &readerCause {
			continue
		}
		if entry.rule == nil || entry.standstill != c.stands() {
			continue
		}
		if finding := entry.rule(c); finding != nil {
			r.Findings = append(r.Findings, *finding)
		}
		if len(r.Findings) > 0 && r.Findings[0].Cause == ShortFlow {
			break // the other rules need connections that last
		}
	}
	c.predict(r.Findings)
	r.Findings = c.rank(r.Findings)
	if len(r.Findings) == 0 {
		r.Findings = []Finding{c.unexplained()}
	}
	r.Cause = r.Findings[0].Cause
	r.Together = len(r.Findings) > 1 && c.gain(r.Findings[0]) == 0
	r.Strength, r.Doubt = c.strength(r.Findings)
	r.Remedies = c.remedies(r.Findings)
	r.RelayPair = c.relays(r.Findings)
	for _, remedy := range r.Remedies {
		switch {
		case remedy.Unknown == unknownCapacity && math.IsInf(c.path, 1):
			r.Unpredicted = c.capacityUnknown()
		case remedy.Unknown != "" && r.Unpredicted == "":
			r.Unpredicted = remedy.Unknown
		}
	}
	return r, nil
}

// enough returns an error unless the samples span some seconds and some round trips.
func enough(o Observation, f Figures) error {
	needed := max(minTime, minRoundTrips*f.MinRTT)
	if o.shortConnections(f) || f.Stalled >= stallTime(f) {
		return nil
	}
	wanted := fmt.Sprintf("%s with data in flight", full((needed + 99*time.Millisecond).Truncate(100*time.Millisecond)))
	switch {
	case f.Samples < minSamples || f.Time < needed:
		seen := fmt.Sprintf("%s of a connection", full(f.Time))
		if f.Time >= needed { // few moments were looked at
			seen, wanted = fmt.Sprintf("%d samples in %.1f s", f.Samples, f.Time.Seconds()), fmt.Sprintf("%d samples", minSamples)
		}
		if o.Ended {
			seen += " that ended meanwhile"
		}
		return &ErrTooLittle{seen, wanted}
	case math.IsNaN(f.GoodputBps):
		return &ErrTooLittle{"this kernel does not count acknowledged bytes", "Linux 4.1 or later"}
	case f.GoodputBps == 0 && f.Received == 0 && !(&patient{f: f}).closed():
		return &ErrTooLittle{fmt.Sprintf("no data moved in %.1f s", f.Time.Seconds()), "a running transfer"}
	}
	return nil
}

const (
	minSamples    = 10
	minTime       = 1500 * time.Millisecond
	minRoundTrips = 8
)

// stallTime is the time without an acknowledgement after which nothing gets through:
// several timeouts in a row.
func stallTime(f Figures) time.Duration { return max(2*time.Second, 4*f.RTT) }

// patient is a connection with its bounds.
type patient struct {
	o       Observation
	f       Figures
	goodput float64 // bits per second, of all connections of the service
	// capacity is the path's capacity by a trial; +Inf without one.
	capacity float64
	// path is the best known capacity of the path for one connection, for predictions: by a
	// trial, or by the bursts of a capture; +Inf if unknown.
	path   float64
	lost   float64 // share of segments really lost; 0 if unknown
	counts Counts
}

func newPatient(o Observation, f Figures) *patient {
	c := new(patient)
	c.begin(o, f)
	return c
}

func (c *patient) begin(o Observation, f Figures) {
	*c = patient{o: o, f: f, goodput: zeroIfNaN(f.GoodputBps), capacity: math.Inf(1), counts: o.counts(&f)}
	if o.shortConnections(f) && o.Time > 0 {
		c.goodput = float64(o.TotalBytes) * 8 / o.Time.Seconds()
	}
	if o.Capacity != nil && o.Capacity.GoodputBps > 0 {
		c.capacity = max(o.Capacity.GoodputBps, c.goodput)
	}
	c.lost = zeroIfNaN(f.LossShare) * (1 - min(zeroIfNaN(f.SpuriousShare), 1))
	if o.Capture != nil {
		c.lost = max(0, c.counts.lossShare()*(1-min(float64(c.counts.Spurious)/float64(max(c.counts.Retransmitted, 1)), 1)))
		if !(c.goodput > 0) && c.duration() > 0 {
			c.goodput = float64(c.counts.Delivered) * 8 / c.duration().Seconds()
		}
	}
	c.path = c.capacity
	if c.policesConnections() {
		c.path = max(o.MoreStreams.each(), c.goodput)
	}
	if math.IsInf(c.path, 1) && o.Capture != nil && o.Capture.BurstBps > 0 {
		c.path = max(o.Capture.BurstBps, c.goodput)
	}
}

// predict computes the goodput after the removal of each cause.
func (c *patient) predict(findings []Finding) {
	for k := range findings {
		finding := &findings[k]
		if finding.Cause.IsNone() || finding.Cause.entry().ends || finding.PredictedBps != 0 || finding.unpredicted != "" {
			continue
		}
		if bps, next := c.without(findings, []Cause{finding.Cause}); !math.IsInf(bps, 1) {
			finding.PredictedBps, finding.Next = bps, next
			if c.o.Capture != nil && next == "the path" {
				finding.Evidence = append(finding.Evidence, fmt.Sprintf("%d bursts of segments crossed the path at %s",
					c.o.Capture.Bursts, units.FormatRate(c.path)))
			}
		}
	}
}

// trialBound is the next limit if the trial did not fill the path.
const trialBound = "no more than the trial"

// without returns the expected goodput after the removal of some causes, and its limit
// then: the minimum that the other causes, the losses, the windows and the path allow.
// It is infinite if no figure shows it.
func (c *patient) without(findings []Finding, removed []Cause) (bps float64, next string) {
	gone := func(causes ...Cause) bool {
		return slices.ContainsFunc(causes, func(cause Cause) bool { return slices.Contains(removed, cause) })
	}
	if len(removed) == 1 { // some rules predict the removal of their cause themselves
		for _, f := range findings {
			if f.Cause == removed[0] && f.PredictedBps > 0 {
				return f.PredictedBps, f.Next
			}
		}
	}
	least, next := c.path, "the path"
	if c.captured() && (math.IsInf(c.path, 1) || !c.sendsFull() || c.exchanges()) {
		return math.Inf(1), "" // nothing in the capture shows what the path carries
	}
	if c.o.Capacity != nil && c.o.Capacity.WindowLimited {
		next = trialBound
	}
	for _, f := range findings {
		switch {
		case !gone(f.Cause):
		case f.unpredicted != "":
			return math.Inf(1), ""
		case f.pathShare > 0:
			least *= f.pathShare
			next = f.Next
		case f.Cause == SegmentSize || f.Cause == AsymmetricMTU:
			return math.Inf(1), "" // no trial showed what larger segments bring
		}
	}
	lower := func(bps float64, name string) {
		if bps < least {
			least, next = bps, name
		}
	}
	for _, f := range findings {
		if !gone(f.Cause) && f.BoundBps > 0 {
			lower(f.BoundBps, string(f.Cause))
		}
	}
	if !gone(RandomLoss, Policer, Reordering, BlackHole) {
		lower(c.lossBound(), "loss")
	}
	if !gone(Pacing) {
		lower(c.f.PacedBps, "the program's pacing")
	}
	if !gone(ReceiverWindow, WindowScaling) && c.smallWindow() {
		lower(c.windowBound(), "the receiver's window")
	}
	if gone(ReceiverWindow, WindowScaling) && !gone(SendBuffer) && c.f.SendBufferFixed {
		lower(c.bufferBound(), "the send buffer")
	}
	return max(least, c.goodput), next
}

// eventRTT is the minimum round-trip time at which samples distinguish loss events.
// longestBurst is the maximum number of losses that count as one event.
const (
	eventRTT     = 50 * time.Millisecond
	longestBurst = 5
)

// lossBound returns the goodput of the connection's congestion control at its losses.
func (c *patient) lossBound() float64 {
	p := c.lost
	if c.f.RTT >= eventRTT && c.f.LossEvents > 0 {
		// Losses come in bursts, and a burst is one event to the congestion control.
		// Samples that come more often than round trips show the events.
		p = min(p, max(c.f.LossEventRate, c.lost/longestBurst))
	}
	return lossBoundBps(c.o.CongestionControl, c.f.MSS, c.f.RTT, p)
}

// smallWindow reports whether the peer's window is a constant bound. It limits the
// sender at times, or is smaller than the usual initial window of systems.
func (c *patient) smallWindow() bool {
	f := c.f
	return f.PeerWindowMin > 0.9*f.PeerWindowMax && (f.Rwnd > 0.02 || f.PeerWindowMax < 60000)
}

// bufferBound returns about the goodput that a send buffer allows: a little more than
// half of it is data, and a write of 64 KiB may exceed it.
func (c *patient) bufferBound() float64 {
	return (0.6*c.f.SendBuffer + 25_000) * 8 / c.f.RTT.Seconds()
}

// stands reports whether the connection stands still.
// A sender whose peer's window is closed has nothing to wait for on the path.
func (c *patient) stands() bool {
	stalled := c.stallAtTheEnd()
	return stalled >= stallTime(c.f) && !c.closed()
}

// glances reports whether there are only two samples.
func (c *patient) glances() bool { return c.f.Samples == 2 && !c.captured() }

// rank sorts the findings by the gain of their removal, highest first. On a full path
// Healthy precedes causes whose removal brings little.
func (c *patient) rank(findings []Finding) []Finding {
	sorted.By(findings, func(a, b Finding) int {
		return compareGains(c.gain(b), c.gain(a))
	})
	if len(findings) > 0 && c.gain(findings[0]) == 0 && c.goodput >= ownQueue*c.capacity {
		findings = append([]Finding{{Cause: Healthy,
			Evidence: []string{"the removal of no found cause would bring a fifth more"}}}, findings...)
	}
	if len(findings) > 0 && findings[0].Cause == Healthy {
		// A window that is as large as the path needs is no limit.
		findings = slices.DeleteFunc(findings, func(f Finding) bool { return f.Cause == ReceiverWindow || f.Cause == WindowScaling })
	}
	return findings
}

// compareGains treats gains that differ little as equal: the order of the rules
// decides then.
func compareGains(a, b float64) int {
	switch {
	case a > 1.1*b:
		return 1
	case b > 1.1*a:
		return -1
	}
	return 0
}

// gain returns the factor that a finding's removal brings. All findings without a
// prediction rank equal.
func (c *patient) gain(f Finding) float64 {
	switch {
	case f.Cause.IsNone():
		return Worthwhile
	case f.PredictedBps == 0:
		return math.Inf(1)
	case c.goodput == 0:
		return math.Inf(1)
	}
	if gain := f.PredictedBps / c.goodput; gain >= Worthwhile {
		return gain
	}
	return 0 // below Healthy
}

package doctor

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Finding is a cause that the figures speak for.
type Finding struct {
	Cause    Cause    `json:"cause"`
	Evidence []string `json:"evidence"` // a clause each, with figures
	// BoundBps is what the cause lets through, bits per second of data; what
	// the others let through is what removing it brings.
	BoundBps float64 `json:"bound_bps,omitempty"`
	// PredictedBps is the goodput to expect once the cause is removed, and Next
	// what limits it then. 0 is unknown: nothing shows what the path carries.
	PredictedBps float64 `json:"predicted_bps,omitempty"`
	Next         string  `json:"next_limit,omitempty"`
}

// Report is what the doctor has to say.
type Report struct {
	// Observation is what it is about, without the samples.
	Observation Observation `json:"observation"`
	Figures     Figures     `json:"figures"`

	GoodputBps float64 `json:"goodput_bps"`
	Cause      Cause   `json:"cause"`
	// Findings are all causes that were found, that of the verdict first.
	Findings []Finding `json:"findings"`
	Remedies []Remedy  `json:"remedies,omitempty"`
	// Together: several causes hold the connection to about the same rate, so
	// that removing one alone brings little.
	Together bool `json:"together,omitempty"`
	// Certain is false where another cause would show the same figures, and
	// Doubt says what would tell them apart.
	Certain bool   `json:"certain"`
	Doubt   string `json:"doubt,omitempty"`
}

// ErrTooLittle says that what was seen bears no verdict.
type ErrTooLittle struct{ Seen, Needed string }

func (e *ErrTooLittle) Error() string {
	return fmt.Sprintf("too little was seen for a verdict: %s; it takes %s", e.Seen, e.Needed)
}

// Worthwhile is the gain from which a remedy is one, and a cause the cause.
const Worthwhile = 1.2

// Diagnose says what limits the connection. The error is an *ErrTooLittle.
func Diagnose(o Observation) (Report, error) {
	f := o.Figures()
	r := Report{Observation: o, Figures: f, GoodputBps: zeroIfNaN(f.GoodputBps)}
	r.Observation.Samples = nil
	if err := enough(o, f); err != nil {
		return r, err
	}
	c := newPatient(o, f)
	r.GoodputBps = c.goodput
	if c.receives() {
		return c.diagnoseReceiver(r), nil
	}
	for _, rule := range rules {
		if finding := rule(c); finding != nil {
			r.Findings = append(r.Findings, *finding)
		}
		if c.stands() || len(r.Findings) > 0 && r.Findings[0].Cause == ShortFlow {
			break // the others are about connections that move, and go on
		}
	}
	c.predict(r.Findings)
	r.Findings = c.rank(r.Findings)
	if len(r.Findings) == 0 {
		r.Findings = []Finding{{Cause: Unexplained, Evidence: []string{"no figure stands out"}}}
	}
	r.Cause = r.Findings[0].Cause
	r.Together = c.gain(r.Findings[0]) == 0
	r.Doubt = c.doubt(r.Cause)
	r.Certain = r.Doubt == "" && r.Cause != Unexplained
	r.Remedies = c.remedies(r.Findings)
	return r, nil
}

// enough says whether there is a verdict in the samples: some seconds, and some
// round trips.
func enough(o Observation, f Figures) error {
	needed := max(minTime, minRoundTrips*f.MinRTT)
	if o.shortConnections(f) || f.Stalled >= stallTime(f) {
		return nil
	}
	wanted := fmt.Sprintf("%.1f s with data under way", needed.Seconds())
	switch {
	case f.Samples < minSamples || f.Time < needed:
		seen := fmt.Sprintf("%.1f s of a connection", f.Time.Seconds())
		if o.Ended {
			seen += " that ended meanwhile"
		}
		return &ErrTooLittle{seen, wanted}
	case math.IsNaN(f.GoodputBps):
		return &ErrTooLittle{"this kernel does not count what was acknowledged", "Linux 4.1 or later"}
	case f.GoodputBps == 0 && f.Received == 0:
		return &ErrTooLittle{fmt.Sprintf("no data moved in %.1f s", f.Time.Seconds()), "a transfer that is under way"}
	}
	return nil
}

const (
	minSamples    = 10
	minTime       = 1500 * time.Millisecond
	minRoundTrips = 8
)

// stallTime is from when on nothing acknowledged means that nothing gets
// through: several timeouts in a row.
func stallTime(f Figures) time.Duration { return max(2*time.Second, 4*f.RTT) }

// patient is a connection with what bounds it.
type patient struct {
	o       Observation
	f       Figures
	goodput float64 // bits per second, of all connections of the service
	// capacity is what the path carries, as far as a trial showed; +Inf if
	// nothing did.
	capacity float64
	lost     float64 // share of segments that really were lost; 0 if unknown
}

func newPatient(o Observation, f Figures) *patient {
	c := &patient{o: o, f: f, goodput: zeroIfNaN(f.GoodputBps), capacity: math.Inf(1)}
	if o.shortConnections(f) && o.Time > 0 {
		c.goodput = float64(o.TotalBytes) * 8 / o.Time.Seconds()
	}
	if o.Capacity != nil && o.Capacity.GoodputBps > 0 {
		c.capacity = max(o.Capacity.GoodputBps, c.goodput)
	}
	c.lost = zeroIfNaN(f.LossShare) * (1 - min(zeroIfNaN(f.SpuriousShare), 1))
	return c
}

// predict fills in what the removal of each cause brings: the least of what the
// others, the losses, the windows and the path let through.
func (c *patient) predict(findings []Finding) {
	for k := range findings {
		finding := &findings[k]
		if finding.Cause.IsNone() || finding.PredictedBps != 0 {
			continue
		}
		least, next := c.capacity, "the path"
		if c.o.Capacity != nil && c.o.Capacity.WindowLimited {
			next = "no more than what was tried"
		}
		lower := func(bps float64, name string) {
			if bps < least {
				least, next = bps, name
			}
		}
		for j, other := range findings {
			if j != k && other.BoundBps > 0 {
				lower(other.BoundBps, string(other.Cause))
			}
		}
		if finding.Cause != RandomLoss && finding.Cause != Policer && finding.Cause != Reordering && finding.Cause != BlackHole {
			lower(c.lossBound(), "loss")
		}
		if finding.Cause != Pacing {
			lower(c.f.PacedBps, "the program's pacing")
		}
		if finding.Cause != ReceiverWindow && finding.Cause != WindowScaling && c.smallWindow() {
			lower(c.windowBound(), "the receiver's window")
		}
		if (finding.Cause == ReceiverWindow || finding.Cause == WindowScaling) && c.f.SendBufferFixed {
			lower(c.bufferBound(), "the send buffer")
		}
		if math.IsInf(least, 1) {
			continue
		}
		finding.PredictedBps, finding.Next = max(least, c.goodput), next
	}
}

// eventRTT is from which round trip time on loss events can be told apart in
// the samples, and longestBurst how many losses one is taken for at most.
const (
	eventRTT     = 50 * time.Millisecond
	longestBurst = 5
)

// lossBound is what the losses leave to the connection's congestion control.
func (c *patient) lossBound() float64 {
	p := c.lost
	if c.f.RTT >= eventRTT && c.f.LossEvents > 0 {
		// Losses come in bursts, of which the congestion control makes one
		// event each. Those are counted where samples come more often.
		p = min(p, max(c.f.LossEventRate, c.lost/longestBurst))
	}
	return lossBoundBps(c.o.CongestionControl, c.f.MSS, c.f.RTT, p)
}

// smallWindow says whether the peer's window is a bound that does not move: it
// holds the sender back at times, or is less than what systems announce before
// they know how much is needed.
func (c *patient) smallWindow() bool {
	f := c.f
	return f.PeerWindowMin > 0.9*f.PeerWindowMax && (f.Rwnd > 0.02 || f.PeerWindowMax < 60000)
}

// bufferBound is about what a send buffer lets through: a little more than half
// of it is data, and a write of 64 KiB may exceed it.
func (c *patient) bufferBound() float64 {
	return (0.6*c.f.SendBuffer + 25_000) * 8 / c.f.RTT.Seconds()
}

// stands says whether the connection has come to a standstill.
func (c *patient) stands() bool { return c.f.Stalled >= stallTime(c.f) && c.f.StalledAtTheEnd }

// IsNone says whether there is nothing to remove.
func (c Cause) IsNone() bool { return c == Healthy || c == Congestion || c == Unexplained }

// rank puts the findings in order: first the cause whose removal brings the
// most. A cause whose removal brings little is none where the path is full.
func (c *patient) rank(findings []Finding) []Finding {
	slices.SortStableFunc(findings, func(a, b Finding) int {
		return compareGains(c.gain(b), c.gain(a))
	})
	if len(findings) > 0 && c.gain(findings[0]) == 0 && c.goodput >= ownQueue*c.capacity {
		findings = append([]Finding{{Cause: Healthy, Evidence: []string{"nothing that was found would bring a fifth more if it were removed"}}}, findings...)
	}
	return findings
}

// compareGains takes gains that differ by little for the same, so that the order
// of the rules decides.
func compareGains(a, b float64) int {
	switch {
	case a > 1.1*b:
		return 1
	case b > 1.1*a:
		return -1
	}
	return 0
}

// gain is what a finding's removal brings, as a factor. Where the prediction is
// unknown, so is what is worth more: all that have none rank alike.
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
	return 0 // less than nothing to fix
}

package congestion

import (
	"context"
	"time"
)

// shape has the times of a run with a fault.
type shape struct {
	at    time.Duration // start of the fault, during the flow
	after time.Duration // to recover in
}

var usualShape = shape{at: 20 * time.Second, after: 20 * time.Second}

// The bounds of a safe algorithm.
const (
	MaxRecovery = 5 * time.Second // until delivery is recoveredShare of its rate before
	MaxStall    = 2 * time.Second // without delivery on a working path

	recoveredShare = 0.8
)

// FaultResult is an algorithm's outcome of a fault.
type FaultResult struct {
	Fault string `json:"fault"`
	Path  string `json:"path"`

	BeforeShare Value `json:"before_share_of_limit"` // delivered in the 5 s before; null if the fault lasts the whole run
	DuringShare Value `json:"during_share_of_limit"` // in the fault's second half, of the limit then; null in an outage and while idle
	// RecoverySec is the time from the fault's end, or from its start if it stays,
	// until 80 % of the delivery before. For a fault that stays both are shares of
	// the limit. It is null if the second half carries less.
	RecoverySec Value `json:"recovery_seconds"`

	// Sent ÷ delivered × (1 - random loss): of the whole run, of the worst 10 s, and
	// the bound for one of the two.
	Excess        Value   `json:"sent_per_delivered"`
	Excess10s     Value   `json:"sent_per_delivered_worst_10s"`
	ExcessBound   float64 `json:"sent_per_delivered_bound"`
	ExcessBoundOf string  `json:"sent_per_delivered_bound_of"` // "run" or "10s"

	StallSec float64 `json:"longest_stall_seconds"` // without delivery, while the path was up
	Timeouts Value   `json:"rto_count"`
	Broken   string  `json:"broken,omitempty"` // why the connection did not survive
	OK       bool    `json:"ok"`               // within all bounds

	delivery []float64 // bit/s, every SeriesSeconds
}

// time returns the duration of a run with the fault.
func (s shape) time(f Fault) time.Duration { return s.at + f.lasts + s.after }

// run makes one run with the fault.
func (f Fault) run(ctx context.Context, when shape, p Path, algorithm string, o Options, run, total int) (FaultResult, error) {
	base, bad := f.paths(p)
	r, err := f.trial(when, base, bad, algorithm).run(ctx, f.Name+" "+algorithm, o, run, total)
	if err != nil {
		return FaultResult{}, err
	}
	return f.judge(when, r.flows[0], base, bad), nil
}

// judge compares a flow's run with the bounds.
func (f Fault) judge(when shape, fl flow, base, bad Path) FaultResult {
	acked := curveOf(fl, delivered)
	total := when.time(f)
	begin, end := when.at, when.at+f.lasts
	r := FaultResult{
		Fault: f.Name, Path: base.String(), BeforeShare: None, DuringShare: None, RecoverySec: None, Timeouts: None,
		delivery: acked.series(0, total, sampleEvery),
	}
	loss := lossOf(base, f.trial(when, base, bad, fl.algorithm).Changes)
	r.Excess, r.Excess10s = fl.wholeExcess(loss), fl.worstExcess(loss, policedWindow)
	r.setBound(f, base, bad)
	// Data in flight when the path fails arrives one round trip later.
	slack := bad.RTT + base.RTT
	if f.lasts == 0 {
		r.DuringShare = Value(acked.rateBps(total/2, total) / f.limitBps(bad))
		r.StallSec = acked.longestRest(min(fl.firstByte+slack, total), total).Seconds()
		if fl.firstByte == 0 {
			r.StallSec = total.Seconds()
		}
	} else {
		before := acked.rateBps(max(begin-5*time.Second, 0), begin)
		r.BeforeShare = Value(before / base.LimitBps())
		passes := !bad.DownAB && !f.idle
		if passes {
			till := end
			if f.stays {
				till = total
			}
			r.DuringShare = Value(acked.rateBps((begin+till)/2, till) / f.limitBps(bad))
		}
		from, back := end, recoveredShare*before
		if f.stays {
			from, back = begin, back*bad.LimitBps()/base.LimitBps()
		}
		if at, reached := acked.reaches(back, from, base.RTT); reached && (!f.stays || r.DuringShare >= recoveredShare*r.BeforeShare) {
			r.RecoverySec = Value((at - from).Seconds())
		}
		// On the original path, and on the changed one if packets pass.
		recovered := total
		if r.RecoverySec.Some() {
			recovered = from + time.Duration(float64(r.RecoverySec)*float64(time.Second))
		}
		r.StallSec = max(acked.longestRest(slack, begin), acked.longestRest(min(recovered+slack, total), total)).Seconds()
		if passes {
			r.StallSec = max(r.StallSec, acked.longestRest(begin+slack, end).Seconds())
		}
	}
	if len(fl.samples) > 0 {
		if n := fl.samples[len(fl.samples)-1].timeouts; n >= 0 {
			r.Timeouts = Value(n)
		}
	}
	if fl.err != nil {
		r.Broken = fl.err.Error()
	}
	r.OK = r.Broken == "" && float64(r.JudgedExcess()) <= r.ExcessBound && r.StallSec <= MaxStall.Seconds() &&
		(f.lasts == 0 || float64(r.RecoverySec) <= MaxRecovery.Seconds())
	return r
}

// The figures with a bound of sent ÷ delivered.
const (
	ofRun = "run"
	of10s = "10s"
)

// setBound sets the bound and its figure.
func (r *FaultResult) setBound(f Fault, base, bad Path) {
	bound, window := f.excessBound(base, bad)
	r.ExcessBound, r.ExcessBoundOf = bound, ofRun
	if window > 0 {
		r.ExcessBoundOf = of10s
	}
}

// JudgedExcess returns the figure of the bound.
func (r FaultResult) JudgedExcess() Value {
	if r.ExcessBoundOf == of10s {
		return r.Excess10s
	}
	return r.Excess
}

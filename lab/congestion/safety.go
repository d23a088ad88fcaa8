package congestion

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"longhaul/internal/words/plot"
	"longhaul/lab/tcpcc"
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

// SafetyResult is the outcome of all faults.
type SafetyResult struct {
	Experiment string         `json:"experiment"`
	Conditions map[string]any `json:"conditions"`
	Cases      []SafetyCase   `json:"cases"`

	path Path
}

// SafetyCase is an algorithm's outcome in all faults.
type SafetyCase struct {
	Name   string        `json:"name"` // of the algorithm
	Faults []FaultResult `json:"faults"`
}

// FaultResult is an algorithm's outcome of a fault: the worst of its runs.
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

	begins   time.Duration
	lasts    time.Duration
	delivery []float64 // of the first run, bit/s, every SeriesSeconds
}

// SafetyOptions select the faults.
type SafetyOptions struct{ Faults []string } // names; empty means all

// CheckSafety refuses unknown faults, and a path without room for them.
func CheckSafety(p Path, s SafetyOptions) error {
	faults, err := chooseFaults(s.Faults)
	if err != nil {
		return err
	}
	for _, f := range faults {
		base, bad := f.paths(p)
		for _, path := range []Path{base, bad} {
			if err := path.Check(); err != nil {
				return fmt.Errorf("fault %s: %w", f.Name, err)
			}
		}
	}
	return nil
}

// time returns the duration of a run with the fault.
func (s shape) time(f Fault) time.Duration { return s.at + f.lasts + s.after }

// RunSafety runs each algorithm through the faults. It does not use Options.Time: the
// fault sets a run's duration.
func RunSafety(ctx context.Context, p Path, s SafetyOptions, o Options) (SafetyResult, error) {
	result := SafetyResult{Experiment: "lossy-lfn-safety", Conditions: p.conditions(o), path: p}
	delete(result.Conditions, "seconds")
	algorithms, err := tcpcc.Choose(o.Algorithms)
	if err != nil {
		return result, err
	}
	faults, err := chooseFaults(s.Faults)
	if err != nil {
		return result, err
	}
	var sum time.Duration
	for _, f := range faults {
		sum += usualShape.time(f) + setup
	}
	o.Report.Notef("%d faults, %d algorithms, %d runs each: about %.0f min", len(faults), len(algorithms), o.Repeat,
		(sum * time.Duration(len(algorithms)*o.Repeat)).Minutes())
	total := len(faults) * len(algorithms) * o.Repeat
	runs := make(map[string][]FaultResult)
	done := 0
	for repeat := range o.Repeat {
		for _, f := range faults {
			for _, name := range algorithms {
				done++
				path := p
				path.Seed += uint64(repeat)
				r, err := f.run(ctx, usualShape, path, name, o, done, total)
				if err != nil {
					return result, fmt.Errorf("%s, %s: %w", f.Name, name, err)
				}
				runs[name+" "+f.Name] = append(runs[name+" "+f.Name], r)
			}
		}
	}
	for _, name := range algorithms {
		c := SafetyCase{Name: name}
		for _, f := range faults {
			c.Faults = append(c.Faults, worst(runs[name+" "+f.Name]))
		}
		result.Cases = append(result.Cases, c)
	}
	return result, nil
}

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
		begins: when.at, lasts: f.lasts,
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

// worst returns the worst of several runs in each figure.
func worst(runs []FaultResult) FaultResult {
	w := runs[0]
	for _, r := range runs[1:] {
		w.BeforeShare = min(w.BeforeShare, r.BeforeShare)
		w.DuringShare = min(w.DuringShare, r.DuringShare)
		w.RecoverySec = max(w.RecoverySec, r.RecoverySec)
		w.Excess, w.Excess10s = max(w.Excess, r.Excess), max(w.Excess10s, r.Excess10s)
		w.StallSec = max(w.StallSec, r.StallSec)
		w.Timeouts = max(w.Timeouts, r.Timeouts)
		if w.Broken == "" {
			w.Broken = r.Broken
		}
		w.OK = w.OK && r.OK
	}
	return w
}

// WriteText writes a line for every fault and algorithm.
func (r SafetyResult) WriteText(w io.Writer) error {
	table := newTable(w)
	fmt.Fprint(table, "\tfault\tsender\tbefore\tduring\trecovery\tsent\tbound\tstall\tRTO\t\n")
	for _, c := range r.Cases {
		for _, f := range c.Faults {
			verdict := verdictOf(f.OK)
			if f.Broken != "" {
				fmt.Fprintf(table, "%s\t%s\t%s\tbroken\t\t\t\t\t\t\t\n", verdict, f.Fault, c.Name)
				continue
			}
			recovery := "-"
			if f.BeforeShare.Some() {
				recovery = "never"
				if f.RecoverySec.Some() {
					recovery = f.RecoverySec.format("%.1f s")
				}
			}
			share := func(v Value) string {
				if !v.Some() {
					return "-"
				}
				return percent(float64(v))
			}
			bound := fmt.Sprintf("%.2f", f.ExcessBound)
			if f.ExcessBoundOf == of10s {
				bound += " in 10 s"
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.1f s\t%s\t\n", verdict, f.Fault, c.Name,
				share(f.BeforeShare), share(f.DuringShare), recovery, f.JudgedExcess().format("%.2f"), bound, f.StallSec, f.Timeouts.format("%.0f"))
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, wrapped(r.path.String(), ", unless the fault says otherwise."))
	faults := tableOf(w)
	for _, f := range Faults() {
		if len(r.Cases) > 0 && slices.ContainsFunc(r.Cases[0].Faults, func(known FaultResult) bool { return known.Fault == f.Name }) {
			fmt.Fprintf(faults, "  %s\t%s\n", f.Name, f.About)
		}
	}
	if err := faults.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, wrapped(
		"before, during: delivery in the 5 s before the fault and in its second half, of the limit then; recovery: from its end, or from ",
		"its beginning if it stays, until 80 % of before; sent: sent ÷ delivered × (1 - random loss) of the run, or of its worst 10 s; ",
		"stall: the longest time without delivery on a path that is up. ",
		fmt.Sprintf("ok: recovery within %g s, sent up to its bound, stall up to %g s; the worst of all runs.", MaxRecovery.Seconds(), MaxStall.Seconds())))
	return err
}

// Plot is delivery over time, a panel for each fault.
func (r SafetyResult) Plot() plot.Figure {
	f := plot.Figure{Title: "Delivery through faults", Note: r.path.String() + ", unless the fault says otherwise; the first run of each"}
	byName := map[string]*plot.Panel{}
	var order []string
	for _, c := range r.Cases {
		for _, result := range c.Faults {
			p := byName[result.Fault]
			if p == nil {
				p = &plot.Panel{Title: result.Fault, X: timeAxis, Y: plot.Axis{Label: "delivery", Unit: "Mb/s"}}
				if result.lasts > 0 {
					p.Spans = []plot.Span{{Name: "fault", From: result.begins.Seconds(), To: (result.begins + result.lasts).Seconds()}}
				}
				byName[result.Fault] = p
				order = append(order, result.Fault)
			}
			p.Series = append(p.Series, overTime(c.Name, [][]float64{scaled(result.delivery, 1e-6)}, plotEvery))
		}
	}
	for _, name := range order {
		f.Panels = append(f.Panels, *byName[name])
	}
	return f
}

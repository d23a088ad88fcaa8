package congestion

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"longhaul/internal/lab"
	"longhaul/internal/lab/link"
	"longhaul/internal/plot"
)

// Fault is something that happens to a path while a flow uses it.
type Fault struct {
	Name  string
	About string

	// base changes the path for the whole run; during changes it from the
	// fault's beginning to its end. One without during lasts the whole run.
	base, during func(*Path)
	lasts        time.Duration
}

// shape is that of a run with a fault.
type shape struct {
	at    time.Duration // when the fault begins: the flow is under way by then
	after time.Duration // to recover in
}

var usualShape = shape{at: 20 * time.Second, after: 20 * time.Second}

// What a safe algorithm keeps to.
const (
	MaxRecovery = 5 * time.Second // until it carries recoveredShare of what it did before
	MaxExcess   = 3.0             // sent ÷ delivered, held through excessTime
	MaxStall    = 2 * time.Second // without delivery on a path that is up

	recoveredShare = 0.8
)

// SafetyPath is the path that faults happen to.
func SafetyPath() Path {
	p := LossyLFN()
	p.RTT, p.Loss.Probability = 100*time.Millisecond, 0.01
	return p
}

// Faults are all that there are.
func Faults() []Fault {
	lossy := func(p *Path) { p.RTT, p.Loss.Probability = 300*time.Millisecond, 0.1 }
	return []Fault{
		{Name: "outage", About: "nothing passes for 5 s", lasts: 5 * time.Second,
			during: func(p *Path) { p.DownAB, p.DownBA = true, true }},
		{Name: "rate-cut", About: "a tenth of the rate for 15 s", lasts: 15 * time.Second,
			during: func(p *Path) { p.keepQueue(); p.RateBps /= 10 }},
		{Name: "rtt-step", About: "three times the round trip for 15 s", lasts: 15 * time.Second,
			during: func(p *Path) { p.keepQueue(); p.RTT *= 3 }},
		{Name: "loss-50", About: "half of the packets lost for 10 s", lasts: 10 * time.Second,
			during: func(p *Path) { p.Loss.Probability = 0.5 }},
		{Name: "policer", About: "a policer at half of the rate for 15 s", lasts: 15 * time.Second,
			during: func(p *Path) { p.Policer = link.Policer{RateBps: p.RateBps / 2, BurstBytes: 64 << 10} }},
		{Name: "policed", About: "a policer at half of the rate, all the time",
			base: func(p *Path) { p.Policer = link.Policer{RateBps: p.RateBps / 2, BurstBytes: 64 << 10} }},
		{Name: "jitter", About: "100 ± 50 ms with the reordering it causes, 10 % loss",
			base: func(p *Path) { p.RTT, p.Jitter, p.Loss.Probability = 200*time.Millisecond, 50*time.Millisecond, 0.1 }},
		{Name: "ack-loss", About: "300 ms, 10 % lost, and 10 % of the ACKs",
			base: func(p *Path) { lossy(p); p.LossBA.Probability = 0.1 }},
		{Name: "bursts", About: "300 ms, 10 % lost in bursts of 8 (Gilbert-Elliott)",
			base: func(p *Path) { lossy(p); p.LossBurstPackets = 8 }},
	}
}

// keepQueue fixes the queue's size in bytes: a path that changes keeps it.
func (p *Path) keepQueue() {
	if p.QueueBytes == 0 {
		ab, ba := p.Directions()
		p.QueueBytes, p.QueueBDP = ab.QueueLimitBytes(ba.Delay), 0
	}
}

// SafetyResult is the outcome of the faults.
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

// FaultResult is how an algorithm took a fault: the worst of its runs.
type FaultResult struct {
	Fault string `json:"fault"`
	Path  string `json:"path"`

	BeforeShare Value   `json:"before_share_of_limit"` // delivered in the 5 s before; null if the fault lasts the whole run
	DuringShare Value   `json:"during_share_of_limit"` // in the fault's second half, of the limit then; null in an outage
	RecoverySec Value   `json:"recovery_seconds"`      // from the fault's end until 80 % of what was delivered before
	Excess      float64 `json:"sent_per_delivered_2s"` // the largest that held through 2 s
	StallSec    float64 `json:"longest_stall_seconds"` // without delivery, while the path was up
	Timeouts    Value   `json:"rto_count"`
	Broken      string  `json:"broken,omitempty"` // why the connection did not survive
	OK          bool    `json:"ok"`               // within all bounds

	begins   time.Duration
	lasts    time.Duration
	delivery []float64 // of the first run, bit/s, every SeriesSeconds
}

// SafetyOptions say which faults happen.
type SafetyOptions struct{ Faults []string } // names; empty means all

// CheckSafety refuses faults that there are not, and a path that they make no
// sense on.
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

func chooseFaults(names []string) ([]Fault, error) {
	all := Faults()
	if len(names) == 0 {
		return all, nil
	}
	var chosen []Fault
	for _, name := range names {
		i := slices.IndexFunc(all, func(f Fault) bool { return f.Name == name })
		if i < 0 {
			var known []string
			for _, f := range all {
				known = append(known, f.Name)
			}
			return nil, fmt.Errorf("there is no fault %q: choose from %s", name, strings.Join(known, ", "))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// paths are the path of a run, and that of its fault's time.
func (f Fault) paths(p Path) (base, during Path) {
	base = p
	if f.base != nil {
		f.base(&base)
	}
	during = base
	if f.during != nil {
		f.during(&during)
	}
	return base, during
}

// time is how long a run with the fault takes.
func (s shape) time(f Fault) time.Duration { return s.at + f.lasts + s.after }

// RunSafety puts each algorithm through the faults. Options.Time is not used:
// a run is as long as its fault needs.
func RunSafety(ctx context.Context, p Path, s SafetyOptions, o Options) (SafetyResult, error) {
	result := SafetyResult{Experiment: "lossy-lfn-safety", Conditions: p.conditions(o), path: p}
	delete(result.Conditions, "seconds")
	algorithms, err := Choose(o.Algorithms)
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
	o.notef("%d faults, %d algorithms, %d runs each: about %.0f min", len(faults), len(algorithms), o.Repeat,
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
	window := base
	window.RTT = max(base.RTT, bad.RTT) // for the buffers
	topology := lab.TwoSites(base.Conditions)
	n, err := build(window, topology)
	if err != nil {
		return FaultResult{}, err
	}
	defer n.Close()
	name := f.Name + " " + algorithm
	progress := o.progressOf(name, run, total, when.time(f))

	// The schedule begins with the flows: their first sample is at 100 ms.
	scheduled := make(chan error, 1)
	awaitSchedule := func() error { return nil }
	scheduleCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	if f.during != nil {
		wan := n.Link(lab.WAN)
		ab, ba := wan.Settings(link.AToB), wan.Settings(link.BToA)
		badAB, badBA := bad.Directions()
		begin := time.Now()
		go func() {
			scheduled <- wan.Follow(scheduleCtx, begin, []link.Change{
				{At: when.at, AB: &badAB, BA: &badBA},
				{At: when.at + f.lasts, AB: &ab, BA: &ba},
			})
		}()
		// All of its changes are due when the flows end: on a busy machine the last
		// may still be made.
		awaitSchedule = func() error { return <-scheduled }
	}
	flows, err := runFlows(ctx, []flowSpec{n.flow(algorithm)}, when.time(f), progress)
	if err != nil {
		cancel()
	}
	scheduleErr := awaitSchedule()
	if err != nil {
		return FaultResult{}, err
	}
	if scheduleErr != nil {
		return FaultResult{}, scheduleErr
	}
	if lost := n.lostUnasked(); lost > 0 {
		o.notef("%s: %d packets were lost beside the link's settings: the machine is too busy for this rate", name, lost)
	}
	return f.judge(when, flows[0], base, bad), nil
}

// judge holds a flow's run against the bounds.
func (f Fault) judge(when shape, fl flow, base, bad Path) FaultResult {
	acked := curveOf(fl, delivered)
	total := when.time(f)
	begin, end := when.at, when.at+f.lasts
	r := FaultResult{
		Fault: f.Name, Path: base.String(), BeforeShare: None, DuringShare: None, RecoverySec: None, Timeouts: None,
		begins: when.at, lasts: f.lasts,
		delivery: acked.series(0, total, sampleEvery),
		Excess:   sustainedExcess(fl, base.RTT),
	}
	// What is on the way when the path fails arrives one round trip later.
	slack := bad.RTT + base.RTT
	if f.during == nil {
		r.DuringShare = Value(acked.rateBps(total/2, total) / bad.policedLimitBps())
		r.StallSec = acked.longestRest(min(fl.firstByte+slack, total), total).Seconds()
		if fl.firstByte == 0 {
			r.StallSec = total.Seconds()
		}
	} else {
		before := acked.rateBps(max(begin-5*time.Second, 0), begin)
		r.BeforeShare = Value(before / base.LimitBps())
		if at, reached := acked.reaches(recoveredShare*before, end, base.RTT); reached {
			r.RecoverySec = Value((at - end).Seconds())
		}
		// On the path as it was, and on the changed one if anything passes.
		recovered := total
		if r.RecoverySec.Some() {
			recovered = end + time.Duration(float64(r.RecoverySec)*float64(time.Second))
		}
		r.StallSec = max(acked.longestRest(slack, begin), acked.longestRest(min(recovered+slack, total), total)).Seconds()
		if !bad.DownAB {
			r.DuringShare = Value(acked.rateBps((begin+end)/2, end) / bad.policedLimitBps())
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
	r.OK = r.Broken == "" && r.Excess <= MaxExcess && r.StallSec <= MaxStall.Seconds() &&
		(f.during == nil || float64(r.RecoverySec) <= MaxRecovery.Seconds())
	return r
}

// policedLimitBps is the path's limit with its policer.
func (p Path) policedLimitBps() float64 {
	limit := p.LimitBps()
	if p.Policer.RateBps > 0 {
		policed := p
		policed.RateBps = p.Policer.RateBps
		limit = min(limit, policed.LimitBps())
	}
	return limit
}

// worst is, figure by figure, the worst of several runs.
func worst(runs []FaultResult) FaultResult {
	w := runs[0]
	for _, r := range runs[1:] {
		w.BeforeShare = min(w.BeforeShare, r.BeforeShare)
		w.DuringShare = min(w.DuringShare, r.DuringShare)
		w.RecoverySec = max(w.RecoverySec, r.RecoverySec)
		w.Excess = max(w.Excess, r.Excess)
		w.StallSec = max(w.StallSec, r.StallSec)
		w.Timeouts = max(w.Timeouts, r.Timeouts)
		if w.Broken == "" {
			w.Broken = r.Broken
		}
		w.OK = w.OK && r.OK
	}
	return w
}

// WriteTable writes a line for every fault and algorithm.
func (r SafetyResult) WriteTable(w io.Writer) error {
	table := newTable(w)
	fmt.Fprint(table, "\tfault\tsender\tbefore\tduring\trecovery\tsent 2 s\tstall\tRTO\t\n")
	for _, c := range r.Cases {
		for _, f := range c.Faults {
			verdict := "NO"
			if f.OK {
				verdict = "ok"
			}
			if f.Broken != "" {
				fmt.Fprintf(table, "%s\t%s\t%s\tbroken\t\t\t\t\t\t\n", verdict, f.Fault, c.Name)
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
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%.1f\t%.1f s\t%s\t\n", verdict, f.Fault, c.Name,
				share(f.BeforeShare), share(f.DuringShare), recovery, f.Excess, f.StallSec, f.Timeouts.format("%.0f"))
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
		"before, during: delivery in the 5 s before the fault and in its second half, of the limit then; recovery: from its end until 80 % of before; ",
		"sent 2 s: the largest sent ÷ delivered that held through 2 s; stall: the longest time without delivery on a path that is up. ",
		fmt.Sprintf("ok: recovery within %g s, sent 2 s up to %g, stall up to %g s; the worst of all runs.", MaxRecovery.Seconds(), MaxExcess, MaxStall.Seconds())))
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

package congestion

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"longhaul/internal/words/flagvalue"
	"longhaul/internal/words/plot"
	"longhaul/lab/link"
	"longhaul/lab/stats"
	"longhaul/lab/tcpcc"
)

// Trap is a path on which congestion controls got stuck, starved a neighbour,
// or sent in vain. Each has a path of its own and bounds for what is measured.
type Trap struct {
	Name  string
	About string

	lasts time.Duration
	path  func(*Path)
	// One flow alone goes through a change of the path from changeAt to
	// changeTill, if there is one; else flows meet in a scenario.
	change               func(*Path)
	changeAt, changeTill time.Duration
	meeting              *Scenario
	theirs               string // the others' algorithm in the scenario

	figures []trapFigure
}

// trapFigure is something that is measured in a trap.
type trapFigure struct {
	key     string // in JSON
	title   string // in the table
	unit    string // "%", "ms", or empty for a ratio
	atLeast bool   // the bound is a least one
	bound   float64
	// ofPeer makes the bound from the peer's median.
	ofPeer  func(float64) float64
	measure func(trapRun) float64
}

// trapRun is one run in a trap.
type trapRun struct {
	path  Path // with its change
	flow  flow // of one alone
	loss  pathLoss
	queue curve // ms

	meeting meetingRun // of several
	solo    float64    // what the others have without the algorithm, bit/s

	delivery []float64 // bit/s, every SeriesSeconds
	broken   string    // why the connection ended before its time
}

// What the figures are held to.
const (
	trapUsedSoon   = 0.80 // of the limit, from 5 to 15 s after a change
	trapUsedLater  = 0.90 // from 15 s after it
	trapUsed       = 0.90 // from a cold start, with no change
	trapQueueP95Ms = 25   // from 30 s after a change
)

// harmBound is the most harm for the harm that another flow of the others' kind
// does.
func harmBound(own float64) float64 { return 1.1*own + 0.05 }

// Traps are all that there are.
func Traps() []Trap {
	used := func(key, title string, least float64, from, till time.Duration) trapFigure {
		return trapFigure{key: key, title: title, unit: "%", atLeast: true, bound: least, measure: func(r trapRun) float64 {
			return curveOf(r.flow, delivered).rateBps(from, till) / r.path.LimitBps()
		}}
	}
	// Utilisation after a change: at least 80 % within 5 s, 90 % from 15 s.
	usedAfter := func(change, till time.Duration) []trapFigure {
		return []trapFigure{
			used("used_5_to_15_s_after", "used 5-15 s", trapUsedSoon, change+5*time.Second, change+15*time.Second),
			used("used_from_15_s_after", "used from 15 s", trapUsedLater, change+15*time.Second, till),
		}
	}
	sent := func(key, title string, most float64, measure func(trapRun) float64) trapFigure {
		return trapFigure{key: key, title: title, bound: most, measure: measure}
	}
	rtt := func(d time.Duration) func(*Path) { return func(p *Path) { p.keepQueue(); p.RTT = d } }
	const at = 20 * time.Second
	return []Trap{
		{Name: "longer-route", About: "100 Mb/s, 0.1 % loss: 100 ms become 130 ms at 20 s and stay",
			path: func(p *Path) {
				p.RateBps, p.RTT, p.Loss.Probability, p.QueueBDP = 100e6, 100*time.Millisecond, 0.001, 1
			},
			lasts: 60 * time.Second, change: rtt(130 * time.Millisecond), changeAt: at, changeTill: 60 * time.Second,
			figures: usedAfter(at, 60*time.Second)},
		{Name: "longer-deep", About: "50 Mb/s, queue of 4 BDP: 100 ms become 120 ms at 20 s and stay",
			path:  func(p *Path) { p.RateBps, p.RTT, p.QueueBDP = 50e6, 100*time.Millisecond, 4 },
			lasts: 80 * time.Second, change: rtt(120 * time.Millisecond), changeAt: at, changeTill: 80 * time.Second,
			figures: []trapFigure{
				{key: "queue_delay_p95_ms_from_30_s_after", title: "queue p95, ms", unit: "ms", bound: trapQueueP95Ms,
					measure: func(r trapRun) float64 { return r.queue.quantile(0.95, at+30*time.Second, 80*time.Second) }},
				used("used_from_15_s_after", "used from 15 s", trapUsedLater, at+15*time.Second, 80*time.Second),
			}},
		{Name: "detour", About: "50 Mb/s, queue of 2 BDP: 100 ms become 115 ms from 20 to 59 s",
			path:  func(p *Path) { p.RateBps, p.RTT, p.QueueBDP = 50e6, 100*time.Millisecond, 2 },
			lasts: 60 * time.Second, change: rtt(115 * time.Millisecond), changeAt: at, changeTill: 59 * time.Second,
			figures: usedAfter(at, 59*time.Second)},
		{Name: "policer-1mb", About: "100 Mb/s, 100 ms: a policer of 50 Mb/s with a bucket of 1 MB",
			path: func(p *Path) {
				p.RateBps, p.RTT, p.QueueBDP = 100e6, 100*time.Millisecond, 1
				p.Policer = link.Policer{RateBps: 50e6, BurstBytes: 1e6}
			},
			lasts: 60 * time.Second,
			figures: []trapFigure{sent("sent_per_delivered_worst_10s", "sent in 10 s", MaxExcessPoliced,
				func(r trapRun) float64 { return float64(r.flow.worstExcess(r.loss, policedWindow)) })}},
		{Name: "slow", About: "1.3 Mb/s, 17 ms, queue of 6.5 BDP",
			path:    func(p *Path) { p.RateBps, p.RTT, p.QueueBDP = 1.3e6, 17*time.Millisecond, 6.5 },
			lasts:   60 * time.Second,
			figures: []trapFigure{used("used", "used", trapUsed, 0, 60*time.Second)}},
		{Name: "four-flows", About: "four flows at 100 Mb/s, 63 ms, queue of 0.1 BDP",
			path:  func(p *Path) { p.RateBps, p.RTT, p.QueueBDP = 100e6, 63*time.Millisecond, 0.1 },
			lasts: 60 * time.Second, meeting: &Scenario{Name: "4", ours: 4},
			figures: []trapFigure{
				sent("sent_per_delivered_all", "sent, all", MaxExcessShared, func(r trapRun) float64 { return r.meeting.allExcess }),
				sent("sent_per_delivered_worst", "sent, worst", MaxExcessShared, func(r trapRun) float64 { return slices.Max(r.meeting.oursExcess) }),
			}},
		{Name: "beside-cubic", About: "a flow beside one of CUBIC, 100 Mb/s, 63 ms, queue of 0.1 BDP",
			path:  func(p *Path) { p.RateBps, p.RTT, p.QueueBDP = 100e6, 63*time.Millisecond, 0.1 },
			lasts: 60 * time.Second, meeting: &Scenario{Name: "1v1", ours: 1, theirs: 1}, theirs: "cubic",
			figures: []trapFigure{{key: "harm", title: "harm", ofPeer: harmBound,
				measure: func(r trapRun) float64 { return Harm(r.solo, stats.Mean(r.meeting.theirs)) }}}},
	}
}

// quantile is that of the samples between two times.
func (c curve) quantile(q float64, from, to time.Duration) float64 {
	var values []float64
	for i, at := range c.at {
		if at >= from && at <= to {
			values = append(values, c.value[i])
		}
	}
	return stats.Quantile(values, q, func(v float64) float64 { return v })
}

// TrapOptions say which traps are run, and beside whom.
type TrapOptions struct {
	Cases []string // names; empty means all
	Peer  string   // an algorithm whose figures stand beside; empty means bbr, or cubic without it
}

// TrapsResult is the outcome of the traps.
type TrapsResult struct {
	Experiment string         `json:"experiment"`
	Conditions map[string]any `json:"conditions"`
	Cases      []TrapResult   `json:"cases"`

	repeat int
}

// TrapResult is the outcome of one trap.
type TrapResult struct {
	Name       string          `json:"name"`
	About      string          `json:"about"`
	Path       string          `json:"path"`
	Seconds    float64         `json:"seconds"`
	Peer       string          `json:"peer"` // the algorithm whose figures stand beside
	Algorithms []TrapAlgorithm `json:"algorithms"`

	spans []plot.Span
}

// TrapAlgorithm is an algorithm's outcome in a trap.
type TrapAlgorithm struct {
	Name    string       `json:"name"`
	OK      bool         `json:"ok"` // every figure is within its bound, and no connection broke
	Broken  string       `json:"broken,omitempty"`
	Figures []TrapFigure `json:"figures"`

	delivery, peerDelivery []float64 // of the first runs
}

// TrapFigure is a figure over all runs.
type TrapFigure struct {
	Name    string  `json:"name"`
	Runs    []Value `json:"runs"`
	Median  Value   `json:"median"`
	Min     Value   `json:"min"`
	Max     Value   `json:"max"`
	Bound   Value   `json:"bound"`
	AtLeast bool    `json:"bound_is_least"` // else it is the most
	Peer    Value   `json:"peer_median"`
	PeerMin Value   `json:"peer_min"`
	PeerMax Value   `json:"peer_max"`
	OK      bool    `json:"ok"` // the median is within the bound

	title, unit string
}

// CheckTraps refuses traps that there are not.
func CheckTraps(s TrapOptions) error {
	_, err := chooseTraps(s.Cases)
	return err
}

func chooseTraps(names []string) ([]Trap, error) {
	return flagvalue.Choose("case", Traps(), names, func(t Trap) string { return t.Name })
}

// peerOf is the algorithm whose figures stand beside those of others.
func (t Trap) peerOf(usual string) string {
	if t.theirs != "" {
		return t.theirs // what is held against the harm that their own kind does
	}
	return usual
}

// RunTraps puts each algorithm, and the peers, into the traps. Of the path it
// takes the seed and the window. Options.Time is not used.
func RunTraps(ctx context.Context, p Path, s TrapOptions, o Options) (TrapsResult, error) {
	result := TrapsResult{Experiment: "lossy-lfn-traps", repeat: o.Repeat}
	all := p.conditions(o)
	result.Conditions = map[string]any{"runs": o.Repeat}
	for _, name := range []string{"kernel", "seed", "window_bdp"} {
		result.Conditions[name] = all[name]
	}
	traps, err := chooseTraps(s.Cases)
	if err != nil {
		return result, err
	}
	algorithms, err := tcpcc.Choose(o.Algorithms)
	if err != nil {
		return result, err
	}
	usual := s.Peer
	if usual == "" {
		usual = "cubic"
		if _, err := tcpcc.Choose([]string{"bbr"}); err == nil {
			usual = "bbr"
		}
	}
	type planned struct {
		trap      Trap
		algorithm string
	}
	var plan []planned
	var total time.Duration
	for _, t := range traps {
		peer := t.peerOf(usual)
		if _, err := tcpcc.Choose([]string{peer}); err != nil {
			return result, err
		}
		senders := slices.Clone(algorithms)
		if !slices.Contains(senders, peer) {
			senders = append(senders, peer)
		}
		for _, name := range senders {
			plan = append(plan, planned{t, name})
			total += t.lasts + setup
		}
		if t.theirs != "" {
			total += t.lasts + setup // the others alone
		}
	}
	o.Report.Notef("%d cases, %d runs each: about %.0f min", len(traps), o.Repeat, (total * time.Duration(o.Repeat)).Minutes())
	runs := map[string][]trapRun{}
	for repeat := range o.Repeat {
		solo := map[string]float64{} // of the others alone, by trap
		for i, item := range plan {
			path := p
			path.Seed += uint64(repeat)
			r, err := item.trap.run(ctx, path, item.algorithm, solo, o, repeat*len(plan)+i+1, o.Repeat*len(plan))
			if err != nil {
				return result, fmt.Errorf("%s, %s: %w", item.trap.Name, item.algorithm, err)
			}
			key := item.trap.Name + " " + item.algorithm
			runs[key] = append(runs[key], r)
		}
	}
	for _, t := range traps {
		peer := t.peerOf(usual)
		path := t.pathOf(p)
		c := TrapResult{Name: t.Name, About: t.About, Path: path.String(), Seconds: t.lasts.Seconds(), Peer: peer}
		if t.change != nil {
			c.spans = []plot.Span{{Name: "change", From: t.changeAt.Seconds(), To: t.changeTill.Seconds()}}
		}
		for _, name := range algorithms {
			a := t.judge(runs[t.Name+" "+name], runs[t.Name+" "+peer])
			a.Name = name
			c.Algorithms = append(c.Algorithms, a)
		}
		result.Cases = append(result.Cases, c)
	}
	return result, nil
}

// pathOf is the trap's path, with the seed and the window of another.
func (t Trap) pathOf(p Path) Path {
	path := LossyLFN()
	path.Loss, path.Seed, path.WindowBDP = link.Loss{}, p.Seed, p.WindowBDP
	t.path(&path)
	return path
}

// run makes one run. solo has what the others have alone, which is measured the
// first time that it is needed.
func (t Trap) run(ctx context.Context, p Path, algorithm string, solo map[string]float64, o Options, run, total int) (trapRun, error) {
	path := t.pathOf(p)
	o.Time = t.lasts
	if t.meeting != nil {
		return t.meet(ctx, path, algorithm, solo, o, run, total)
	}
	course := Trial{Path: path, Time: t.lasts, Groups: []Group{{Algorithm: algorithm, Flows: 1}}}
	r := trapRun{path: path}
	if t.change != nil {
		changed := path
		t.change(&changed)
		course.Changes = []Change{{t.changeAt, changed}}
		if t.changeTill < t.lasts {
			course.Changes = append(course.Changes, Change{t.changeTill, path})
		}
		r.path = changed
	}
	r.loss = lossOf(path, course.Changes)
	ran, err := course.run(ctx, t.Name+" "+algorithm, o, run, total)
	if err != nil {
		return r, err
	}
	r.flow, r.queue = ran.flows[0], ran.queue
	if r.flow.err != nil {
		r.broken = r.flow.err.Error()
	}
	r.delivery = curveOf(r.flow, delivered).series(0, t.lasts, sampleEvery)
	return r, nil
}

// meet makes one run of flows that share the path.
func (t Trap) meet(ctx context.Context, p Path, algorithm string, solo map[string]float64, o Options, run, total int) (trapRun, error) {
	r := trapRun{path: p}
	with := party{scenario: *t.meeting, ours: algorithm, theirs: t.theirs, queueBDP: p.QueueBDP}
	if _, known := solo[t.Name]; !known && t.theirs != "" {
		without := with
		without.withoutOurs = true
		alone, err := meet(ctx, p, without, o, run, total)
		if err != nil {
			return r, err
		}
		solo[t.Name] = stats.Mean(alone.theirs)
	}
	var err error
	if r.meeting, err = meet(ctx, p, with, o, run, total); err != nil {
		return r, err
	}
	r.solo = solo[t.Name]
	for i := range r.meeting.series[0] {
		sum := 0.0
		for _, flow := range r.meeting.series[:t.meeting.ours] {
			sum += flow[i]
		}
		r.delivery = append(r.delivery, sum*p.LimitBps())
	}
	return r, nil
}

// judge holds the medians of an algorithm's runs against the bounds.
func (t Trap) judge(runs, peer []trapRun) TrapAlgorithm {
	a := TrapAlgorithm{OK: true}
	for _, figure := range t.figures {
		f := TrapFigure{
			Name: figure.key, title: figure.title, unit: figure.unit, AtLeast: figure.atLeast,
			Median: Value(stats.Median(runs, figure.measure)), Peer: Value(stats.Median(peer, figure.measure)), Bound: Value(figure.bound),
		}
		lo, hi := stats.Spread(runs, figure.measure)
		f.Min, f.Max = Value(lo), Value(hi)
		lo, hi = stats.Spread(peer, figure.measure)
		f.PeerMin, f.PeerMax = Value(lo), Value(hi)
		for _, r := range runs {
			f.Runs = append(f.Runs, Value(figure.measure(r)))
		}
		if figure.ofPeer != nil {
			f.Bound = Value(figure.ofPeer(float64(f.Peer)))
		}
		f.OK = f.Median.Some() && (figure.atLeast && f.Median >= f.Bound || !figure.atLeast && f.Median <= f.Bound)
		a.OK = a.OK && f.OK
		a.Figures = append(a.Figures, f)
	}
	for _, r := range runs {
		if r.broken != "" {
			a.Broken, a.OK = r.broken, false
			break
		}
	}
	if len(runs) > 0 && len(peer) > 0 {
		a.delivery, a.peerDelivery = runs[0].delivery, peer[0].delivery
	}
	return a
}

// write writes a value of the figure with its unit.
func (f TrapFigure) write(v Value) string {
	switch {
	case !v.Some():
		return "-"
	case f.unit == "%":
		return percent(float64(v))
	case f.unit == "ms":
		return fmt.Sprintf("%.0f", float64(v))
	}
	return fmt.Sprintf("%.2f", float64(v))
}

// WriteText writes a line for every figure of every case and algorithm.
func (r TrapsResult) WriteText(w io.Writer) error {
	table := newTable(w)
	fmt.Fprint(table, "\tcase\tsender\tmeasured\tmedian\tfrom\tto\tbound\tpeer\t\t\n")
	for _, c := range r.Cases {
		for _, a := range c.Algorithms {
			for _, f := range a.Figures {
				verdict := verdictOf(f.OK)
				if a.Broken != "" {
					verdict = "NO"
				}
				sign := "≤ "
				if f.AtLeast {
					sign = "≥ "
				}
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", verdict, c.Name, a.Name, f.title,
					f.write(f.Median), f.write(f.Min), f.write(f.Max), sign+f.write(f.Bound), c.Peer, f.write(f.Peer))
			}
			if a.Broken != "" {
				fmt.Fprintf(table, "NO\t%s\t%s\tbroken off\t\t\t\t\t\t\t\n", c.Name, a.Name)
			}
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	cases := tableOf(w)
	for _, c := range r.Cases {
		fmt.Fprintf(cases, "  %s\t%s\n", c.Name, c.About)
	}
	if err := cases.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, wrapped(fmt.Sprintf("Medians of %d runs, from the least to the largest; peer: the median of another algorithm. ", r.repeat),
		"used: delivery of the limit, in the run or so long after the change; queue p95: from 30 s after the change; ",
		"sent: sent ÷ delivered × (1 - random loss), in the worst 10 s, or of the last half by all flows and by the worst; ",
		"harm: what CUBIC loses by it, (alone - shared)/alone: at most 1.1 × what it loses by another CUBIC, the peer, + 0.05."))
	return err
}

// Plot is delivery over time, a panel for each case.
func (r TrapsResult) Plot() plot.Figure {
	f := plot.Figure{Title: "Delivery in the traps", Note: "the first run of each; where flows share the path, goodput of the algorithm's own"}
	for _, c := range r.Cases {
		p := plot.Panel{Title: c.Name, X: timeAxis, Y: plot.Axis{Label: "delivery", Unit: "Mb/s"}, Spans: c.spans}
		named := map[string]bool{}
		add := func(name string, delivery []float64) {
			if !named[name] {
				named[name] = true
				p.Series = append(p.Series, overTime(name, [][]float64{scaled(delivery, 1e-6)}, plotEvery))
			}
		}
		for _, a := range c.Algorithms {
			add(a.Name, a.delivery)
		}
		if len(c.Algorithms) > 0 {
			add(c.Peer, c.Algorithms[0].peerDelivery)
		}
		f.Panels = append(f.Panels, p)
	}
	return f
}

package congestion

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"longhaul/internal/words/flagvalue"
	"longhaul/internal/words/plot"
	"longhaul/lab/link"
	"longhaul/lab/stats"
	"longhaul/lab/tcpcc"
)

// Scenario is a mix of an algorithm's flows and others at a bottleneck.
type Scenario struct {
	Name   string
	About  string
	ours   int     // flows of the algorithm
	theirs int     // flows of the other
	joins  float64 // start of ours, as a share of the run
	slower side    // side with a round trip rttRatio times as long
}

// side is one of the two sides of a scenario.
type side uint8

const (
	nobody side = iota
	ourSide
	theirSide
)

// rttRatio is the ratio of the two round trips in scenarios with two.
const rttRatio = 6

// Scenarios are all scenarios.
func Scenarios() []Scenario {
	return []Scenario{
		{Name: "1v1", About: "one flow beside one", ours: 1, theirs: 1},
		{Name: "1v4", About: "one flow beside four", ours: 1, theirs: 4},
		{Name: "4v4", About: "four flows beside four", ours: 4, theirs: 4},
		{Name: "late", About: "one flow that joins one after a third of the time", ours: 1, theirs: 1, joins: 1.0 / 3},
		{Name: "far-them", About: "one flow beside one whose round trip is 6 times as long", ours: 1, theirs: 1, slower: theirSide},
		{Name: "far-ours", About: "one flow whose round trip is 6 times as long beside one", ours: 1, theirs: 1, slower: ourSide},
		{Name: "4", About: "four flows among themselves", ours: 4},
	}
}

// SharingPath is the path of sharing experiments. It has no random loss, so every loss
// is congestion.
func SharingPath() Path {
	p := LossyLFN()
	p.RTT, p.Loss = 63*time.Millisecond, link.Loss{}
	return p
}

// SharingOptions select the algorithms and scenarios.
type SharingOptions struct {
	Against   []string  // algorithms of the others; "self" is the algorithm itself
	Scenarios []string  // names; empty means all
	Buffers   []float64 // of the bottleneck, in BDP; empty means the path's
}

// Self means the algorithm itself in Against.
const Self = "self"

// SharingResult is the outcome of a sharing experiment.
type SharingResult struct {
	Experiment string         `json:"experiment"`
	Conditions map[string]any `json:"conditions"`
	Cases      []SharingCase  `json:"cases"`

	path Path
}

// SharingCase is an algorithm's outcome in all scenarios.
type SharingCase struct {
	Name     string    `json:"name"` // of the algorithm
	Meetings []Meeting `json:"meetings"`
}

// Meeting is one scenario against one other algorithm: medians over its runs, of the
// last half of each run.
type Meeting struct {
	Scenario string  `json:"scenario"`
	Against  string  `json:"against,omitempty"`
	QueueBDP float64 `json:"queue_bdp"`
	Flows    int     `json:"flows"`
	Others   int     `json:"others"`

	FlowBps  float64 `json:"flow_bps"`        // of the algorithm, the mean of its flows
	OtherBps Value   `json:"other_bps"`       // of the others, the mean of their flows
	OfFair   Value   `json:"of_fair_share"`   // FlowBps over the mean of all flows; null where nothing arrived
	Jain     Value   `json:"jain_index"`      // of all flows; null where nothing arrived
	Used     float64 `json:"share_of_limit"`  // all flows together
	Harm     Value   `json:"harm"`            // to the others, against what they have without the algorithm's flows
	HarmSelf Value   `json:"harm_among_them"` // what flows of their own kind in its place do to them
	QueueP95 float64 `json:"queue_delay_p95_ms"`

	// Sent ÷ delivered × (1 - random loss): of each flow of the algorithm, of the
	// worst of them, of their sum, and of the others' sum.
	FlowExcess  []Value `json:"sent_per_delivered"`
	WorstExcess Value   `json:"sent_per_delivered_worst"`
	AllExcess   Value   `json:"sent_per_delivered_all"`
	OtherExcess Value   `json:"sent_per_delivered_others"`
	ExcessBound float64 `json:"sent_per_delivered_bound"`
	OK          bool    `json:"ok"` // each flow, and all, within the bound

	// SecondsToShare is the time until a late joiner has 60 % of its fair share.
	SecondsToShare Value `json:"seconds_to_60_percent_of_share"`

	// Goodput per flow as a share of the limit, every SeriesSeconds, of the
	// first run: the algorithm's flows first.
	Series [][]float64 `json:"series"`
}

// meetingRun is one run of a scenario.
type meetingRun struct {
	ours, theirs []float64 // goodput of each flow over the last half, bit/s
	queueP95     float64
	joined       Value

	oursExcess            []float64 // sent ÷ delivered of each flow over the last half
	allExcess, theyExcess float64   // of all of ours and of theirs; NaN of none
	series                [][]float64
}

// party has the flows of a scenario's run.
type party struct {
	scenario     Scenario
	ours, theirs string // algorithms
	withoutOurs  bool
	queueBDP     float64
}

// key returns the same text for identical runs.
func (m party) key() string {
	if m.withoutOurs {
		return fmt.Sprint(m.scenario.theirs, " ", m.theirs, " ", m.scenario.slower == theirSide, " ", m.queueBDP)
	}
	return fmt.Sprint(m.scenario.Name, " ", m.ours, " ", m.theirs, " ", m.queueBDP)
}

// RunSharing runs each algorithm against the others in the scenarios. It also makes the
// reference runs for harm: the others alone, and the others among themselves.
func RunSharing(ctx context.Context, p Path, s SharingOptions, o Options) (SharingResult, error) {
	result := SharingResult{Experiment: "lossy-lfn-sharing", Conditions: p.conditions(o), path: p}
	algorithms, err := tcpcc.Choose(o.Algorithms)
	if err != nil {
		return result, err
	}
	scenarios, err := chooseScenarios(s.Scenarios)
	if err != nil {
		return result, err
	}
	against := s.Against
	if len(against) == 0 {
		against = []string{"cubic", "bbr", Self}
		available, err := tcpcc.Available()
		if err != nil {
			return result, err
		}
		against = slices.DeleteFunc(against, func(name string) bool { return name != Self && !slices.Contains(available, name) })
	}
	others := slices.DeleteFunc(slices.Clone(against), func(name string) bool { return name == Self })
	if len(others) > 0 {
		if _, err := tcpcc.Choose(others); err != nil {
			return result, err
		}
	}
	if len(s.Buffers) == 0 {
		s.Buffers = []float64{p.QueueBDP}
	}
	result.Conditions["queue_bdp"] = s.Buffers

	// Every run that is needed, each once.
	var plan []party
	need := func(m party) {
		if !slices.ContainsFunc(plan, func(known party) bool { return known.key() == m.key() }) {
			plan = append(plan, m)
		}
	}
	each := func(visit func(name, other string, sc Scenario, queue float64)) {
		for _, name := range algorithms {
			for _, queue := range s.Buffers {
				for _, sc := range scenarios {
					if sc.theirs == 0 {
						visit(name, "", sc, queue)
						continue
					}
					seen := []string{}
					for _, other := range against {
						if other == Self {
							other = name
						}
						if !slices.Contains(seen, other) {
							seen = append(seen, other)
							visit(name, other, sc, queue)
						}
					}
				}
			}
		}
	}
	each(func(name, other string, sc Scenario, queue float64) {
		need(party{scenario: sc, ours: name, theirs: other, queueBDP: queue})
		if sc.theirs > 0 {
			need(party{scenario: sc, theirs: other, withoutOurs: true, queueBDP: queue})
			need(party{scenario: sc, ours: other, theirs: other, queueBDP: queue})
		}
	})
	total := len(plan) * o.Repeat
	o.Report.Notef("%d runs of %v: about %s", total, o.Time, o.duration(total))
	runs := map[string][]meetingRun{}
	for repeat := range o.Repeat {
		for i, m := range plan {
			path := p
			path.QueueBDP = m.queueBDP
			path.Seed += uint64(repeat)
			r, err := meet(ctx, path, m, o, repeat*len(plan)+i+1, total)
			if err != nil {
				return result, fmt.Errorf("%s: %w", m.name(), err)
			}
			runs[m.key()] = append(runs[m.key()], r)
		}
	}
	byName := map[string]*SharingCase{}
	for _, name := range algorithms {
		byName[name] = &SharingCase{Name: name}
	}
	each(func(name, other string, sc Scenario, queue float64) {
		of := func(ours string, without bool) []meetingRun {
			return runs[party{scenario: sc, ours: ours, theirs: other, withoutOurs: without, queueBDP: queue}.key()]
		}
		m := p.meeting(sc, of(name, false), of("", true), of(other, false))
		m.Against, m.QueueBDP = other, queue
		byName[name].Meetings = append(byName[name].Meetings, m)
	})
	for _, name := range algorithms {
		result.Cases = append(result.Cases, *byName[name])
	}
	return result, nil
}

func chooseScenarios(names []string) ([]Scenario, error) {
	return flagvalue.Choose("scenario", Scenarios(), names, func(s Scenario) string { return s.Name })
}

// CheckSharing refuses unknown scenarios.
func CheckSharing(s SharingOptions) error {
	_, err := chooseScenarios(s.Scenarios)
	return err
}

func (m party) name() string {
	switch {
	case m.withoutOurs:
		return m.scenario.Name + " " + m.theirs + " alone"
	case m.scenario.theirs == 0:
		return m.scenario.Name + " " + m.ours
	}
	return m.scenario.Name + " " + m.ours + ":" + m.theirs
}

// trial returns the run, and the number of the algorithm's flows, which come first.
func (m party) trial(p Path, during time.Duration) (t Trial, ours int) {
	t = Trial{Path: p, Time: during}
	ratio := func(s side) float64 {
		if m.scenario.slower == s {
			return rttRatio
		}
		return 1
	}
	if !m.withoutOurs {
		ours = m.scenario.ours
		t.Groups = append(t.Groups, Group{Algorithm: m.ours, Flows: ours, RTTRatio: ratio(ourSide),
			Start: time.Duration(m.scenario.joins * float64(during))})
	}
	if m.scenario.theirs > 0 {
		t.Groups = append(t.Groups, Group{Algorithm: m.theirs, Flows: m.scenario.theirs, RTTRatio: ratio(theirSide)})
	}
	return t, ours
}

// meet makes one run of a scenario.
func meet(ctx context.Context, p Path, m party, o Options, run, total int) (meetingRun, error) {
	t, ours := m.trial(p, o.Time)
	ran, err := t.run(ctx, m.name(), o, run, total)
	if err != nil {
		return meetingRun{}, err
	}
	flows := ran.flows
	r := meetingRun{
		queueP95: milliseconds(ran.wan.QueueDelayP95),
		joined:   None,
	}
	limit := p.LimitBps()
	loss := lossOf(p, nil)
	r.oursExcess, r.allExcess = sharedExcess(flows[:ours], loss, o.Time/2)
	_, r.theyExcess = sharedExcess(flows[ours:], loss, o.Time/2)
	for i, f := range flows {
		if f.err != nil {
			return r, f.err
		}
		in := curveOf(f, received)
		mean := in.rateBps(o.Time/2, o.Time)
		if i < ours {
			r.ours = append(r.ours, mean)
		} else {
			r.theirs = append(r.theirs, mean)
		}
		r.series = append(r.series, scaled(in.series(0, o.Time, sampleEvery), 1/limit))
	}
	if joins := t.Groups[0].Start; joins > 0 && ours > 0 {
		fair := limit / float64(len(flows))
		if at, reached := curveOf(flows[0], delivered).reaches(joinedShare*fair, joins, p.RTT); reached {
			r.joined = Value((at - joins).Seconds())
		}
	}
	return r, nil
}

// joinedShare is the part of its fair share that a late joiner must reach.
const joinedShare = 0.6

// meeting summarizes runs of a scenario: of the algorithm with the others, of the
// others alone, and of the others among themselves.
func (p Path) meeting(s Scenario, runs, alone, own []meetingRun) Meeting {
	theirMean := func(r meetingRun) float64 { return stats.Mean(r.theirs) }
	m := Meeting{
		Scenario: s.Name, Flows: s.ours, Others: s.theirs,
		FlowBps: stats.Median(runs, func(r meetingRun) float64 { return stats.Mean(r.ours) }),
		OfFair: Value(stats.Median(runs, func(r meetingRun) float64 {
			return stats.Mean(r.ours) / stats.Mean(slices.Concat(r.ours, r.theirs))
		})),
		Jain: Value(stats.Median(runs, func(r meetingRun) float64 { return Jain(slices.Concat(r.ours, r.theirs)) })),
		Used: stats.Median(runs, func(r meetingRun) float64 {
			all := slices.Concat(r.ours, r.theirs)
			return stats.Mean(all) * float64(len(all)) / p.LimitBps()
		}),
		QueueP95:       stats.Median(runs, func(r meetingRun) float64 { return r.queueP95 }),
		SecondsToShare: Value(stats.Median(runs, func(r meetingRun) float64 { return float64(r.joined) })),
		OtherBps:       None, Harm: None, HarmSelf: None,
	}
	m.judgeExcess(runs)
	if len(runs) > 0 {
		m.Series = runs[0].series
	}
	if s.theirs > 0 {
		solo := stats.Median(alone, theirMean)
		m.OtherBps = Value(stats.Median(runs, theirMean))
		m.Harm = Value(Harm(solo, float64(m.OtherBps)))
		m.HarmSelf = Value(Harm(solo, stats.Median(own, theirMean)))
	}
	return m
}

// judgeExcess compares the excess of the algorithm's flows with the bound.
func (m *Meeting) judgeExcess(runs []meetingRun) {
	m.ExcessBound = MaxExcessShared
	for i := range m.Flows {
		m.FlowExcess = append(m.FlowExcess, Value(stats.Median(runs, func(r meetingRun) float64 { return r.oursExcess[i] })))
	}
	m.WorstExcess = Value(stats.Median(runs, func(r meetingRun) float64 { return slices.Max(r.oursExcess) }))
	m.AllExcess = Value(stats.Median(runs, func(r meetingRun) float64 { return r.allExcess }))
	m.OtherExcess = Value(stats.Median(runs, func(r meetingRun) float64 { return r.theyExcess }))
	m.OK = m.WorstExcess <= MaxExcessShared && m.AllExcess <= MaxExcessShared
}

// WriteText writes a line for every meeting.
func (r SharingResult) WriteText(w io.Writer) error {
	table := newTable(w)
	fmt.Fprint(table, "scenario\tsender\tbeside\tbuf\tMb/s\tthey\tfair\tJain\tused\tharm\town\tp95\tlate\t\n")
	for _, c := range r.Cases {
		for _, m := range c.Meetings {
			theirs := "-"
			if m.OtherBps.Some() {
				theirs = digits(float64(m.OtherBps) / 1e6)
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%g\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.0f\t%s\t\n",
				m.Scenario, c.Name, m.beside(), m.QueueBDP, digits(m.FlowBps/1e6), theirs, percent(float64(m.OfFair)), m.Jain.format("%.2f"), percent(m.Used),
				m.Harm.format("%.2f"), m.HarmSelf.format("%.2f"), m.QueueP95, m.SecondsToShare.format("%.1f"))
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	path := r.path
	queue := ", buf: the queue in BDP"
	caption, _, _ := strings.Cut(path.String(), ", queue")
	if aqm := path.AQM.String(); aqm != "" {
		queue += " with " + aqm
	}
	if _, err := fmt.Fprintf(w, "%s\n%s\n\n", wrapped(caption, queue, fmt.Sprintf("; runs of %v s.", r.Conditions["seconds"])), wrapped(
		"All figures are of the last half of a run. Mb/s, they: goodput per flow; fair: of an equal share for each flow; used: of the limit, ",
		r.path.limitInWords(), "; harm: what they lose by the sender, (alone - shared)/alone; own: by their own kind in its place; ",
		"p95: queue delay, ms; late: seconds until a flow that joins has 60 % of its share.")); err != nil {
		return err
	}
	return r.writeSent(w)
}

// writeSent writes the excess of the flows of each meeting.
func (r SharingResult) writeSent(w io.Writer) error {
	table := newTable(w)
	fmt.Fprint(table, "\tscenario\tsender\tbeside\tbuf\tsent\teach flow\tthey\t\n")
	for _, c := range r.Cases {
		for _, m := range c.Meetings {
			verdict := verdictOf(m.OK)
			var each []string
			for _, v := range m.FlowExcess {
				each = append(each, v.format("%.2f"))
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%g\t%s\t%s\t%s\t\n", verdict, m.Scenario, c.Name, m.beside(), m.QueueBDP,
				m.AllExcess.format("%.2f"), strings.Join(each, " "), m.OtherExcess.format("%.2f"))
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, wrapped("sent: sent ÷ delivered × (1 - random loss) of all the sender's flows; they: of the others'; ",
		fmt.Sprintf("ok: each of the sender's flows, and all, send at most %.2f.", MaxExcessShared)))
	return err
}

// beside names the others, if any.
func (m Meeting) beside() string {
	if m.Against == "" {
		return "-"
	}
	return m.Against
}

// Plot plots the flows' shares of the limit over time, a panel for each meeting.
func (r SharingResult) Plot() plot.Figure {
	f := plot.Figure{Title: "Shares of the bottleneck over time",
		Note: "one run of each; mean of each side's flows, with the range between them; " + strings.Split(r.path.String(), ", queue")[0]}
	for _, c := range r.Cases {
		for _, m := range c.Meetings {
			p := plot.Panel{X: timeAxis, Y: plot.Axis{Label: "goodput ÷ limit", Unit: "%", Max: 100}}
			p.Title = fmt.Sprintf("%s: %d %s", m.Scenario, m.Flows, c.Name)
			other := m.Against
			if m.Others > 0 {
				p.Title += fmt.Sprintf(", %d %s", m.Others, other)
				p.Levels = []plot.Level{{Name: "fair", Y: 100 / float64(m.Flows+m.Others)}}
			} else {
				p.Levels = []plot.Level{{Name: "fair", Y: 100 / float64(m.Flows)}}
			}
			p.Title += fmt.Sprintf(", queue %g", m.QueueBDP)
			if other == c.Name {
				other += " (others)"
			}
			ours := scaledAll(m.Series[:m.Flows], 100)
			p.Series = append(p.Series, clip(flowsOverTime(c.Name, ours), 100))
			if m.Others > 0 {
				p.Series = append(p.Series, clip(flowsOverTime(other, scaledAll(m.Series[m.Flows:], 100)), 100))
			}
			f.Panels = append(f.Panels, p)
		}
	}
	return f
}

// flowsOverTime is overTime with the mean of the flows in place of the median:
// shares add up.
func flowsOverTime(name string, flows [][]float64) plot.Series {
	s := overTime(name, flows, plotEvery)
	means := make([]float64, 0)
	for i := range flows[0] {
		column := make([]float64, len(flows))
		for j := range flows {
			column[j] = flows[j][i]
		}
		means = append(means, stats.Mean(column))
	}
	line := overTime(name, [][]float64{means}, plotEvery)
	for i := range s.Points {
		s.Points[i].Y = line.Points[i].Y
	}
	return s
}

// clip keeps a line within its panel: over a second, a receiver may get data that
// waited behind a gap in addition to the rate.
func clip(s plot.Series, top float64) plot.Series {
	for i := range s.Points {
		p := &s.Points[i]
		p.Y, p.Lo, p.Hi = min(p.Y, top), min(p.Lo, top), min(p.Hi, top)
	}
	return s
}

func scaledAll(series [][]float64, by float64) [][]float64 {
	out := make([][]float64, len(series))
	for i, values := range series {
		out[i] = scaled(values, by)
	}
	return out
}

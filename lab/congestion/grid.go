package congestion

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"longhaul/internal/words/plot"
	"longhaul/lab/tcpcc"
)

// Grid is a matrix of paths: every combination of its lists.
type Grid struct {
	RatesBps   []int64
	RTTs       []time.Duration
	Losses     []float64
	BuffersBDP []float64
}

// FullGrid is the matrix for judging an algorithm.
func FullGrid() Grid {
	return Grid{
		RatesBps:   []int64{10e6, 100e6, 1000e6},
		RTTs:       []time.Duration{20 * time.Millisecond, 63 * time.Millisecond, 150 * time.Millisecond, 300 * time.Millisecond, 600 * time.Millisecond},
		Losses:     []float64{0, 0.001, 0.01, 0.03, 0.05, 0.10, 0.15, 0.20},
		BuffersBDP: []float64{0.1, 0.5, 1, 4},
	}
}

// Paths returns the paths of the grid's cells, based on base.
func (g Grid) Paths(base Path) []Path {
	var paths []Path
	for _, rate := range g.RatesBps {
		for _, buffer := range g.BuffersBDP {
			for _, rtt := range g.RTTs {
				for _, loss := range g.Losses {
					p := base
					p.RateBps, p.QueueBDP, p.RTT, p.Loss.Probability = rate, buffer, rtt, loss
					paths = append(paths, p)
				}
			}
		}
	}
	return paths
}

// Check returns an error for an invalid cell.
func (g Grid) Check(base Path) error {
	paths := g.Paths(base)
	if len(paths) == 0 {
		return errors.New("the grid is empty: choose at least one rate, RTT, loss and buffer")
	}
	for _, p := range paths {
		if err := p.Check(); err != nil {
			return err
		}
	}
	return nil
}

// GridResult is the outcome of a grid.
type GridResult struct {
	Experiment string         `json:"experiment"`
	Conditions map[string]any `json:"conditions"` // those that all cells share
	Cases      []GridCase     `json:"cases"`

	base Path
	grid Grid
}

// GridCase is an algorithm's outcome in each cell.
type GridCase struct {
	Name  string `json:"name"` // of the algorithm
	Cells []Cell `json:"cells"`
}

// Cell is a path with an algorithm's figures, medians over its runs.
type Cell struct {
	RateBps     int64   `json:"rate_bps"`
	RTTMs       float64 `json:"rtt_ms"`
	Loss        float64 `json:"loss_ab"`
	QueueBDP    float64 `json:"queue_bdp"`
	WholeShare  Value   `json:"share_of_limit"` // of the whole runs
	SteadyShare Value   `json:"steady_share_of_limit"`
	CaseResult
	Failed []string `json:"failed,omitempty"` // runs without a result, and why
}

// setup is about the extra duration of a run beside its time.
const setup = 700 * time.Millisecond

// duration returns a text with the rough duration of a number of runs.
func (o Options) duration(runs int) string {
	d := time.Duration(runs) * (o.Time + setup)
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	}
	return fmt.Sprintf("%.0f h", d.Hours())
}

// RunGrid runs every algorithm in every cell. With a store, it saves each run's result
// at once, and skips runs that the store has. A failed run costs its cell, not the
// grid.
func RunGrid(ctx context.Context, g Grid, base Path, o Options, s *Store) (GridResult, error) {
	result := GridResult{Experiment: "lossy-lfn-grid", base: base, grid: g}
	algorithms, err := tcpcc.Choose(o.Algorithms)
	if err != nil {
		return result, err
	}
	result.Conditions = base.conditions(o)
	for _, varied := range []string{"rate_bps", "rtt_ms", "loss_ab", "queue_bdp", "buffer_bytes", "limit_bps"} {
		delete(result.Conditions, varied)
	}
	type task struct {
		path      Path
		cell, alg int
		known     *Run
	}
	paths := g.Paths(base)
	var tasks []task
	missing := 0
	for repeat := range o.Repeat {
		for i, p := range paths {
			p.Seed += uint64(repeat)
			for a, algorithm := range algorithms {
				known, err := s.load(p, algorithm, o)
				if err != nil {
					return result, err
				}
				if known == nil {
					missing++
				}
				tasks = append(tasks, task{p, i, a, known})
			}
		}
	}
	o.Report.Notef("%d paths, %d algorithms, %d runs of %v each: %d of %d are to be run, about %s",
		len(paths), len(algorithms), o.Repeat, o.Time, missing, len(tasks), o.duration(missing))

	runs := make([][][]Run, len(algorithms))
	failed := make([][][]string, len(algorithms))
	for a := range algorithms {
		runs[a], failed[a] = make([][]Run, len(paths)), make([][]string, len(paths))
	}
	done := 0
	for _, t := range tasks {
		if t.known != nil {
			runs[t.alg][t.cell] = append(runs[t.alg][t.cell], *t.known)
			continue
		}
		done++
		algorithm := algorithms[t.alg]
		r, err := oneFlow(ctx, t.path, algorithm, o, done, missing)
		if ctx.Err() != nil {
			return result, context.Cause(ctx)
		}
		if err != nil {
			o.Report.Notef("%s, %s: %v", algorithm, t.path, err)
			failed[t.alg][t.cell] = append(failed[t.alg][t.cell], err.Error())
			continue
		}
		if err := s.save(t.path, algorithm, o, r); err != nil {
			return result, err
		}
		runs[t.alg][t.cell] = append(runs[t.alg][t.cell], r)
	}
	for a, algorithm := range algorithms {
		c := GridCase{Name: algorithm}
		for i, p := range paths {
			cell := Cell{
				RateBps: p.RateBps, RTTMs: milliseconds(p.RTT), Loss: p.Loss.Probability, QueueBDP: p.QueueBDP,
				WholeShare: None, SteadyShare: None, Failed: failed[a][i],
			}
			cell.Name = algorithm
			cell.LimitBps = p.LimitBps()
			if len(runs[a][i]) > 0 {
				cell.CaseResult = summarize(algorithm, p.LimitBps(), withoutSeries(runs[a][i]))
				cell.WholeShare = Value(cell.GoodputBps / cell.LimitBps)
				cell.SteadyShare = Value(cell.SteadyBps / cell.LimitBps)
			}
			c.Cells = append(c.Cells, cell)
		}
		result.Cases = append(result.Cases, c)
	}
	return result, nil
}

// withoutSeries keeps a grid's result readable: the store has the series.
func withoutSeries(runs []Run) []Run {
	out := slices.Clone(runs)
	for i := range out {
		r := &out[i]
		r.GoodputSeriesBps, r.DeliverySeriesBps, r.SentSeriesBps = nil, nil, nil
		r.QueueSeriesMs, r.RTTSeriesMs, r.CwndSeries = nil, nil, nil
	}
	return out
}

// WriteText writes a line for every path and a column for every algorithm.
func (r GridResult) WriteText(w io.Writer) error {
	paths := r.grid.Paths(r.base)
	write := func(figure func(Cell) string) error {
		table := newTable(w)
		fmt.Fprint(table, "rate\tRTT\tloss\tqueue\t")
		for _, c := range r.Cases {
			fmt.Fprintf(table, "%s\t", c.Name)
		}
		fmt.Fprintln(table)
		for i, p := range paths {
			fmt.Fprintf(table, "%s\t%g ms\t%g%%\t%g\t", strings.TrimSuffix(Rate(float64(p.RateBps)), "b/s"), milliseconds(p.RTT), 100*p.Loss.Probability, p.QueueBDP)
			for _, c := range r.Cases {
				cell := "failed"
				if c.Cells[i].WholeShare.Some() {
					cell = figure(c.Cells[i])
				}
				fmt.Fprintf(table, "%s\t", cell)
			}
			fmt.Fprintln(table)
		}
		return table.Flush()
	}
	err := write(func(c Cell) string {
		return bare(float64(c.WholeShare)) + "/" + bare(float64(c.SteadyShare))
	})
	if err != nil {
		return err
	}
	runs := ""
	if len(r.Cases) > 0 && len(r.Cases[0].Cells) > 0 {
		if n := len(r.Cases[0].Cells[0].Runs); n > 1 {
			runs = fmt.Sprintf("medians of %d ", n)
		}
	}
	fmt.Fprintf(w, "%s\n\n", wrapped(
		fmt.Sprintf("Goodput in %% of the limit, %sruns of %v s: whole/second half. ", runs, r.Conditions["seconds"]),
		"The limit is the rate × 1448/1500", r.base.lossShare(), "; packets are lost ", r.base.LossPlace.String(), " the bottleneck; the queue is in BDP."))
	if err := write(func(c Cell) string { return c.QueueP95Ms.format("%.0f") }); err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, "Delay in the bottleneck's queue, p95 over the whole run, ms.")
	return err
}

func (p Path) lossShare() string {
	if p.LossPlace == 1 {
		return " × (1 - loss)"
	}
	return ""
}

// bare formats a share in percent without the sign.
func bare(share float64) string { return strings.TrimSuffix(percent(share), "%") }

// Plot is goodput over the limit against loss, or against the RTT where there
// is one loss only; a panel for each combination of the rest.
func (r GridResult) Plot() plot.Figure {
	againstLoss := len(r.grid.Losses) > 1
	panels := map[string]*plot.Panel{}
	var order []string
	for _, c := range r.Cases {
		for _, cell := range c.Cells {
			title := fmt.Sprintf("%s, queue of %g BDP", Rate(float64(cell.RateBps)), cell.QueueBDP)
			axis := plot.Axis{Label: "RTT", Unit: "ms", Scale: plot.Steps}
			x := cell.RTTMs
			if againstLoss {
				title = fmt.Sprintf("%s, %g ms, queue of %g BDP", Rate(float64(cell.RateBps)), cell.RTTMs, cell.QueueBDP)
				axis, x = plot.Axis{Label: "loss", Unit: "%", Scale: plot.Steps}, 100*cell.Loss
			}
			p := panels[title]
			if p == nil {
				p = &plot.Panel{Title: title, X: axis, Y: plot.Axis{Label: "goodput ÷ limit", Unit: "%", Max: 100}}
				panels[title] = p
				order = append(order, title)
			}
			if n := len(p.Series); n == 0 || p.Series[n-1].Name != c.Name {
				p.Series = append(p.Series, plot.Series{Name: c.Name})
			}
			if !cell.WholeShare.Some() {
				continue
			}
			line := &p.Series[len(p.Series)-1]
			line.Points = append(line.Points, plot.Point{X: x, Y: min(100, 100*float64(cell.WholeShare)),
				Lo: 100 * cell.GoodputMinBps / cell.LimitBps, Hi: 100 * cell.GoodputMaxBps / cell.LimitBps})
		}
	}
	f := plot.Figure{Title: "Goodput against loss", Note: fmt.Sprintf("one flow, %v s from a cold start; packets are lost %s the bottleneck", r.Conditions["seconds"], r.base.LossPlace.String())}
	if !againstLoss {
		f.Title = "Goodput against the round-trip time"
		f.Note += fmt.Sprintf(": %g %%", 100*r.grid.Losses[0])
	}
	if f.Columns = len(r.grid.RTTs); !againstLoss || f.Columns > 5 {
		f.Columns = 0
	}
	for _, title := range order {
		f.Panels = append(f.Panels, *panels[title])
	}
	return f
}

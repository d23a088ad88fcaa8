package congestion

import (
	"context"
	"fmt"
	"io"
	"time"

	"longhaul/internal/words/plot"
	"longhaul/lab/stats"
	"longhaul/lab/tcpcc"
)

// ShortSizes are the sizes of the timed transfers, in bytes.
func ShortSizes() []int64 { return []int64{100e3, 1e6, 10e6} }

// ShortResult has the completion times of transfers of a few sizes.
type ShortResult struct {
	Experiment string         `json:"experiment"`
	Conditions map[string]any `json:"conditions"`
	Cases      []ShortCase    `json:"cases"`

	path Path
	o    Options
}

// ShortCase is an algorithm's outcome.
type ShortCase struct {
	Name  string      `json:"name"` // of the algorithm
	Sizes []ShortSize `json:"sizes"`
}

// ShortSize is the outcome of a size.
type ShortSize struct {
	Bytes         int64   `json:"bytes"`
	Transfers     int     `json:"transfers"`
	SecondsP50    Value   `json:"seconds_p50"` // from connect to the receiver's last byte
	SecondsP90    Value   `json:"seconds_p90"`
	SecondsMin    Value   `json:"seconds_min"`
	SecondsMax    Value   `json:"seconds_max"`
	SecondsIdeal  float64 `json:"seconds_ideal"` // handshake, one way, and the bytes at the limit
	Unfinished    int     `json:"unfinished"`    // after the time of a run; they count as longer than any other
	UnfinishedBps Value   `json:"unfinished_median_bps"`
}

// RunShort times transfers one after the other, each over its own connection:
// Options.Repeat of each size, each at most Options.Time long.
func RunShort(ctx context.Context, p Path, sizes []int64, o Options) (ShortResult, error) {
	result := ShortResult{Experiment: "lossy-lfn-short", Conditions: p.conditions(o), path: p, o: o}
	algorithms, err := tcpcc.Choose(o.Algorithms)
	if err != nil {
		return result, err
	}
	total := len(algorithms) * len(sizes) * o.Repeat
	o.Report.Notef("%d transfers of at most %v: up to %s", total, o.Time, o.duration(total))
	flows := make([][][]flow, len(algorithms))
	for i := range flows {
		flows[i] = make([][]flow, len(sizes))
	}
	done := 0
	for repeat := range o.Repeat {
		for s, bytes := range sizes {
			for a, algorithm := range algorithms {
				done++
				path := p
				path.Seed += uint64(repeat)
				f, err := transfer(ctx, path, algorithm, bytes, o, done, total)
				if err != nil {
					return result, fmt.Errorf("%s: %w", algorithm, err)
				}
				flows[a][s] = append(flows[a][s], f)
			}
		}
	}
	for a, algorithm := range algorithms {
		c := ShortCase{Name: algorithm}
		for s, bytes := range sizes {
			c.Sizes = append(c.Sizes, p.completion(bytes, flows[a][s], o.Time))
		}
		result.Cases = append(result.Cases, c)
	}
	return result, nil
}

// transfer makes one transfer in a new lab: unless it is to be warm, the hosts remember
// nothing of the path. The seed sets the losses.
func transfer(ctx context.Context, p Path, algorithm string, bytes int64, o Options, run, total int) (flow, error) {
	t := Trial{Path: p, Time: o.Time, Warm: o.Warm, Groups: []Group{{Algorithm: algorithm, Flows: 1, Bytes: bytes}}}
	ran, err := t.run(ctx, fmt.Sprintf("%s %s", sizeInWords(bytes), algorithm), o, run, total)
	if err != nil {
		return flow{}, err
	}
	return ran.flows[0], ran.flows[0].err
}

// completion summarizes transfers of a size.
func (p Path) completion(bytes int64, flows []flow, during time.Duration) ShortSize {
	took := func(f flow) float64 {
		if f.finished == 0 {
			return float64(None)
		}
		return (f.finished - f.start).Seconds()
	}
	lo, hi := stats.Spread(flows, took)
	s := ShortSize{
		Bytes: bytes, Transfers: len(flows), SecondsMin: Value(lo), SecondsMax: Value(hi),
		SecondsP50: Value(stats.Median(flows, took)), SecondsP90: Value(stats.Quantile(flows, 0.9, took)),
		SecondsIdeal:  1.5*p.RTT.Seconds() + float64(bytes)*8/p.LimitBps(),
		UnfinishedBps: None,
	}
	var rates []float64
	for _, f := range flows {
		if f.finished == 0 {
			s.Unfinished++
			rates = append(rates, curveOf(f, received).rateBps(f.start, during))
		}
	}
	if len(rates) > 0 {
		s.UnfinishedBps = Value(stats.Median(rates, func(v float64) float64 { return v }))
	}
	return s
}

func sizeInWords(bytes int64) string {
	if bytes >= 1e6 {
		return fmt.Sprintf("%g MB", float64(bytes)/1e6)
	}
	return fmt.Sprintf("%g kB", float64(bytes)/1e3)
}

// WriteText writes a line for every size and algorithm.
func (r ShortResult) WriteText(w io.Writer) error {
	table := newTable(w)
	fmt.Fprint(table, "size\tsender\tp50\tp90\tleast\tmost\tideal\tunfinished\t\n")
	seconds := func(v Value) string {
		if !v.Some() {
			return fmt.Sprintf("> %g s", r.o.Time.Seconds())
		}
		return v.format("%.2f s")
	}
	for i := range r.sizes() {
		for _, c := range r.Cases {
			s := c.Sizes[i]
			unfinished := "-"
			if s.Unfinished > 0 {
				unfinished = fmt.Sprintf("%d of %d at %s", s.Unfinished, s.Transfers, Rate(float64(s.UnfinishedBps)))
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%.2f s\t%s\t\n", sizeInWords(s.Bytes), c.Name,
				seconds(s.SecondsP50), seconds(s.SecondsP90), seconds(s.SecondsMin), seconds(s.SecondsMax), s.SecondsIdeal, unfinished)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%s\n", wrapped(r.path.String(), fmt.Sprintf("; %d transfers of each size. ", r.o.Repeat),
		"From connect to the receiver's last byte; ideal: the handshake, one way, and the bytes at ", Rate(r.path.LimitBps()), "."))
	return err
}

func (r ShortResult) sizes() []ShortSize {
	if len(r.Cases) == 0 {
		return nil
	}
	return r.Cases[0].Sizes
}

// Plot is completion time against size.
func (r ShortResult) Plot() plot.Figure {
	p := plot.Panel{X: plot.Axis{Label: "size", Unit: "MB", Scale: plot.Log10}, Y: plot.Axis{Label: "completion time, median", Unit: "s", Scale: plot.Log10}}
	for _, c := range r.Cases {
		line := plot.Series{Name: c.Name}
		for _, s := range c.Sizes {
			if !s.SecondsP50.Some() {
				continue
			}
			point := plot.Point{X: float64(s.Bytes) / 1e6, Y: float64(s.SecondsP50)}
			if s.SecondsMax.Some() {
				point.Lo, point.Hi = float64(s.SecondsMin), float64(s.SecondsMax)
			}
			line.Points = append(line.Points, point)
		}
		p.Series = append(p.Series, line)
	}
	ideal := plot.Series{Name: "ideal"}
	for _, s := range r.sizes() {
		ideal.Points = append(ideal.Points, plot.Point{X: float64(s.Bytes) / 1e6, Y: s.SecondsIdeal})
	}
	p.Series = append(p.Series, ideal)
	return plot.Figure{Title: "Completion of short transfers", Note: r.path.String() + fmt.Sprintf("; medians of %d, with their range; none where most took longer than %v", r.o.Repeat, r.o.Time), Panels: []plot.Panel{p}}
}

package report

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"longhaul/internal/find/doctor"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/words/display"
	"longhaul/internal/words/sorted"
	"longhaul/internal/words/units"
)

// The widths of a comparison's columns.
const (
	labelWidth = 20
	cellWidth  = 18
	barWidth   = 20
)

// WriteComparison writes two periods side by side, in at most 80 columns. The
// courses are those of both.
func WriteComparison(w io.Writer, c history.Comparison, courses [2]history.Chart) {
	b, a := &c.Before, &c.After
	for i, s := range []*history.Summary{b, a} {
		rough := ""
		if s.Approximate {
			rough = " (from hourly summaries)"
		}
		fmt.Fprintf(w, "%-7s %s%s\n", []string{"before", "after"}[i], units.Period{From: s.Period.Since, To: s.Period.Until}, rough)
	}
	row := func(label, one, other, change string) {
		fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf("%-*s %-*s %-*s %s", labelWidth, label, cellWidth, one, cellWidth, other, change), " "))
	}
	fmt.Fprintf(w, "\n%s\n", display.Fold(c.Verdict, screenWidth, 0))
	for _, warning := range c.Warnings {
		fmt.Fprintln(w, display.Fold("warning: "+warning, screenWidth, 0))
	}
	if b.PairsOnce || a.PairsOnce {
		fmt.Fprintln(w, "a flow through a pair counts once, where its client is; --relay counts a relay's")
	}
	if len(c.Warnings) > 0 {
		fmt.Fprintln(w, "compare transfers that are alike: --tunnel NAME, --min-bytes SIZE")
	}
	fmt.Fprintln(w)
	row("", "BEFORE", "AFTER", "CHANGE")
	count := func(n int64) string { return display.Quantity(n) }
	row("flows", count(b.Flows), count(a.Flows), "")
	row("transfers", count(b.Transfers), count(a.Transfers), "")
	row("bytes", display.Quantity(b.BytesUp+b.BytesDown)+"B", display.Quantity(a.BytesUp+a.BytesDown)+"B", "")
	row("retransmitted", display.Share(b.RetransmittedShare), display.Share(a.RetransmittedShare), "")
	writeResumed(row, b.Resumed, a.Resumed)
	seconds := func(v float64) string { return display.Span(time.Duration(v * float64(time.Second))) }
	rate := func(v float64) string { return display.Quantity(int64(v)) + "b/s" }
	for _, of := range []struct {
		name   string
		one    *history.Distribution
		other  *history.Distribution
		format func(float64) string
		fast   float64 // 1: more is faster; -1: less is
	}{{"time", &b.TransferTime, &a.TransferTime, seconds, -1}, {"goodput", &b.Goodput, &a.Goodput, rate, 1}} {
		for _, q := range []struct {
			name string
			pick func(*history.Distribution) float64
		}{
			{"median", func(d *history.Distribution) float64 { return d.P50 }},
			{"90 % below", func(d *history.Distribution) float64 { return d.P90 }},
			{"10 % below", func(d *history.Distribution) float64 { return d.P10 }},
		} {
			text := func(d *history.Distribution) string {
				if d.Count == 0 {
					return "-"
				}
				return of.format(q.pick(d))
			}
			change := ""
			if of.one.Count > 0 && of.other.Count > 0 {
				change = changeText(math.Pow(q.pick(of.other)/q.pick(of.one), of.fast))
			}
			row(of.name+", "+q.name, text(of.one), text(of.other), change)
		}
	}
	if e := max(b.QuantileError, a.QuantileError); e > history.RecordsError {
		fmt.Fprintf(w, "times and goodputs are right within %.2g %%\n", 100*e)
	}
	writeCourses(w, courses)
	writeBars(w, "TIME OF TRANSFERS", &b.TransferTime, &a.TransferTime)
	writeCauses(w, b, a)
}

// writeResumed adds what outages between paired relays did, if there were any.
func writeResumed(row func(label, one, other, change string), before, after *history.Resumed) {
	if before == nil && after == nil {
		return
	}
	both := [2]history.Resumed{}
	for i, r := range []*history.Resumed{before, after} {
		if r != nil {
			both[i] = *r
		}
	}
	b, a := &both[0], &both[1]
	row("flows resumed", display.Quantity(b.Flows), display.Quantity(a.Flows), "")
	row("resumes", display.Quantity(b.Resumes), display.Quantity(a.Resumes), "")
	longest := func(r *history.Resumed) string {
		if r.Flows == 0 {
			return "-"
		}
		return display.Span(r.Longest.Duration())
	}
	row("outage, longest", longest(b), longest(a), "")
}

// changeText says how much faster or slower something became, from the ratio of speeds.
func changeText(ratio float64) string {
	switch {
	case math.IsNaN(ratio) || math.IsInf(ratio, 0) || ratio <= 0:
		return ""
	case ratio >= 1.995:
		return history.Factor(ratio) + " times as fast"
	case ratio <= 1/1.995:
		return history.Factor(1/ratio) + " times as slow"
	case math.Abs(ratio-1) < 0.0005:
		return "no change"
	case ratio > 1:
		return fmt.Sprintf("%.1f %% faster", 100*(ratio-1))
	}
	return fmt.Sprintf("%.1f %% slower", 100*(1/ratio-1))
}

// writeCourses draws the median of the transfer times over both periods, to the
// same scale.
func writeCourses(w io.Writer, courses [2]history.Chart) {
	const width = 60
	var lines [2][]float64
	var most float64
	for i := range courses {
		points := courses[i].Points
		each := max(1, (len(points)+width-1)/width)
		for part := range slices.Chunk(points, each) {
			v, n := 0.0, int64(0)
			for _, p := range part {
				if p.Transfers > 0 {
					v += p.TransferTimeMedian * float64(p.Transfers)
					n += p.Transfers
				}
			}
			if n == 0 {
				lines[i] = append(lines[i], math.NaN())
				continue
			}
			lines[i] = append(lines[i], v/float64(n))
			most = max(most, v/float64(n))
		}
	}
	if most == 0 {
		return
	}
	fmt.Fprintln(w, "\nMEDIAN TIME OF TRANSFERS OVER EACH PERIOD")
	for i, name := range []string{"before", "after"} {
		fmt.Fprintf(w, "%-7s %s\n", name, strings.TrimRight(display.SparklineTo(lines[i], most), " "))
	}
	fmt.Fprintf(w, "%-7s 0 to %s\n", "", display.Span(time.Duration(most*float64(time.Second))))
}

// writeBars draws two distributions side by side, as shares of each.
func writeBars(w io.Writer, title string, one, other *history.Distribution) {
	if one.Count+other.Count == 0 {
		return
	}
	type row struct{ one, other float64 }
	rows := map[float64]*row{}
	to := map[float64]float64{}
	var most float64
	for _, d := range []struct {
		of    *history.Distribution
		share func(*row) *float64
	}{{one, func(r *row) *float64 { return &r.one }}, {other, func(r *row) *float64 { return &r.other }}} {
		for _, bin := range d.of.Bins {
			if rows[bin.From] == nil {
				rows[bin.From] = &row{}
				to[bin.From] = bin.To
			}
			share := float64(bin.Count) / float64(d.of.Count)
			*d.share(rows[bin.From]) = share
			most = max(most, share)
		}
	}
	edges := make([]float64, 0, len(rows))
	for from := range rows {
		edges = append(edges, from)
	}
	slices.Sort(edges)
	fmt.Fprintf(w, "\n%-*s %-*s %s\n", labelWidth, title, barWidth+6, "BEFORE", "AFTER")
	side := func(share float64, of *history.Distribution) string {
		if of.Count == 0 {
			return fmt.Sprintf("%4s %-*s", "-", barWidth, "")
		}
		filled := strings.Repeat("█", int(math.Round(share/most*barWidth)))
		if filled == "" && share > 0 {
			filled = "▏"
		}
		return fmt.Sprintf("%4s %-*s", display.Share(share), barWidth, filled)
	}
	for _, from := range edges {
		line := fmt.Sprintf("%7s to %-9s %s  %s", boundText(from), boundText(to[from]), side(rows[from].one, one), side(rows[from].other, other))
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
}

// boundText writes a bound of transfer times, in seconds.
func boundText(v float64) string {
	switch {
	case v < 0.001:
		return fmt.Sprintf("%.3gµs", v*1e6)
	case v < 1:
		return fmt.Sprintf("%.3gms", v*1e3)
	case v < 1000:
		return fmt.Sprintf("%.3gs", v)
	case v < 3600:
		return fmt.Sprintf("%.2gm", v/60)
	case v < 2*86400:
		return fmt.Sprintf("%.2gh", v/3600)
	case v < 100*86400:
		return fmt.Sprintf("%.2gd", v/86400)
	}
	return fmt.Sprintf("%.0fd", v/86400)
}

// writeCauses lists what limited flows, the most frequent of both periods first.
func writeCauses(w io.Writer, before, after *history.Summary) {
	shares := map[doctor.Cause][2]float64{}
	for i, s := range []*history.Summary{before, after} {
		for _, c := range s.Causes {
			v := shares[c.Cause]
			v[i] = float64(c.Flows) / float64(s.Flows)
			shares[c.Cause] = v
		}
	}
	if len(shares) == 0 {
		return
	}
	causes := make([]doctor.Cause, 0, len(shares))
	for c := range shares {
		causes = append(causes, c)
	}
	sorted.By(causes, func(a, b doctor.Cause) int {
		return cmp.Or(cmp.Compare(shares[b][0]+shares[b][1], shares[a][0]+shares[a][1]), cmp.Compare(a, b))
	})
	fmt.Fprintf(w, "\n%-*s %-*s %s\n", labelWidth, "LIMITED BY", cellWidth, "BEFORE", "AFTER")
	for _, c := range causes {
		fmt.Fprintf(w, "%-*s %-*s %s\n", labelWidth, c, cellWidth, display.Share(shares[c][0])+" of flows", display.Share(shares[c][1])+" of flows")
	}
}

package report

import (
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"

	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/words/display"
	"longhaul/internal/words/units"
)

// WriteMatrix writes the first lines of a matrix as a table that fits 80 columns, or a wider
// terminal. A limit of 0 is none. It is a list by bytes: of 50 sites a grid has 2500 cells, of which
// most say nothing.
func WriteMatrix(w io.Writer, m history.Matrix, limit int) {
	if len(m.Lines) == 0 {
		fmt.Fprintf(w, "no flow ended %s\n", units.Period{From: m.Period.Since, To: m.Period.Until})
		return
	}
	shown := m.Lines
	if limit > 0 && limit < len(shown) {
		shown = shown[:limit]
	}
	width := screenWidth
	if columns, ok := display.TerminalWidth(w); ok {
		width = max(width, columns)
	}
	from, to := len("FROM"), len("TO")
	for _, l := range shown {
		from, to = max(from, len(l.From)), max(to, len(l.To))
	}
	const figures = 56
	if over := from + 1 + to + figures - width; over > 0 { // the longer one gives way first
		less := min(over, max(from-to, 0))
		from, over = from-less, over-less
		less = min(over, max(to-from, 0))
		to, over = to-less, over-less
		from, to = from-(over+1)/2, to-over/2
	}
	fmt.Fprintf(w, "flows that ended %s\n\n", units.Period{From: m.Period.Since, To: m.Period.Until})
	const row = "%-*s %-*s %6s %6s %6s %6s %6s %6s %6s %6s\n"
	fmt.Fprintf(w, "%*s%13s %13s\n", from+1+to+21, "", "BIT/S", "TIME")
	fmt.Fprintf(w, row, from, "FROM", to, "TO", "FLOWS", "UP", "DOWN", "MEDIAN", "99 %", "MEDIAN", "99 %", "RETR")
	rate := func(v float64) string {
		if v < 0 {
			return "-"
		}
		return display.Quantity(int64(math.Round(v)))
	}
	span := func(v float64) string {
		if v < 0 {
			return "-"
		}
		return display.Span(time.Duration(v * float64(time.Second)))
	}
	for _, l := range shown {
		end := l.To
		if end == "" {
			end = "-"
		}
		fmt.Fprintf(w, row, from, display.Shorten(l.From, from), to, display.Shorten(end, to), display.Quantity(l.Flows), display.Quantity(l.BytesUp), display.Quantity(l.BytesDown),
			rate(l.GoodputMedian), rate(l.GoodputP99), span(l.TimeMedian), span(l.TimeP99), display.Share(l.RetransmittedShare))
	}
	if rest := m.Lines[len(shown):]; len(rest) > 0 {
		var all, more int64
		for i, l := range m.Lines {
			all += l.BytesUp + l.BytesDown
			if i >= len(shown) {
				more += l.BytesUp + l.BytesDown
			}
		}
		share := 0.0
		if all > 0 {
			share = float64(more) / float64(all)
		}
		fmt.Fprintf(w, "%s more with %s of the bytes: --limit 0 lists all, --site NAME those of a site\n", display.Plural(len(rest), "line"), display.Share(share))
	}
}

// WriteMatrixCSV writes all lines of a matrix. What is not known is empty.
func WriteMatrixCSV(w io.Writer, m history.Matrix) error {
	c := csv.NewWriter(w)
	_ = c.Write([]string{"from", "to", "flows", "transfers", "bytes_up", "bytes_down", "retransmitted_share",
		"goodput_median_bps", "goodput_p99_bps", "time_median_s", "time_p99_s"}) // Error returns an error
	number := func(v float64) string {
		if v < 0 {
			return ""
		}
		return strconv.FormatFloat(v, 'g', 6, 64)
	}
	for _, l := range m.Lines {
		count := func(v int64) string { return strconv.FormatInt(v, 10) }
		_ = c.Write([]string{l.From, l.To, count(l.Flows), count(l.Transfers), count(l.BytesUp), count(l.BytesDown), number(l.RetransmittedShare),
			number(l.GoodputMedian), number(l.GoodputP99), number(l.TimeMedian), number(l.TimeP99)})
	}
	c.Flush()
	return c.Error()
}

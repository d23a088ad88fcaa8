//go:build linux

package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"longhaul/internal/monitor"
	"longhaul/internal/monitor/history"
	"longhaul/internal/monitor/history/synthetic"
)

func TestParsePeriod(t *testing.T) {
	now := time.Date(2026, 11, 21, 15, 30, 0, 0, time.UTC)
	for text, want := range map[string]string{
		"24h":                                  "2026-11-20 15:30..2026-11-21 15:30",
		"7d":                                   "2026-11-14 15:30..2026-11-21 15:30",
		"48h..24h":                             "2026-11-19 15:30..2026-11-20 15:30",
		"2026-11-20":                           "2026-11-20 00:00..2026-11-21 00:00",
		"yesterday":                            "2026-11-20 00:00..2026-11-21 00:00",
		"2026-11-01..2026-11-07":               "2026-11-01 00:00..2026-11-08 00:00",
		"2026-11-20T14:30":                     "2026-11-20 14:30..2026-11-21 15:30",
		"2026-11-20 14:30..2026-11-20 15:00":   "2026-11-20 14:30..2026-11-20 15:00",
		"14:30":                                "2026-11-21 14:30..2026-11-21 15:30",
		"14:00..now":                           "2026-11-21 14:00..2026-11-21 15:30",
		"2026-11-20T14:30:00+02:00..yesterday": "2026-11-20 12:30..2026-11-21 00:00",
	} {
		p, err := parsePeriod(text, now)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		const layout = "2006-01-02 15:04"
		if got := p.From.UTC().Format(layout) + ".." + p.To.UTC().Format(layout); got != want {
			t.Errorf("%s is %s, want %s", text, got, want)
		}
	}
	for _, text := range []string{"", "..", "now", "24h..48h", "tomorrow", "2026-11-31", "25:00", "-1h", "2026-11-20..", "1h..2h..3h"} {
		if p, err := parsePeriod(text, now); err == nil {
			t.Errorf("%q is taken for %v", text, p)
		}
	}
}

func FuzzParsePeriod(f *testing.F) {
	for _, text := range []string{"24h", "2026-11-01..2026-11-07", "14:30..now", "yesterday", "99999999d..1h"} {
		f.Add(text)
	}
	now := time.Date(2026, 11, 21, 15, 30, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, text string) {
		if p, err := parsePeriod(text, now); err == nil && !p.From.Before(p.To) {
			t.Fatalf("%q is %v", text, p)
		}
	})
}

// TestHistoryFitsTheScreen holds that no line of what people read has more than
// 80 columns, whatever is in the records.
func TestHistoryFitsTheScreen(t *testing.T) {
	maker := synthetic.NewMaker(3)
	now := time.Now()
	var records []monitor.Record
	for i := range 200 {
		r := maker.Record(now.Add(-time.Duration(i) * time.Hour))
		r.ID = int64(9_999_900 + i)
		if i%3 == 0 {
			r.Tunnel = strings.Repeat("long-name-", 6)
		}
		records = append(records, r)
	}
	var out bytes.Buffer
	writeHistory(&out, records, history.Query{Limit: 200, Order: history.Slowest}, history.Extent{Records: 1_000_000}, now)
	for i := range records {
		records[i].Hop = ""
		writeRecord(&out, &records[i])
	}
	var c history.Comparison
	for i := range 30 {
		c.Before.TransferTime.Bins = append(c.Before.TransferTime.Bins, history.Bin{From: float64(i), To: float64(i + 1), Count: int64(i)})
		c.Before.TransferTime.Count += int64(i)
	}
	c.Before.Flows, c.Before.Causes = 10, []history.CauseCount{{Cause: "receiver-window", Flows: 3}}
	c.Before.Goodput = history.Distribution{Count: 1, P50: 1e9, P90: 9.99e11, P10: 1}
	c.After = c.Before
	c.After.Goodput.P50 = 123e9
	c.After.Approximate = true
	chart := history.Chart{}
	for i := range 121 {
		chart.Points = append(chart.Points, history.Point{Transfers: int64(i % 3), TransferTimeMedian: float64(i) - 1})
	}
	writeComparison(&out, c, [2]history.Chart{chart, {}})
	for line := range strings.Lines(out.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	for _, want := range []string{"123 times", "from hourly summaries", "MEDIAN TIME"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not there:\n%s", want, out.String())
		}
	}
}

func TestChangeText(t *testing.T) {
	for _, tt := range []struct {
		before, after float64
		want          string
	}{{2, 4, "2 times"}, {10, 1, "1/10"}, {10, 11, "+10.0 %"}, {10, 9, "-10.0 %"}, {3, 3, "+0.0 %"}} {
		if got := changeText(tt.before, tt.after); got != tt.want {
			t.Errorf("%v to %v is %s, want %s", tt.before, tt.after, got, tt.want)
		}
	}
}

func TestUnknownIsNotZero(t *testing.T) {
	r := monitor.Record{ClientLeg: monitor.LegRecord{BytesSent: -1, BytesRetransmitted: -1, Retransmits: -1}, TargetLeg: monitor.LegRecord{BytesSent: -1, BytesRetransmitted: -1, Retransmits: -1}}
	var table, csv, all bytes.Buffer
	writeHistory(&table, []monitor.Record{r}, history.Query{}, history.Extent{}, time.Now())
	if !strings.HasSuffix(strings.TrimSpace(table.String()), "0     -    - -") {
		t.Errorf("unknown figures are not dashes:\n%s", table.String())
	}
	c := newHistoryCSV(&csv)
	c.write(&r)
	if err := c.flush(); err != nil || !strings.Contains(csv.String(), ",,,,,,,") {
		t.Errorf("unknown figures are not empty, %v:\n%s", err, csv.String())
	}
	writeRecord(&all, &r)
	if text := all.String(); strings.Contains(text, "leg") || strings.Contains(text, "goodput") || strings.Contains(text, fmt.Sprint(-1)) {
		t.Error(text)
	}
}

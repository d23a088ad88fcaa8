package units

import (
	"testing"
	"time"
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
		p, err := ParsePeriod(text, now)
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
		if p, err := ParsePeriod(text, now); err == nil {
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
		if p, err := ParsePeriod(text, now); err == nil && !p.From.Before(p.To) {
			t.Fatalf("%q is %v", text, p)
		}
	})
}

func TestPeriodString(t *testing.T) {
	from := time.Date(2026, 11, 21, 15, 30, 7, 0, time.Local)
	for length, want := range map[time.Duration]string{
		time.Hour:       "2026-11-21 15:30 to 2026-11-21 16:30",
		3 * time.Second: "2026-11-21 15:30:07 to 2026-11-21 15:30:10",
	} {
		if got := (Period{from, from.Add(length)}).String(); got != want {
			t.Errorf("%v is %q, want %q", length, got, want)
		}
	}
	if got := (Period{From: from}).String(); got != "2026-11-21 15:30 to now" {
		t.Errorf("an open period is %q", got)
	}
}

package history

import (
	"slices"
	"testing"
	"time"
)

func TestVerdict(t *testing.T) {
	noon := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	period := func(length time.Duration, flows, bytes int64, median float64) Summary {
		return Summary{Period: Period{Since: noon, Until: noon.Add(length)}, Flows: flows, Transfers: flows, BytesUp: bytes, TransferTime: Distribution{Count: flows, P50: median}}
	}
	for name, c := range map[string]struct {
		before, after Summary
		verdict       string
		warnings      []string
	}{
		"slower": {period(time.Hour, 100, 1e8, 2.2), period(time.Hour, 100, 1e8, 41.14),
			"Transfers are slower: they take 18.7 times as long; half of them take at most 41s, before 2.2s.", nil},
		"faster": {period(time.Hour, 100, 1e8, 71), period(2*time.Hour, 200, 2e8, 3.4),
			"Transfers are faster: they are 20.9 times as fast; half of them take at most 3.4s, before 71s.", nil},
		"much faster":  {period(time.Hour, 1, 1e6, 1520), period(time.Hour, 1, 1e6, 1), "Transfers are faster: they are 1520 times as fast; half of them take at most 1.0s, before 25m.", nil},
		"alike":        {period(time.Hour, 100, 1e8, 2), period(time.Hour, 100, 1e8, 2.05), "Transfers take as long as before: half of them take at most 2.0s, before 2.0s.", nil},
		"other loads":  {period(time.Hour, 100, 1e8, 2), period(time.Hour, 1000, 19e9, 2), "Transfers take as long as before: half of them take at most 2.0s, before 2.0s.", []string{"the loads differ: 19MB per transfer, before 1.0MB", "the loads differ: 1000 flows an hour, before 100"}},
		"nothing":      {period(time.Hour, 0, 0, 0), period(time.Hour, 0, 0, 0), "No transfer ended in either period.", nil},
		"first day":    {period(time.Hour, 0, 0, 0), period(time.Hour, 7, 1e6, 1), "No transfer ended in the period before. 7 ended after it: half of them took at most 1.0s.", nil},
		"an idle week": {period(time.Hour, 7, 1e6, 1), period(time.Hour, 0, 0, 0), "No transfer ended in the period after. 7 ended before it: half of them took at most 1.0s.", nil},
	} {
		both := Comparison{Before: c.before, After: c.after}
		if both.Judge(); both.Verdict != c.verdict || !slices.Equal(both.Warnings, c.warnings) {
			t.Errorf("%s: %q, %q\nwant %q, %q", name, both.Verdict, both.Warnings, c.verdict, c.warnings)
		}
	}
}

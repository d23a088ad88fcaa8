package congestion

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"longhaul/test/nettest"
)

func TestCompletion(t *testing.T) {
	p := LossyLFN()
	during := 10 * time.Second
	slow := flowOf(during, 300*ms, func(s float64) float64 { return 1e4 * s }, func(s float64) float64 { return 1e4 * s })
	s := p.completion(1e6, []flow{{finished: 2 * time.Second}, slow, {flowSpec: flowSpec{start: time.Second}, finished: 2 * time.Second}}, during)
	if s.Transfers != 3 || s.Unfinished != 1 || s.SecondsP50 != 2 || s.SecondsMin != 1 || s.SecondsMax.Some() || s.SecondsP90.Some() {
		t.Errorf("got %+v", s)
	}
	near(t, "the rate of what is not finished", float64(s.UnfinishedBps), 8e4, 100)
	near(t, "the ideal", s.SecondsIdeal, 0.45+8/96.533, 1e-3)
	if s := p.completion(1, []flow{{finished: 1}}, during); s.UnfinishedBps.Some() || s.Unfinished != 0 {
		t.Errorf("got %+v", s)
	}
}

// Transfers that have time to end are all finished, none sooner than it can be;
// of those that cannot be, what came is said.
func TestRunShort(t *testing.T) {
	t.Parallel()
	nettest.RequireSandbox(t)
	p := quick()
	run := func(during time.Duration, bytes int64) (ShortResult, ShortSize) {
		t.Helper()
		o := options(during, "reno")
		o.Repeat = 2
		result, err := RunShort(t.Context(), p, []int64{bytes}, o)
		if err != nil {
			t.Fatal(err)
		}
		return result, result.Cases[0].Sizes[0]
	}
	if _, s := run(patience, 100e3); s.Unfinished != 0 || float64(s.SecondsMin) < s.SecondsIdeal || s.SecondsP50 > s.SecondsP90 || s.SecondsP90 > s.SecondsMax {
		t.Errorf("100 kB: %+v", s)
	}
	// 100 MB take 41 s at this rate.
	result, s := run(time.Second, 100e6)
	if s.Unfinished != 2 || s.SecondsMin.Some() || float64(s.UnfinishedBps) > p.LimitBps() {
		t.Errorf("100 MB: %+v", s)
	}
	var b bytes.Buffer
	if err := result.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "2 of 2 at ") || !strings.Contains(b.String(), "> 1 s") {
		t.Error(b.String())
	}
	if err := result.Plot().WriteCSV(&b); err != nil {
		t.Error(err)
	}
	if _, err := json.Marshal(result); err != nil {
		t.Error(err)
	}
}

func TestShortTable(t *testing.T) {
	p := LossyLFN()
	o := Options{Time: time.Minute, Repeat: 20}
	r := ShortResult{path: p, o: o}
	for _, name := range []string{"cubic", "illinois"} {
		c := ShortCase{Name: name}
		for _, bytes := range ShortSizes() {
			c.Sizes = append(c.Sizes, ShortSize{Bytes: bytes, Transfers: 20, SecondsP50: 12.345, SecondsP90: None, SecondsMin: 9.876, SecondsMax: None,
				SecondsIdeal: 0.53, Unfinished: 12, UnfinishedBps: 123456})
		}
		r.Cases = append(r.Cases, c)
	}
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "short.table", b.String())
}

package congestion

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"longhaul/internal/words/stats"
)

const ms = time.Millisecond

// flowOf makes a flow whose sent, delivered and received bytes are functions
// of the time, sampled every 100 ms.
func flowOf(during, srtt time.Duration, sent, delivered func(t float64) float64) flow {
	f := flow{mss: 1448}
	for at := sampleEvery; at <= during; at += sampleEvery {
		f.samples = append(f.samples, sample{
			at: at, srtt: srtt, timeouts: -1,
			sent: int64(sent(at.Seconds())), delivered: int64(delivered(at.Seconds())), received: int64(delivered(at.Seconds())),
		})
	}
	return f
}

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if !(math.Abs(got-want) <= tolerance) {
		t.Errorf("%s is %v, want %v ± %v", what, got, want, tolerance)
	}
}

func TestCurve(t *testing.T) {
	c := curve{at: []time.Duration{1 * time.Second, 2 * time.Second, 4 * time.Second}, value: []float64{0, 100, 500}}
	for at, want := range map[time.Duration]float64{0: 0, 1 * time.Second: 0, 1500 * ms: 50, 3 * time.Second: 300, 9 * time.Second: 500} {
		near(t, "the value at "+at.String(), c.when(at), want, 1e-9)
	}
	near(t, "the rate", c.rateBps(1*time.Second, 4*time.Second), 500*8/3.0, 1e-9)
	near(t, "the rate over no time", c.rateBps(2*time.Second, 2*time.Second), 0, 0)
	near(t, "the value of nothing", curve{}.when(5), 0, 0)
	if got := c.series(1*time.Second, 4*time.Second, time.Second); len(got) != 3 || got[0] != 800 || got[2] != 1600 {
		t.Errorf("the series is %v", got)
	}
}

func TestReaches(t *testing.T) {
	// Nothing for a second, then 1 MB/s until 5 s, then 10 MB/s.
	c := curveOf(flowOf(20*time.Second, 0, func(float64) float64 { return 0 }, func(s float64) float64 {
		return 1e6*math.Max(0, math.Min(s, 5)-1) + 10e6*math.Max(0, s-5)
	}), delivered)
	for _, test := range []struct {
		rateBps float64
		from    time.Duration
		rtt     time.Duration
		want    float64 // seconds; negative for never
	}{
		{4e6, 0, 0, 0.5},
		{8e6, 0, 0, 1},
		{80e6, 0, 0, 5},
		{80e6, 0, 2 * time.Second, 5},
		// Half of a window of 4 s may be slow for a mean of half the rate.
		{44e6, 0, 2 * time.Second, 3},
		{44e6, 7 * time.Second, 0, 7},
		{81e6, 0, 0, -1},
	} {
		at, reached := c.reaches(test.rateBps, test.from, test.rtt)
		if reached != (test.want >= 0) {
			t.Errorf("%g bit/s from %v on: reached is %v", test.rateBps, test.from, reached)
		} else if reached {
			near(t, "the time", at.Seconds(), test.want, 0.1001)
		}
	}
}

func TestLongestRest(t *testing.T) {
	c := curve{at: []time.Duration{0, 1 * time.Second, 2 * time.Second, 5 * time.Second, 6 * time.Second, 8 * time.Second}, value: []float64{0, 1, 1, 1, 2, 2}}
	for _, test := range []struct{ from, to, want time.Duration }{
		{0, 8 * time.Second, 4 * time.Second},
		{1 * time.Second, 8 * time.Second, 4 * time.Second},
		{0, 1 * time.Second, 0},
		{6 * time.Second, 8 * time.Second, 2 * time.Second},
		{3 * time.Second, 8 * time.Second, 2 * time.Second},
	} {
		if got := c.longestRest(test.from, test.to); got != test.want {
			t.Errorf("from %v to %v the longest rest is %v, want %v", test.from, test.to, got, test.want)
		}
	}
}

// What is still on the way at the end does not count as sent.
func TestSentPerDelivered(t *testing.T) {
	const rtt = 300 * ms
	f := flowOf(10*time.Second, rtt,
		func(s float64) float64 { return 1e6 * s / 0.9 },
		func(s float64) float64 { return 1e6 * math.Max(0, s-rtt.Seconds()) })
	near(t, "sent ÷ delivered", float64(sentPerDelivered(f)), 1/0.9, 1e-3)
	if sentPerDelivered(flow{}).Some() {
		t.Error("a flow without samples has a ratio")
	}
}

func TestJain(t *testing.T) {
	for _, test := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{5, 5, 5, 5}, 1},
		{[]float64{1, 0, 0, 0}, 0.25},
		{[]float64{1, 1, 0, 0}, 0.5},
		{[]float64{3, 1}, 16.0 / 20},
		{[]float64{7}, 1},
	} {
		near(t, "Jain's index", Jain(test.values), test.want, 1e-12)
	}
	if !math.IsNaN(Jain([]float64{0, 0})) || !math.IsNaN(Jain(nil)) {
		t.Error("nothing has a fairness")
	}
}

func TestHarm(t *testing.T) {
	for _, test := range []struct{ solo, shared, want float64 }{{100, 50, 0.5}, {100, 0, 1}, {100, 100, 0}, {50, 60, -0.2}} {
		near(t, "harm", Harm(test.solo, test.shared), test.want, 1e-12)
	}
}

func TestMedianAndSpread(t *testing.T) {
	same := func(v float64) float64 { return v }
	never := float64(None)
	for _, test := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{3}, 3},
		{[]float64{9, 1, 2}, 2},
		{[]float64{4, 1}, 2.5},
		{[]float64{never, 1, 2}, 2},
		{[]float64{never, 1, never}, never},
		{[]float64{never, 1}, never},
		{[]float64{never, never}, never},
	} {
		if got := stats.Median(test.values, same); got != test.want {
			t.Errorf("the median of %v is %v, want %v", test.values, got, test.want)
		}
	}
	if lo, hi := stats.Spread([]float64{2, 5, 3}, same); lo != 2 || hi != 5 {
		t.Errorf("the range is %v to %v", lo, hi)
	}
	values := []float64{10, 20, 30, 40, 50, 60, 70, 80, 90, 100}
	for q, want := range map[float64]float64{0: 10, 0.5: 50, 0.9: 90, 0.91: 100, 1: 100} {
		if got := stats.Quantile(values, q, same); got != want {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
}

func TestValueJSON(t *testing.T) {
	out, err := json.Marshal(map[string]Value{"a": 1.5, "b": None, "c": Value(math.NaN())})
	if err != nil || string(out) != `{"a":1.5,"b":null,"c":null}` {
		t.Errorf("%s, %v", out, err)
	}
	var in struct{ A, B Value }
	if err := json.Unmarshal([]byte(`{"A":2,"B":null}`), &in); err != nil || in.A != 2 || in.B.Some() {
		t.Errorf("%+v, %v", in, err)
	}
}

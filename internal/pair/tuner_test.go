package pair

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// simulatedPath is a path of which the rate of each lane is known.
type simulatedPath struct {
	limit      float64 // bytes a second of each connection; 0: none
	link       float64 // bytes a second of all together
	others     float64 // bytes a second of others that do not give way
	neighbours int     // greedy flows beside, on the same link
	grows      func(seconds float64) float64
	idle       bool    // the client has too little to send
	fills      int     // lanes from which on a queue stands; 0: none
	queues     float64 // share of the measurements in which a queue stands in any case
	noise      float64 // standard deviation of a lane's rate over a second, as a share
}

// lane is the rate of each of so many lanes.
func (p simulatedPath) lane(lanes int, seconds float64) float64 {
	rate := (p.link - p.others) / float64(lanes+p.neighbours)
	if p.limit > 0 {
		rate = min(rate, p.limit)
	}
	if p.grows != nil {
		rate *= p.grows(seconds)
	}
	return rate
}

// tune lets a tuner find the number of lanes, in looks of 100 ms. It returns that number, when
// the flow had its lanes for good, and when the tuner ended.
func (p simulatedPath) tune(dice *rand.Rand) (lanes int, had, ended float64, why string) {
	const step = 0.1
	all := make([]laneBytes, maxLanes)
	luck := make([]float64, maxLanes)
	for i := range all {
		all[i].of = &lane{}
	}
	var tune tuner
	var total float64
	carried := make([]float64, maxLanes)
	began := time.Now()
	lanes = 1
	for seconds := 0.0; seconds < 60; seconds += step {
		each := func() []laneBytes {
			for i := range lanes {
				all[i].bytes = uint64(carried[i])
			}
			return all[:lanes]
		}
		queue := func(time.Time) time.Duration {
			if p.queues > 0 && dice.Float64() < p.queues || p.fills > 0 && lanes >= p.fills && !tune.paused() {
				return 5 * time.Millisecond
			}
			return 0
		}
		want, found := tune.look(sight{began.Add(time.Duration(seconds * 1e9)), 1, lanes, uint64(total),
			func() []laneBytes { return append([]laneBytes(nil), each()...) }, !p.idle, 60 * time.Millisecond, queue})
		if found != nil {
			return found.lanes, had, seconds, tune.why
		}
		if want != lanes {
			lanes, had = want, seconds
		}
		busy := lanes
		if tune.paused() {
			busy = 1
		}
		for i := range busy {
			// A lane's luck lasts for about a second.
			luck[i] += step*(0-luck[i]) + p.noise*math.Sqrt(2*step)*dice.NormFloat64()
			n := p.lane(busy, seconds) * step * math.Exp(luck[i])
			carried[i] += n
			total += n
		}
	}
	return lanes, had, math.Inf(1), tune.why
}

// TestTuner holds what number of lanes comes out for paths of which the rate is known, and
// when.
func TestTuner(t *testing.T) {
	const mb = 1e6
	for _, c := range []struct {
		name   string
		path   simulatedPath
		lanes  int
		had    float64 // seconds until the flow has its lanes
		within float64 // until that is known
	}{
		{"a limit for each connection", simulatedPath{limit: 6 * mb, link: 50 * mb}, 8, 8, 16},
		{"the same beside others with room", simulatedPath{limit: 6 * mb, link: 1000 * mb, neighbours: 20}, 16, 8, 16},
		{"a link of three connections", simulatedPath{limit: 6 * mb, link: 18 * mb}, 3, 6, 14},
		{"the link is full beside others with limits", simulatedPath{limit: 6 * mb, link: 50 * mb, others: 20 * mb, fills: 6}, 5, 8, 16},
		{"a queue stands", simulatedPath{limit: 6 * mb, link: 50 * mb, fills: 1}, 1, 0, math.Inf(1)},
		{"no limit, alone", simulatedPath{link: 50 * mb}, 1, 7, 7},
		{"beside one", simulatedPath{link: 50 * mb, neighbours: 1}, 1, 7, 7},
		{"beside four", simulatedPath{link: 50 * mb, neighbours: 4}, 1, 12, 16},
		{"beside 16", simulatedPath{link: 50 * mb, neighbours: 16}, 1, 12, 16},
		{"beside 64", simulatedPath{link: 50 * mb, neighbours: 64}, 1, 12, 16},
		{"a connection that grows", simulatedPath{link: 50 * mb, grows: func(t float64) float64 { return min(1, 0.1+t/10) }}, 1, 16, 20},
		{"a connection that grows slowly", simulatedPath{link: mb, grows: func(t float64) float64 { return math.Pow(1.15, t) }}, 1, 20, 20},
		{"a slow client", simulatedPath{limit: 6 * mb, link: 50 * mb, idle: true}, 1, 0, math.Inf(1)},
	} {
		lanes, had, ended, why := c.path.tune(rand.New(rand.NewPCG(1, 1)))
		if lanes != c.lanes || had > c.had || ended > c.within {
			t.Errorf("%s: %d lanes, had after %.1f s, known after %.1f s (%s), want %d within %.1f s and %.1f s",
				c.name, lanes, had, ended, why, c.lanes, c.had, c.within)
		}
	}
}

// TestTunerNoise holds how often the number is right where the lanes' rates vary, as those of
// loss-based congestion controls do.
func TestTunerNoise(t *testing.T) {
	const mb, runs = 1e6, 200
	for _, c := range []struct {
		name        string
		path        simulatedPath
		least, most float64 // share of runs with more than one lane
	}{
		{"a limit for each connection", simulatedPath{limit: 6 * mb, link: 50 * mb, noise: 0.08}, 0.9, 1},
		{"beside one", simulatedPath{link: 50 * mb, neighbours: 1, noise: 0.25}, 0, 0.03},
		{"beside four", simulatedPath{link: 50 * mb, neighbours: 4, noise: 0.25}, 0, 0.05},
		{"beside 16", simulatedPath{link: 50 * mb, neighbours: 16, noise: 0.25}, 0, 0.1},
		{"beside 16, whose queue is short", simulatedPath{link: 50 * mb, neighbours: 16, noise: 0.25, queues: 0.4}, 0, 0.05},
		{"beside 64", simulatedPath{link: 50 * mb, neighbours: 64, noise: 0.25}, 0, 0.25},
	} {
		dice := rand.New(rand.NewPCG(1, 1))
		several, seconds := 0.0, 0.0
		for range runs {
			lanes, _, ended, _ := c.path.tune(dice)
			if lanes > 1 {
				several += 1.0 / runs
			}
			seconds += ended / runs
		}
		t.Logf("%s: several lanes in %.0f %%, known after %.1f s", c.name, 100*several, seconds)
		if several < c.least || several > c.most {
			t.Errorf("%s: several lanes in %.0f %% of runs, want %.0f to %.0f %%", c.name, 100*several, 100*c.least, 100*c.most)
		}
	}
}

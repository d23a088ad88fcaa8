package pair

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// simulatedPath is a path of which the rate of each lane is known.
type simulatedPath struct {
	limit      float64 // bytes a second of each connection; 0: none
	link       float64 // bytes a second of all together, or of each link
	links      int     // of which a hash gives each lane one; 0: 1
	others     float64 // bytes a second of others that do not give way
	neighbours int     // greedy flows beside, on the same link
	grows      func(seconds float64) float64
	idle       bool    // the client has too little to send
	fills      int     // lanes from which on a queue stands; 0: none
	queues     float64 // share of the measurements in which a queue stands in any case
	own        bool    // and it drains when the flow is silent
	noise      float64 // standard deviation of a lane's rate over a second, as a share
	stalls     float64 // seconds from one lane's stall of half a second to the next; 0: none
}

// simulatedLane is a lane with its link.
type simulatedLane struct {
	laneBytes
	link    int
	luck    float64
	stalled float64 // until when
}

// rate is that of one of the lanes that send.
func (p simulatedPath) rate(of *simulatedLane, busy []*simulatedLane, seconds float64) float64 {
	sharing := p.neighbours
	for _, other := range busy {
		if other.link == of.link {
			sharing++
		}
	}
	rate := (p.link - p.others) / float64(sharing)
	if p.limit > 0 {
		rate = min(rate, p.limit)
	}
	if p.grows != nil {
		rate *= p.grows(seconds)
	}
	if seconds < of.stalled {
		rate = 0
	}
	return rate
}

// tuned is what a tuner has come to.
type tuned struct {
	lanes int
	links int     // that the lanes use
	had   float64 // seconds until the flow had its lanes
	ended float64 // seconds until that was known
	why   string
}

// tune lets a tuner find the number of lanes, in looks of 100 ms.
func (p simulatedPath) tune(dice *rand.Rand) (result tuned) {
	const step = 0.1
	var tune tuner
	var lanes []*simulatedLane
	began, silent := time.Now(), 0.0
	// have gives the flow a number of lanes: the slowest go first, as slowestLast has it.
	have := func(n int) {
		if n < len(lanes) {
			slices.SortStableFunc(lanes[1:], func(a, b *simulatedLane) int {
				return cmp.Compare(tune.latest.of(b.of), tune.latest.of(a.of))
			})
			lanes = lanes[:n]
		}
		for len(lanes) < n {
			lanes = append(lanes, &simulatedLane{laneBytes: laneBytes{of: &lane{}}, link: dice.IntN(max(p.links, 1))})
		}
		used := map[int]bool{}
		for _, l := range lanes {
			used[l.link] = true
		}
		result.lanes, result.links = n, len(used)
	}
	have(1)
	for seconds := 0.0; seconds < 60; seconds += step {
		s := sight{
			now: began.Add(time.Duration(seconds * 1e9)), least: 1, lanes: len(lanes), limited: !p.idle, rtt: 60 * time.Millisecond,
			each: func() (each []laneBytes) {
				for _, l := range lanes {
					each = append(each, l.laneBytes)
				}
				return each
			},
			queue: func(time.Time) time.Duration {
				if p.queues > 0 && dice.Float64() < p.queues || p.fills > 0 && len(lanes) >= p.fills && !tune.paused() {
					return 5 * time.Millisecond
				}
				return 0
			},
			hush: func(time.Duration, float64) (time.Time, bool) {
				silent = seconds + step
				return began.Add(time.Duration(silent * 1e9)), true
			},
			drained: func(time.Time, time.Time) bool { return p.own },
		}
		want, found := tune.look(s)
		if want != len(lanes) {
			result.had = seconds
			have(want)
		}
		if result.why = tune.why; found != nil {
			result.ended = seconds
			return result
		}
		busy := lanes
		switch {
		case seconds < silent:
			busy = nil
		case tune.paused():
			busy = lanes[:1]
		}
		for _, l := range busy {
			if p.stalls > 0 && dice.Float64() < step/p.stalls {
				l.stalled = seconds + 0.5
			}
			// A lane's luck lasts for about a second.
			l.luck += step*(0-l.luck) + p.noise*math.Sqrt(2*step)*dice.NormFloat64()
			l.bytes += uint64(p.rate(l, busy, seconds) * step * math.Exp(l.luck))
		}
	}
	result.ended = math.Inf(1)
	return result
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
		{"the same beside others with room", simulatedPath{limit: 6 * mb, link: 1000 * mb, neighbours: 20}, 16, 12, 20},
		{"a link of three connections", simulatedPath{limit: 6 * mb, link: 18 * mb}, 3, 15, 16},
		{"the link is full beside others with limits", simulatedPath{limit: 6 * mb, link: 50 * mb, others: 20 * mb, fills: 6}, 5, 12, 16},
		{"a queue stands", simulatedPath{limit: 6 * mb, link: 50 * mb, queues: 1}, 1, 0, math.Inf(1)},
		{"a queue of its own stands", simulatedPath{limit: 6 * mb, link: 50 * mb, queues: 1, own: true}, 8, 8, 18},
		{"no limit, with a queue of its own", simulatedPath{link: 50 * mb, queues: 1, own: true}, 1, 9, 9},
		{"no limit, alone", simulatedPath{link: 50 * mb}, 1, 7, 7},
		{"beside one", simulatedPath{link: 50 * mb, neighbours: 1}, 1, 7, 7},
		{"beside four", simulatedPath{link: 50 * mb, neighbours: 4}, 1, 12, 16},
		{"beside 16", simulatedPath{link: 50 * mb, neighbours: 16}, 1, 12, 16},
		{"beside 64", simulatedPath{link: 50 * mb, neighbours: 64}, 1, 15, 16},
		{"a connection that grows", simulatedPath{link: 50 * mb, grows: func(t float64) float64 { return min(1, 0.1+t/10) }}, 1, 16, 20},
		{"a connection that grows slowly", simulatedPath{link: mb, grows: func(t float64) float64 { return math.Pow(1.15, t) }}, 1, 20, 20},
		{"a slow client", simulatedPath{limit: 6 * mb, link: 50 * mb, idle: true}, 1, 0, math.Inf(1)},
	} {
		got := c.path.tune(rand.New(rand.NewPCG(1, 1)))
		if got.lanes != c.lanes || got.had > c.had || got.ended > c.within {
			t.Errorf("%s: got %+v, want %d lanes within %.1f s, known within %.1f s", c.name, got, c.lanes, c.had, c.within)
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
			got := c.path.tune(dice)
			if got.lanes > 1 {
				several += 1.0 / runs
			}
			seconds += got.ended / runs
		}
		t.Logf("%s: several lanes in %.0f %%, known after %.1f s", c.name, 100*several, seconds)
		if several < c.least || several > c.most {
			t.Errorf("%s: several lanes in %.0f %% of runs, want %.0f to %.0f %%", c.name, 100*several, 100*c.least, 100*c.most)
		}
	}
}

// TestTunerLinks holds how much of its path a flow gets at the end, over several links and where
// single lanes stall.
func TestTunerLinks(t *testing.T) {
	const mb, runs = 1e6, 200
	for _, c := range []struct {
		name  string
		path  simulatedPath
		best  int     // links, or lanes of one link, that carry everything
		least float64 // share of them in the mean of the runs
		most  float64 // lanes in the mean
	}{
		{"four links", simulatedPath{link: 12.5 * mb, links: 4, noise: 0.05}, 4, 0.75, 4.2},
		{"two links", simulatedPath{link: 12.5 * mb, links: 2, noise: 0.05}, 2, 0.85, 2.2},
		{"four links, and a queue of its own", simulatedPath{link: 12.5 * mb, links: 4, noise: 0.05, queues: 0.5, own: true}, 4, 0.72, 4.2},
		{"a limit for each, and lanes that stall", simulatedPath{limit: 6 * mb, link: 50 * mb, noise: 0.08, stalls: 20}, 8, 0.9, 9},
	} {
		dice := rand.New(rand.NewPCG(1, 1))
		share, lanes, seconds := 0.0, 0.0, 0.0
		for range runs {
			got := c.path.tune(dice)
			used := got.lanes
			if c.path.links > 1 {
				used = got.links
			}
			share += min(1, float64(used)/float64(c.best)) / runs
			lanes, seconds = lanes+float64(got.lanes)/runs, seconds+got.ended/runs
		}
		text := fmt.Sprintf("%s: %.2f of the path over %.1f lanes, known after %.1f s", c.name, share, lanes, seconds)
		if share < c.least || lanes > c.most {
			t.Errorf("%s, want %.2f over %.1f lanes", text, c.least, c.most)
		}
		t.Log(text)
	}
}

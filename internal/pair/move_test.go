package pair

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// hashedPath is some links, and the link of each lane.
type hashedPath struct {
	links int
	rate  float64 // bytes a second of a link
	limit float64 // of a lane; 0: none
	noise float64 // by how much a lane may be faster or slower than its share
	on    map[*lane]int
}

// carry adds what each lane carries in a time.
func (p *hashedPath) carry(each []laneBytes, seconds float64, dice *rand.Rand) (total float64) {
	shares, sums := make([]float64, len(each)), make([]float64, p.links)
	for i, l := range each {
		shares[i] = 1 + p.noise*(2*dice.Float64()-1)
		sums[p.on[l.of]] += shares[i]
	}
	for i := range each {
		rate := p.rate * shares[i] / sums[p.on[each[i].of]]
		if p.limit > 0 {
			rate = min(rate, p.limit*shares[i])
		}
		total += rate
		each[i].bytes += uint64(rate * seconds)
	}
	return total
}

// move lets a mover look every 100 ms, and replaces what lags 500 ms later. It returns the rate
// at the end as a share of all links, and the number of moves.
func (p *hashedPath) move(lanes int, lasts float64, dice *rand.Rand) (share float64, moves int) {
	p.on = map[*lane]int{}
	add := func() laneBytes {
		l := &lane{}
		p.on[l] = dice.IntN(p.links)
		return laneBytes{of: l}
	}
	var each []laneBytes
	for range lanes {
		each = append(each, add())
	}
	var m mover
	var lag []*lane
	due, began := 0.0, time.Now()
	for seconds := 0.0; seconds < lasts; seconds += 0.1 {
		share = p.carry(each, 0.1, dice) / (p.rate * float64(p.links))
		if len(lag) > 0 && seconds >= due {
			each = slices.DeleteFunc(each, func(l laneBytes) bool { return slices.Contains(lag, l.of) })
			for range lag {
				each = append(each, add())
			}
			moves, lag = moves+len(lag), nil
		}
		if len(lag) == 0 {
			lag = m.look(sight{now: began.Add(time.Duration(seconds * 1e9)), lanes: len(each), limited: true, rtt: 60 * time.Millisecond,
				each: func() []laneBytes { return slices.Clone(each) }})
			due = seconds + 0.5
		}
	}
	return share, moves
}

func TestMover(t *testing.T) {
	for _, tt := range []struct {
		name  string
		path  hashedPath
		least float64 // share of the links in the mean of the runs
		most  float64 // moves in the mean
	}{
		{"four links", hashedPath{links: 4, rate: 12.5e6, noise: 0.1}, 0.97, 10},
		{"four links, uneven", hashedPath{links: 4, rate: 12.5e6, noise: 0.4}, 0.97, 20},
		{"two links", hashedPath{links: 2, rate: 12.5e6, noise: 0.1}, 0.99, 10},
		{"one link", hashedPath{links: 1, rate: 12.5e6, noise: 0.1}, 1, 0},
		{"a limit for each", hashedPath{links: 1, rate: 50e6, limit: 5e6, noise: 0.1}, 0.7, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dice := rand.New(rand.NewPCG(1, 2))
			const runs = 200
			share, moves := 0.0, 0
			for range runs {
				s, m := tt.path.move(8, 15, dice)
				share, moves = share+s/runs, moves+m
			}
			text := fmt.Sprintf("%.3f of the links after 15 s, %.1f moves", share, float64(moves)/runs)
			if share < tt.least || float64(moves)/runs > tt.most {
				t.Error(text)
			}
			t.Log(text)
		})
	}
}

// A mover rests after moves that bring nothing, and its main lane never moves.
func TestMoverRests(t *testing.T) {
	lanes := []*lane{{}, {}, {}}
	rates := laneRates{{lanes[0], 1}, {lanes[1], 2}, {lanes[2], 9}}
	var m mover
	moves := 0
	for range 5 * moveTries {
		if lag := m.judge(slices.Clone(rates)); len(lag) > 0 {
			moves++
			if !slices.Equal(lag, lanes[1:2]) {
				t.Errorf("move %d: %d lanes", moves, len(lag))
			}
		}
	}
	if moves != moveTries {
		t.Errorf("%d moves in vain, want %d", moves, moveTries)
	}
}

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
	swing float64 // the same, for two seconds at a time
	known bool    // at first every link has lanes
	on    map[*lane]int

	swings map[*lane]float64
}

// carry adds what each lane carries in a time.
func (p *hashedPath) carry(each []laneBytes, seconds float64, dice *rand.Rand) (total float64) {
	shares, sums := make([]float64, len(each)), make([]float64, p.links)
	for i, l := range each {
		shares[i] = p.swings[l.of] * (1 + p.noise*(2*dice.Float64()-1))
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
	p.on, p.swings = map[*lane]int{}, map[*lane]float64{}
	add := func() laneBytes {
		l := &lane{}
		p.on[l], p.swings[l] = dice.IntN(p.links), 1
		return laneBytes{of: l}
	}
	var each []laneBytes
	for i := range lanes {
		each = append(each, add())
		if p.known && i < p.links {
			p.on[each[i].of] = i
		}
	}
	var m mover
	var lag []*lane
	due, began := 0.0, time.Now()
	for step := 0; float64(step)/10 < lasts; step++ {
		seconds := float64(step) / 10
		if step%20 == 0 {
			for _, l := range each {
				p.swings[l.of] = 1 + p.swing*(2*dice.Float64()-1)
			}
		}
		share = p.carry(each, 0.1, dice) / (p.rate * float64(p.links))
		if len(lag) > 0 && seconds >= due {
			each = slices.DeleteFunc(each, func(l laneBytes) bool { return slices.Contains(lag, l.of) })
			for range lag {
				each = append(each, add())
			}
			moves, lag = moves+len(lag), nil
		}
		if len(lag) == 0 {
			lag = m.look(sight{now: began.Add(time.Duration(seconds * 1e9)), limited: true, rtt: 60 * time.Millisecond,
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
		{"four links, swinging", hashedPath{links: 4, rate: 12.5e6, noise: 0.1, swing: 0.9}, 0.97, 20},
		{"four known links", hashedPath{links: 4, rate: 12.5e6, noise: 0.1, known: true}, 0.99, 10},
		{"four known links, swinging", hashedPath{links: 4, rate: 12.5e6, noise: 0.1, swing: 0.9, known: true}, 0.99, 20},
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
	rates := []laneRate{{lanes[0], 1}, {lanes[1], 2}, {lanes[2], 9}}
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

// Moves that lose a link do not count as moves in vain, up to a bound.
func TestMoverFindsALostLink(t *testing.T) {
	lanes := []*lane{{}, {}, {}}
	rates := func(total float64) []laneRate {
		return []laneRate{{lanes[0], total / 12}, {lanes[1], total / 6}, {lanes[2], total * 3 / 4}}
	}
	var m mover
	m.judge(rates(100))
	moves := 0
	for range 5 * (moveTries + moveLosses) {
		moves += btoi(len(m.judge(rates(75))) > 0)
	}
	if moves != moveTries+moveLosses {
		t.Errorf("%d moves while a link is lost, want %d", moves, moveTries+moveLosses)
	}
	if len(m.judge(rates(110))) == 0 || m.tries != 0 || m.lost != 0 {
		t.Errorf("no more moves after a gain: %+v", m)
	}
}

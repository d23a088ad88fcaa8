package relay

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
)

// Balance says how flows are spread over hops of the same priority.
type Balance string

// The ways of spreading flows.
const (
	BalanceOrdered    Balance = "ordered"     // the first that can be used
	BalanceLeastFlows Balance = "least-flows" // the one with the least flows for its weight
	BalanceRoundRobin Balance = "round-robin" // in turn, by weight
	BalanceSource     Balance = "source"      // by the client's address: a client stays on its hop
)

// fewHops is how many hops an opening has room for without asking for memory.
const fewHops = 8

// candidate is a hop with what decides its place.
type candidate struct {
	index    uint16
	last     bool // only where nothing else is left
	priority int
	score    float64 // the least first
}

// order returns the indices of the hops that a flow tries, best first. Those
// that are down or ejected come last: a flow that would be reset otherwise has
// nothing to lose. Drained ones are left out.
func (rt *route) order(into []uint16, source netip.Addr, now int64) []uint16 {
	if len(rt.hops) == 1 {
		if rt.hops[0].drained.Load() {
			return into
		}
		return append(into, 0)
	}
	var few [fewHops]candidate
	all := few[:0]
	for i, h := range rt.hops {
		if !h.drained.Load() {
			all = append(all, candidate{
				index:    uint16(i),
				last:     !h.usable(now),
				priority: rt.tunnel.Forward[i].Priority,
				score:    float64(i),
			})
		}
	}
	rt.score(all, source, now)
	slices.SortFunc(all, func(a, b candidate) int {
		if a.last != b.last {
			if a.last {
				return 1
			}
			return -1
		}
		return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(a.score, b.score))
	})
	for _, c := range all {
		into = append(into, c.index)
	}
	return into
}

// score gives the candidates their scores by the tunnel's way of balancing.
func (rt *route) score(all []candidate, source netip.Addr, now int64) {
	weight := func(c *candidate) float64 {
		return float64(rt.tunnel.Forward[c.index].Weight) * rt.hops[c.index].share(now, rt.tunnel.Health.SlowReturn)
	}
	switch rt.tunnel.Balance {
	case BalanceLeastFlows:
		for i := range all {
			c := &all[i]
			// Of equals, any: the first would get every flow of a quiet time.
			c.score = float64(rt.hops[c.index].flows.Load()+1) / weight(c) * (1 + rand.Float64()*1e-6)
		}
	case BalanceSource:
		for i := range all {
			c := &all[i]
			// Each hop draws a number for this source, exponentially
			// distributed at the rate of its weight: the least wins in
			// proportion to the weights, and another hop's coming and going
			// changes nothing between the rest.
			c.score = -math.Log(draw(source, rt.hops[c.index].name)) / weight(c)
		}
	case BalanceRoundRobin:
		rt.takeTurns(all, weight)
	}
}

// takeTurns lets every hop of the best priority that can be used save up its
// weight; who has saved most is next, and pays what all have got together. So
// turns are spread evenly: weights 3 and 1 give a a b a and not a a a b.
func (rt *route) takeTurns(all []candidate, weight func(*candidate) float64) {
	best := math.MaxInt
	for i := range all {
		if !all[i].last {
			best = min(best, all[i].priority)
		}
	}
	rt.state.mu.Lock()
	defer rt.state.mu.Unlock()
	var next *candidate
	sum := 0.0
	for i := range all {
		c := &all[i]
		h := rt.hops[c.index]
		if !c.last && c.priority == best {
			w := weight(c)
			h.current += w
			sum += w
			if next == nil || h.current > rt.hops[next.index].current {
				next = c
			}
		}
	}
	for i := range all {
		all[i].score = -rt.hops[all[i].index].current
	}
	if next != nil {
		next.score = math.Inf(-1)
		rt.hops[next.index].current -= sum
	}
}

// draw is a number above 0 and up to 1 that depends on a source and a hop
// alone, so that relays with the same hops agree.
func draw(source netip.Addr, hop string) float64 {
	var few [16 + 64]byte
	address := source.Unmap().As16()
	sum := sha256.Sum256(append(append(few[:0], address[:]...), hop...))
	return (float64(binary.BigEndian.Uint64(sum[:])>>11) + 1) / (1 << 53)
}

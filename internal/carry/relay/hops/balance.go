package hops

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"
)

// Balance is the way in which flows are spread over hops of equal priority.
type Balance string

// The ways to spread flows.
const (
	Ordered    Balance = "ordered"     // the first usable hop
	LeastFlows Balance = "least-flows" // the fewest flows relative to its weight
	RoundRobin Balance = "round-robin" // in turn, by weight
	Source     Balance = "source"      // by the client's address: a client stays on its hop
)

// Few is the number of hops up to which Order allocates nothing.
const Few = 8

// candidate is a hop with the values that rank it.
type candidate struct {
	index    uint16
	last     bool // ranked behind all usable hops
	priority int
	score    float64 // lowest first
}

// Order appends the indices of the hops that a flow tries, best first. Hops
// that are down or ejected come last: trying them is better than a certain
// reset. Drained hops are left out, and far relays that take no flow now, for
// which flows wait.
func (s *Set) Order(into []uint16, source netip.Addr, now time.Duration) []uint16 {
	if len(s.hops) == 1 {
		if s.hops[0].drained.Load() {
			return into
		}
		return append(into, 0)
	}
	var inline [Few]candidate
	var few [Few]bool
	all, serving := inline[:0], s.serving(few[:0], now)
	for i := range s.hops {
		if serving[i] {
			all = append(all, candidate{
				index:    uint16(i),
				last:     !s.Usable(uint16(i), now),
				priority: s.forward[i].Priority,
				score:    float64(i),
			})
		}
	}
	s.score(all, source, now)
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

// score fills in the candidates' scores by the tunnel's Balance.
func (s *Set) score(all []candidate, source netip.Addr, now time.Duration) {
	weight := func(c *candidate) float64 {
		return float64(s.forward[c.index].Weight) * s.hops[c.index].share(now, s.health.SlowReturn)
	}
	switch s.balance {
	case LeastFlows:
		for i := range all {
			c := &all[i]
			// Ties break at random. Otherwise the first hop would get every
			// flow of a quiet period.
			c.score = float64(s.hops[c.index].flows.Load()+1) / weight(c) * (1 + rand.Float64()*1e-6)
		}
	case Source:
		for i := range all {
			c := &all[i]
			// Each hop draws a number for this source, exponentially
			// distributed with its weight as the rate. So the lowest number
			// falls on hops in proportion to their weights. Adding or removing
			// a hop moves no source between the others.
			c.score = -math.Log(draw(source, s.hops[c.index].name)) / weight(c)
		}
	case RoundRobin:
		s.takeTurns(all, weight)
	}
}

// takeTurns is smooth weighted round robin over the usable hops of the best
// priority. Each hop gains its weight; the hop with the most is next and pays
// the sum of all weights. Turns spread evenly: weights 3 and 1 give a a b a,
// not a a a b.
func (s *Set) takeTurns(all []candidate, weight func(*candidate) float64) {
	best := math.MaxInt
	for i := range all {
		if !all[i].last {
			best = min(best, all[i].priority)
		}
	}
	s.turns.Lock()
	defer s.turns.Unlock()
	var next *candidate
	sum := 0.0
	for i := range all {
		c := &all[i]
		h := s.hops[c.index]
		if !c.last && c.priority == best {
			w := weight(c)
			h.current += w
			sum += w
			if next == nil || h.current > s.hops[next.index].current {
				next = c
			}
		}
	}
	for i := range all {
		all[i].score = -s.hops[all[i].index].current
	}
	if next != nil {
		next.score = math.Inf(-1)
		s.hops[next.index].current -= sum
	}
}

// Turn is the number by which a flow of a source chooses among the addresses of a hop's
// name. Each flow has the next one; under Source, each source has its own.
func (s *Set) Turn(h *Hop, source netip.Addr) uint {
	if s.balance == Source {
		return uint(draw(source, h.name) * (1 << 31))
	}
	return uint(h.turn.Add(1) - 1)
}

// draw returns a number in (0, 1] that depends only on a source and a hop. So
// relays with the same hops agree.
func draw(source netip.Addr, hop string) float64 {
	var inline [16 + 64]byte
	address := source.Unmap().As16()
	sum := sha256.Sum256(append(append(inline[:0], address[:]...), hop...))
	return (float64(binary.BigEndian.Uint64(sum[:])>>11) + 1) / (1 << 53)
}

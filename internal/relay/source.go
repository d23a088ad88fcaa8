package relay

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"longhaul/internal/connsource"
)

// shareOfFree is how many times what is free one source may have: of flows, of
// a tunnel's rate of new flows, of memory. One source alone gets 8/9 of all,
// two get 8/17 each, ten 8/81: as many as there are, something is free for the
// next, and none is held to a number that it could exceed at nobody's cost
// (Choudhury and Hahne, Dynamic Queue Length Thresholds for Shared-Memory
// Packet Switches, 1998).
const shareOfFree = 8

// holdings are what the sockets and pipes of some flows hold, as found at the
// last look.
type holdings struct {
	bytes  atomic.Int64
	queues atomic.Int64 // of sockets
}

func (h *holdings) add(bytes, queues int64) {
	h.bytes.Add(bytes)
	h.queues.Add(queues)
}

// room is by how many bytes each of the queues may grow while so many are free.
func (h *holdings) room(free int64) int64 {
	return max(0, shareOfFree*free-h.bytes.Load()) / max(1, h.queues.Load())
}

// source is who connects to a tunnel, see [connsource].
type source struct {
	flows atomic.Int64
	held  holdings // while memory is short

	// What follows is locked by sources.
	recent float64 // new flows of the last second, those of long ago counting less
	last   int64   // when recent was that
}

type sourceKey struct {
	tunnel *tunnelState
	from   netip.Addr
}

// sources are those that have flows, or had some not long ago.
type sources struct {
	mu      sync.Mutex
	all     map[sourceKey]*source
	sweepAt int // how many there have to be before those without flows are forgotten
}

const (
	sourcesLeast  = 1024       // that are kept before a sweep
	sourceForgets = int64(1e9) // ns after which recent is 0
)

// of returns the source of an address, and counts a new flow of it.
func (s *sources) of(tunnel *tunnelState, a netip.Addr, now int64) *source {
	key := sourceKey{tunnel, connsource.OfAddr(a)}
	s.mu.Lock()
	defer s.mu.Unlock()
	src := s.all[key]
	if src == nil {
		if len(s.all) >= s.sweepAt {
			s.sweep(now)
		}
		src = &source{last: now}
		s.all[key] = src
	}
	src.flows.Add(1)
	return src
}

// mayCome says whether a source's rate, and the tunnel's, allow one more flow.
func (s *sources) mayCome(t *Tunnel, st *tunnelState, src *source, now int64) bool {
	most := t.NewFlowsPerSecondPerSource
	if t.NewFlowsPerSecond <= 0 && most <= 0 {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	recent := src.recent * max(0, 1-float64(max(0, now-src.last))/float64(sourceForgets))
	share := recent
	switch {
	case most > 0 && recent >= most:
		return false
	case most != 0:
		share = 0
	}
	if !st.bucket.take(t.NewFlowsPerSecond, share, now) {
		return false
	}
	src.recent, src.last = recent+1, max(src.last, now)
	return true
}

func (s *sources) sweep(now int64) {
	if s.all == nil {
		s.all = map[sourceKey]*source{}
	}
	for key, src := range s.all {
		if src.flows.Load() == 0 && now-src.last > sourceForgets {
			delete(s.all, key)
		}
	}
	s.sweepAt = max(sourcesLeast, 2*len(s.all))
}

// overShareOf says why a new flow of a source is refused although its tunnel has
// room for it: the source has as many of the tunnel's flows as it may. The flow
// has been counted already, here and below.
func (t *Tunnel) overShareOf(st *tunnelState, src *source) error {
	n := src.flows.Load()
	switch most := int64(t.MaxFlowsPerSource); {
	case most > 0 && n > most:
		return fmt.Errorf("the source has %d flows, as many as max_flows_per_source allows", most)
	case most == 0 && overShare(n, st.flows.Load(), int64(t.MaxFlows)):
		return fmt.Errorf("the source has %d of the tunnel's %d flows (max_flows); what is left is for others", n-1, t.MaxFlows)
	}
	return nil
}

// overShare says whether somebody who would have n of the flows, when there are
// all, would have more than a share of what they may be at most. The first is
// always granted, and what is too little to be shared is not.
func overShare(n, all, most int64) bool {
	return most > shareOfFree && n > 1 && n > shareOfFree*(most-all)
}

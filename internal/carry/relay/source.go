package relay

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// shareOfFree times the free amount is the share of one source: of flows, of a
// tunnel's rate of new flows, of memory. One source alone gets 8/9 of
// everything, two get 8/17 each, ten 8/81 each. So something is always free for
// the next source, and no source has a fixed limit while capacity is idle. See
// Choudhury and Hahne, Dynamic Queue Length Thresholds for Shared-Memory Packet
// Switches, 1998.
const shareOfFree = 8

// holdings is the memory that a set of flows held at the latest measurement.
type holdings struct {
	bytes  atomic.Int64
	queues atomic.Int64 // of sockets
}

func (h *holdings) add(bytes, queues int64) {
	h.bytes.Add(bytes)
	h.queues.Add(queues)
}

// room is the number of bytes by which each queue may grow while free bytes are
// left.
func (h *holdings) room(free int64) int64 {
	return max(0, shareOfFree*free-h.bytes.Load()) / max(1, h.queues.Load())
}

// source is a client address or network that connects to a tunnel, see
// [connsource].
type source struct {
	flows atomic.Int64
	held  holdings // while memory is short

	// Guarded by sources.mu.
	recent float64       // new flows of the last second, decaying linearly
	last   time.Duration // time of recent
}

// sourceKey names a source: by its address, or a peer that shares its tunnel with others.
type sourceKey struct {
	tunnel *tunnelState
	from   netip.Addr
	peer   string
}

// sources holds the sources that have flows or had some recently.
type sources struct {
	mu      sync.Mutex
	all     map[sourceKey]*source
	sweepAt int // size at which sources without flows are removed
}

const (
	minSources    = 1024        // sources kept before the first sweep
	sourceForgets = time.Second // until recent decays to 0
)

// of returns a source, and counts a new flow for it.
func (s *sources) of(key sourceKey, now time.Duration) *source {
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

// rateAllows reports whether the rates of a source and its tunnel allow a new
// flow, and counts it.
func (s *sources) rateAllows(t *Tunnel, st *tunnelState, e entry, now time.Duration) bool {
	limit := t.NewFlowsPerSecondPerSource
	if t.NewFlowsPerSecond <= 0 && limit <= 0 {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if limit > 0 && e.limit.recentAt(now) >= limit {
		return false
	}
	share := e.share.recentAt(now)
	if limit != 0 && e.share == e.limit {
		share = 0
	}
	if !st.bucket.take(t.NewFlowsPerSecond, share, now) {
		return false
	}
	e.share.countAt(now)
	if e.limit != e.share {
		e.limit.countAt(now)
	}
	return true
}

// recentAt is the number of new flows of the last second.
func (s *source) recentAt(now time.Duration) float64 {
	return s.recent * max(0, 1-float64(max(0, now-s.last))/float64(sourceForgets))
}

// countAt counts a new flow.
func (s *source) countAt(now time.Duration) {
	s.recent, s.last = s.recentAt(now)+1, max(s.last, now)
}

func (s *sources) sweep(now time.Duration) {
	if s.all == nil {
		s.all = map[sourceKey]*source{}
	}
	for key, src := range s.all {
		if src.flows.Load() == 0 && now-src.last > sourceForgets {
			delete(s.all, key)
		}
	}
	s.sweepAt = max(minSources, 2*len(s.all))
}

// overShareOf returns why a new flow of a source is refused although its tunnel
// has room. The source has its share of the tunnel's flows. The new flow is
// already counted, here and in overShare.
func (t *Tunnel) overShareOf(st *tunnelState, e entry) error {
	if limit := int64(t.MaxFlowsPerSource); limit > 0 && e.limit.flows.Load() > limit {
		return fmt.Errorf("the source has %d flows, as many as max_flows_per_source allows", limit)
	}
	n := e.share.flows.Load()
	if t.shares(e) && overShare(n, st.flows.Load(), int64(t.MaxFlows)) {
		return fmt.Errorf("%s has %d of the tunnel's %d flows (max_flows); what is left is for others", e, n-1, t.MaxFlows)
	}
	return nil
}

// shares reports whether a source has a share alone. A configured limit takes its place, but for
// peers: that bounds their clients.
func (t *Tunnel) shares(e entry) bool { return t.MaxFlowsPerSource == 0 || e.share != e.limit }

func (e entry) String() string {
	if e.share != e.limit {
		return "the peer"
	}
	return "the source"
}

// overShare reports whether a party with n of all flows would exceed its share
// of at most limit flows. The first flow is always granted. A limit of at most
// shareOfFree is not shared.
func overShare(n, all, limit int64) bool {
	return limit > shareOfFree && n > 1 && n > shareOfFree*(limit-all)
}

package relay

import (
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
)

// tunnelState is what outlives a tunnel's configuration: its counters.
type tunnelState struct {
	name string

	flows    atomic.Int64
	peak     atomic.Int64
	total    atomic.Int64
	up, down atomic.Int64 // bytes of flows that have ended
	denied   atomic.Int64 // source not allowed, or PROXY header not as required
	limited  atomic.Int64 // by the limits on flows and on their rate
	shed     atomic.Int64 // because something is short
	refused  atomic.Int64 // no target could be had
	errors   atomic.Int64 // ended by a reset, a timeout or a lack of resources
	ended    endCounts

	bucket  bucket
	held    holdings    // while memory is short
	drained atomic.Bool // new connections are refused
	checks  checkCounts

	mu     sync.Mutex
	sheds  map[string]int64 // by reason
	warned map[string]bool
	setups []*legSetup
}

// legSetup is what the transport found a leg to be.
type legSetup struct {
	side     string
	degraded string
}

// enter counts a new flow unless there are limit already; 0 is no limit.
func (t *tunnelState) enter(limit int) bool {
	now := t.flows.Add(1)
	if limit > 0 && now > int64(limit) {
		t.flows.Add(-1)
		return false
	}
	for peak := t.peak.Load(); now > peak && !t.peak.CompareAndSwap(peak, now); {
		peak = t.peak.Load()
	}
	return true
}

// warnOnce logs a text once in the tunnel's life, so that a setting which
// cannot be had for any flow is not told for each of them.
func (t *tunnelState) warnOnce(log *slog.Logger, msg, cause string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.warned[msg+cause] || len(t.warned) >= 64 {
		return
	}
	if t.warned == nil {
		t.warned = map[string]bool{}
	}
	t.warned[msg+cause] = true
	log.Warn(msg, "tunnel", t.name, "cause", cause)
}

// setup returns a shared copy of what a leg was found to be: a tunnel's legs
// are of very few kinds, and an idle flow should not carry the text.
func (t *tunnelState) setup(s legSetup) *legSetup {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, known := range t.setups {
		if *known == s {
			return known
		}
	}
	kept := new(legSetup) // and not &s, which every call would have to allocate
	*kept = s
	if len(t.setups) < 64 {
		t.setups = append(t.setups, kept)
	}
	return kept
}

// bucket is a token bucket over the monotonic clock.
type bucket struct {
	mu     sync.Mutex
	tokens float64
	last   int64 // ns; 0: never used, that is full
}

// take takes one token of a bucket that is filled at perSecond and holds one
// second's worth, at least one. Who has taken recent tokens in the last second
// leaves the share of others in it.
func (b *bucket) take(perSecond, recent float64, now int64) bool {
	if perSecond <= 0 {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	burst := max(1, perSecond)
	if b.last == 0 {
		b.tokens = burst
	} else if now > b.last {
		b.tokens = min(burst, b.tokens+perSecond*float64(now-b.last)/1e9)
	}
	b.last = max(b.last, now)
	if b.tokens < 1 || recent >= shareOfFree*b.tokens {
		return false
	}
	b.tokens--
	return true
}

// contains says whether one of the prefixes holds the address; no prefixes
// hold every address.
func contains(prefixes []netip.Prefix, a netip.Addr) bool {
	if len(prefixes) == 0 {
		return true
	}
	a = a.Unmap().WithZone("")
	for _, p := range prefixes {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// unmapped turns IPv4-mapped prefixes into the IPv4 prefixes they mean.
func unmapped(prefixes []netip.Prefix) []netip.Prefix {
	out := make([]netip.Prefix, len(prefixes))
	for i, p := range prefixes {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		out[i] = p.Masked()
	}
	return out
}

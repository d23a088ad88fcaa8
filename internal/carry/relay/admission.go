package relay

import (
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// tunnelState holds the counters and state of a tunnel; it outlives changes of
// the tunnel's configuration.
type tunnelState struct {
	name string
	life int64 // report.Tunnel.Life

	flows   atomic.Int64
	peak    atomic.Int64
	total   atomic.Int64
	moved   [2]atomic.Int64 // bytes, by direction, as of the latest turns of the loops
	relayed atomic.Int64    // connections that another relay intercepted before
	denied  atomic.Int64    // source not allowed, or bad PROXY header
	limited atomic.Int64    // by the limits on flows and on their rate
	shed    atomic.Int64    // refused because a resource is short
	refused atomic.Int64    // no target accepted
	errors  atomic.Int64    // ended by a reset, a timeout or missing resources
	ended   endCounts
	// endedByPeer are those whose reason is the word of the other relay of a pair.
	endedByPeer endCounts

	bucket    bucket
	held      holdings    // while memory is short
	drained   atomic.Bool // new connections are refused
	integrity integrityCounts
	prefaces  atomic.Int64 // connections to a far tunnel that have not sent theirs

	mu     sync.Mutex
	peers  map[string]peerSum
	moves  uint64           // counts those over peers
	sheds  map[string]int64 // by reason
	warned map[string]bool
	setups []*legSetup
}

// legSetup is what the transport reported about a leg.
type legSetup struct {
	side        string
	degraded    string
	destination netip.Prefix // whose transport it has; not valid: the tunnel's
}

// enter counts a new flow unless the tunnel already has limit flows; 0 means no
// limit.
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

// warnOnce logs each message and cause at most once in the tunnel's life,
// instead of once for every flow.
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

// setup returns a shared copy of a leg's setup. The legs of a tunnel have few
// distinct setups, and an idle flow should not hold its own copy.
func (t *tunnelState) setup(s legSetup) *legSetup {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, known := range t.setups {
		if *known == s {
			return known
		}
	}
	kept := new(legSetup) // returning &s would allocate in every call
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
	last   time.Duration // 0: never used, so the bucket is full
}

// take removes one token. The bucket fills at perSecond and holds the tokens of
// one second, at least one. A source that took recent tokens in the last second
// must leave the share of the other sources in the bucket.
func (b *bucket) take(perSecond, recent float64, now time.Duration) bool {
	if perSecond <= 0 {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	burst := max(1, perSecond)
	if b.last == 0 {
		b.tokens = burst
	} else if now > b.last {
		b.tokens = min(burst, b.tokens+perSecond*(now-b.last).Seconds())
	}
	b.last = max(b.last, now)
	if b.tokens < 1 || recent >= shareOfFree*b.tokens {
		return false
	}
	b.tokens--
	return true
}

// contains reports whether one of the prefixes contains the address; an empty
// list contains every address.
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

// unmapped converts IPv4-mapped IPv6 prefixes to IPv4 prefixes.
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

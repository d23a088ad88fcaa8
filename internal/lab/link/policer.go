package link

// bucket is the token bucket of a policer, stored as the time at which it is
// full again. This is the generic cell rate algorithm in its virtual scheduling
// form (ITU-T I.371, annex A). Times are in nanoseconds.
type bucket struct {
	fullAt   int64
	fraction int64 // in 1/rate ns, carried so that the rate is exact over any time
	rateBps  int64 // of the latest packet; fraction refers to it
}

// admit reports whether a packet of size bytes passes now, and takes its tokens
// if so.
func (b *bucket) admit(now int64, size int, p Policer) bool {
	if now >= b.fullAt {
		b.fullAt, b.fraction = now, 0
	}
	if b.rateBps != p.RateBps {
		b.rateBps, b.fraction = p.RateBps, 0
	}
	cost := int64(size)*8e9 + b.fraction
	depth := int64(float64(p.BurstBytes) * 8e9 / float64(p.RateBps))
	if b.fullAt-now+cost/p.RateBps > depth {
		return false
	}
	b.fullAt += cost / p.RateBps
	b.fraction = cost % p.RateBps
	return true
}

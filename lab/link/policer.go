package link

import "maps"

// policer has the bucket of the link, or one for each flow.
type policer struct {
	link  bucket
	flows map[uint64]*bucket // by the flow's hash
}

// maxFlowBuckets is the number of buckets from which on full ones are forgotten.
const maxFlowBuckets = 4096

// admit reports whether a packet of a flow passes now, and takes its tokens if so.
func (p *policer) admit(now int64, size int, of *superPacket, s *Settings) bool {
	if !s.Policer.PerFlow {
		return p.link.admit(now, size, s.Policer)
	}
	id := of.flow(s.Seed)
	b := p.flows[id]
	if b == nil {
		if len(p.flows) >= maxFlowBuckets {
			maps.DeleteFunc(p.flows, func(_ uint64, b *bucket) bool { return b.fullAt <= now })
		}
		if p.flows == nil {
			p.flows = map[uint64]*bucket{}
		}
		b = new(bucket)
		p.flows[id] = b
	}
	return b.admit(now, size, s.Policer)
}

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

package monitor

import "time"

// How many points are kept: ten minutes of seconds, a day of minutes.
const (
	shortPoints = 600
	longPoints  = 1440
	longStep    = time.Minute
)

// moment is a point as it is kept. The counts are of the span that ends at at.
type moment struct {
	at          time.Duration // of the monitor's clock
	span        float32       // seconds
	up, down    float32       // bytes
	sent, again float32       // bytes of data, by the legs
	flows       int32
}

func (q moment) point(tunnel string) Point {
	p := Point{Tunnel: tunnel, RetransmittedShare: -1, Flows: int64(q.flows)}
	if q.span > 0 {
		p.UpBps, p.DownBps = float64(q.up*8/q.span), float64(q.down*8/q.span)
	}
	if q.sent > 0 {
		p.RetransmittedShare = min(1, float64(q.again/q.sent))
	}
	return p
}

// points are the course of a tunnel.
type points struct {
	short, long ring
	sum         moment // since the last of long
}

func (p *points) add(q moment) {
	p.short.add(q, shortPoints)
	p.sum.at, p.sum.flows = q.at, max(p.sum.flows, q.flows)
	p.sum.span += q.span
	p.sum.up += q.up
	p.sum.down += q.down
	p.sum.sent += q.sent
	p.sum.again += q.again
	if p.sum.span >= float32(longStep.Seconds())-0.5 {
		p.long.add(p.sum, longPoints)
		p.sum = moment{}
	}
}

// since returns the finest points that reach back to a time, or, if none do, the
// coarsest.
func (p *points) since(at time.Duration) []moment {
	if p.short.whole(shortPoints, at) {
		return p.short.since(at)
	}
	return append(p.long.since(at), p.rest()...)
}

// rest is the part of a minute that has not ended.
func (p *points) rest() []moment {
	if p.sum.span == 0 {
		return nil
	}
	return []moment{p.sum}
}

// ring keeps the latest values, as many as it is told to.
type ring struct {
	values []moment
	next   int // of a full ring: the oldest
}

func (r *ring) add(q moment, most int) {
	if len(r.values) < most {
		r.values = append(r.values, q)
		return
	}
	r.values[r.next] = q
	r.next = (r.next + 1) % most
}

// whole says whether all that there was since a time is in the ring.
func (r *ring) whole(most int, at time.Duration) bool {
	return len(r.values) < most || r.values[r.next].at <= at
}

// since are those that end after a time, in their order.
func (r *ring) since(at time.Duration) []moment {
	out := make([]moment, 0, len(r.values))
	for i := range r.values {
		if q := r.values[(r.next+i)%len(r.values)]; q.at > at {
			out = append(out, q)
		}
	}
	return out
}

package monitor

import "time"

// Numbers of points kept: ten minutes of seconds, a day of minutes.
const (
	shortPoints = 600
	longPoints  = 1440
	longStep    = time.Minute
)

// moment is a stored point. The counts cover the span that ends at at.
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

// points is the history of a tunnel for charts.
type points struct {
	short, long ring
	sum         moment // since the latest value of long
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

// since returns the finest points that reach back to a time, or the coarsest if
// none do.
func (p *points) since(at time.Duration) []moment {
	if p.short.whole(shortPoints, at) {
		return p.short.since(at)
	}
	return append(p.long.since(at), p.rest()...)
}

// rest returns the current minute, not yet complete.
func (p *points) rest() []moment {
	if p.sum.span == 0 {
		return nil
	}
	return []moment{p.sum}
}

// ring keeps the latest values, up to a maximum.
type ring struct {
	values []moment
	next   int // of a full ring: the oldest
}

func (r *ring) add(q moment, size int) {
	if len(r.values) < size {
		r.values = append(r.values, q)
		return
	}
	r.values[r.next] = q
	r.next = (r.next + 1) % size
}

// whole reports whether the ring still contains every value since a time.
func (r *ring) whole(size int, at time.Duration) bool {
	return len(r.values) < size || r.values[r.next].at <= at
}

// since returns the values that end after a time, in order.
func (r *ring) since(at time.Duration) []moment {
	out := make([]moment, 0, len(r.values))
	for i := range r.values {
		if q := r.values[(r.next+i)%len(r.values)]; q.at > at {
			out = append(out, q)
		}
	}
	return out
}

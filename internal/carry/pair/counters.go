package pair

import (
	"sync/atomic"

	"longhaul/internal/sys/tcpinfo"
)

// Counters are what the kernel has sent over lanes. A lane's connection counts for all of
// its flows, one after the other, so a flow's share is the sum of differences.
type Counters struct {
	Sent          int64 // bytes, with those that were sent again
	Retransmitted int64 // bytes
	Retransmits   int64 // segments, without those that the peer had already
}

func (c Counters) plus(o Counters, sign int64) Counters {
	return Counters{c.Sent + sign*o.Sent, c.Retransmitted + sign*o.Retransmitted, c.Retransmits + sign*o.Retransmits}
}

// sentOver is a flow's share of the lanes that it has left.
type sentOver struct{ sent, retransmitted, retransmits atomic.Int64 }

func (s *sentOver) add(c Counters) {
	s.sent.Add(c.Sent)
	s.retransmitted.Add(c.Retransmitted)
	s.retransmits.Add(c.Retransmits)
}

func (s *sentOver) load() Counters {
	return Counters{s.sent.Load(), s.retransmitted.Load(), s.retransmits.Load()}
}

// counters are those of the lane's connection; false: it is closed.
func (l *lane) counters() (c Counters, known bool) {
	known = kernelSays(l.bulk, func(i *tcpinfo.Info) bool {
		c = Counters{int64(i.BytesSent), int64(i.BytesRetrans), int64(i.Missed())}
		return i.Has(tcpinfo.FieldBytesSent)
	})
	return c, known
}

// unsettled is what the lane has sent that its flow has no share of yet.
func (l *lane) unsettled() Counters {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now, known := l.counters(); known {
		return now.plus(l.settled, -1)
	}
	return Counters{}
}

// settle credits the lane's flow with what was sent since the last time. The caller holds
// l.mu.
func (l *lane) settle() {
	if l.flow == nil {
		return
	}
	if now, known := l.counters(); known {
		l.flow.lanes.add(now.plus(l.settled, -1))
		l.settled = now
	}
}

package pair

import (
	"sync/atomic"

	"longhaul/internal/carry/flow"
	"longhaul/internal/sys/tcpinfo"
)

// sentOver is a flow's share of the lanes that it has left. A lane's connection counts for all of
// its flows, one after the other, so a flow's share is the sum of differences.
type sentOver struct{ sent, retransmitted, retransmits atomic.Int64 }

func (s *sentOver) add(c flow.Counters) {
	s.sent.Add(c.BytesSent)
	s.retransmitted.Add(c.BytesRetransmitted)
	s.retransmits.Add(c.Retransmits)
}

func (s *sentOver) load() flow.Counters {
	return flow.Counters{BytesSent: s.sent.Load(), BytesRetransmitted: s.retransmitted.Load(), Retransmits: s.retransmits.Load()}
}

// counters are those of the lane's connection; false: it is closed.
func (l *lane) counters() (c flow.Counters, known bool) {
	known = kernelSays(l.bulk, func(i *tcpinfo.Info) bool {
		c = flow.Counters{BytesSent: int64(i.BytesSent), BytesRetransmitted: int64(i.BytesRetrans), Retransmits: int64(i.Missed())}
		return i.Has(tcpinfo.FieldBytesSent)
	})
	return c, known
}

// unsettled is what the lane has sent that its flow has no share of yet.
func (l *lane) unsettled() flow.Counters {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now, known := l.counters(); known {
		return now.Minus(l.settled)
	}
	return flow.Counters{}
}

// settle credits the lane's flow with what was sent since the last time. The caller holds
// l.mu.
func (l *lane) settle() {
	if l.flow == nil {
		return
	}
	if now, known := l.counters(); known {
		l.flow.credit(now.Minus(l.settled))
		l.settled = now
	}
}

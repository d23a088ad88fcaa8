package pair

import (
	"sync/atomic"

	"longhaul/internal/carry/flow"
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

package pair

import (
	"time"

	"longhaul/internal/carry/flow"
)

// fallbackRetry is the time between two attempts to reach a far relay while its link is in
// fallback: each attempt sends bytes to a program that does not expect them.
const fallbackRetry = 30 * time.Second

// unpairedAfter is how long a far relay that was paired once may end handshakes before
// it counts as unpaired, for a link with a fallback.
const unpairedAfter = 10 * time.Second

// Plain implements flow.Carrier.
func (l *Link) Plain() bool {
	l.mu.Lock()
	s, fallback := l.s, l.o.Fallback && !l.closed
	l.mu.Unlock()
	return fallback && s.inFallback()
}

func (s *session) inFallback() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ctl == nil && s.problem == flow.PairUnpaired
}

// handBack hands back the flows of which nothing was sent.
func (s *session) handBack() {
	for _, f := range s.allFlows() {
		f.handBack()
	}
}

func (f *Flow) handBack() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sent || f.finished || f.lane != nil || f.sf.Dead() || !f.leg.open() || f.leg.busy > 0 {
		return
	}
	f.s.node.poller.remove(f.leg.fd)
	f.back = &flow.Back{FD: f.leg.fd, Early: f.sf.Out.Bytes()}
	f.leg.fd = -1
	f.giveUp(cause(flow.EndPairDown, nil))
}

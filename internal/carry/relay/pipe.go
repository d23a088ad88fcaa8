package relay

import (
	"sync/atomic"
	"time"

	"longhaul/internal/sys/splice"
)

const (
	pipesKept  = 64          // idle pipes that a worker keeps
	pipesRetry = time.Second // until the next attempt after one failed
)

// pipePool lends pipes to one worker's flows.
type pipePool struct {
	open    func() *splice.Pipe
	budget  *atomic.Int64 // pipes that the relay may still open
	idle    []*splice.Pipe
	retryAt time.Duration // no attempt to open one before this time
}

// get returns an empty pipe, or nil if none is available now.
func (p *pipePool) get(now time.Duration) *splice.Pipe {
	if n := len(p.idle); n > 0 {
		got := p.idle[n-1]
		p.idle = p.idle[:n-1]
		return got
	}
	if now < p.retryAt {
		return nil
	}
	if p.budget.Add(-1) >= 0 {
		if got := p.open(); got != nil {
			return got
		}
	}
	p.budget.Add(1)
	p.retryAt = now + pipesRetry
	return nil
}

// put takes back an empty pipe.
func (p *pipePool) put(back *splice.Pipe) {
	if len(p.idle) < pipesKept {
		p.idle = append(p.idle, back)
		return
	}
	p.discard(back)
}

// discard closes a pipe with any content.
func (p *pipePool) discard(back *splice.Pipe) {
	back.Close()
	p.budget.Add(1)
	p.retryAt = 0
}

func (p *pipePool) close() {
	for _, idle := range p.idle {
		p.discard(idle)
	}
	p.idle = nil
}

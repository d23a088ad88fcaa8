package pair

import (
	"sync"

	"longhaul/internal/sys/splice"
)

const (
	maxPipes  = 1024 // of a node
	idlePipes = 16   // that a node keeps
)

// pipes lends the pipes of a node.
type pipes struct {
	mu     sync.Mutex
	idle   []*splice.Pipe
	lent   int
	closed bool
}

// take returns an empty pipe; nil: none is to be had.
func (p *pipes) take() *splice.Pipe {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.lent >= maxPipes {
		return nil
	}
	var got *splice.Pipe
	if n := len(p.idle); n > 0 {
		got, p.idle = p.idle[n-1], p.idle[:n-1]
	} else if got = splice.Open(); got == nil {
		return nil
	}
	p.lent++
	return got
}

// give takes a pipe back. One that is not empty is closed.
func (p *pipes) give(one *splice.Pipe, empty bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lent--
	if empty && !p.closed && len(p.idle) < idlePipes {
		p.idle = append(p.idle, one)
		return
	}
	one.Close()
}

func (p *pipes) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, one := range p.idle {
		one.Close()
	}
	p.idle = nil
}

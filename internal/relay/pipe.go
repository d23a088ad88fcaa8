package relay

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	pipeWanted = 512 << 10   // bytes of requested capacity
	minPipe    = 64 << 10    // bytes; a smaller pipe is worse than copying
	pipesKept  = 64          // idle pipes that a worker keeps
	pipesRetry = time.Second // until the next attempt after one failed
)

// pipe carries spliced bytes from one socket to another inside the kernel.
type pipe struct {
	r, w int
	size int
}

func (p *pipe) destroy() {
	closeFD(p.r)
	closeFD(p.w)
}

// openPipe makes a pipe as large as the user's limits allow. It returns nil if
// no useful pipe is available: descriptors have run out, or the user exceeds
// fs.pipe-user-pages-soft and would get two pages.
func openPipe() *pipe {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		return nil
	}
	p := &pipe{r: fds[0], w: fds[1]}
	size, err := unix.FcntlInt(uintptr(p.w), unix.F_SETPIPE_SZ, pipeWanted)
	if err != nil {
		size, err = unix.FcntlInt(uintptr(p.w), unix.F_GETPIPE_SZ, 0)
	}
	if err != nil || size < minPipe {
		p.destroy()
		return nil
	}
	p.size = size
	return p
}

// pipePool lends pipes to one worker's flows.
type pipePool struct {
	open    func() *pipe
	budget  *atomic.Int64 // pipes that the relay may still open
	idle    []*pipe
	retryAt time.Duration // no attempt to open one before this time
}

// get returns an empty pipe, or nil if none is available now.
func (p *pipePool) get(now time.Duration) *pipe {
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
func (p *pipePool) put(back *pipe) {
	if len(p.idle) < pipesKept {
		p.idle = append(p.idle, back)
		return
	}
	p.discard(back)
}

// discard closes a pipe with any content.
func (p *pipePool) discard(back *pipe) {
	back.destroy()
	p.budget.Add(1)
	p.retryAt = 0
}

func (p *pipePool) close() {
	for _, idle := range p.idle {
		p.discard(idle)
	}
	p.idle = nil
}

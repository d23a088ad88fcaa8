package pair

import (
	"errors"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/splice"
)

const (
	minSplice = 16 << 10 // bytes; fewer are copied
	maxPipes  = 1024     // of a node
	idlePipes = 16       // that a node keeps
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

// writeFrom writes a head, and behind it the n bytes of a pipe.
func (c *bulkConn) writeFrom(head []byte, pipe *splice.Pipe, n int) error {
	if err := c.flush(); err != nil {
		return err
	}
	var err error
	waited := c.raw.Write(func(fd uintptr) bool {
		for err = nil; len(head)+n > 0; {
			var sent int
			if len(head) > 0 {
				sent, err = retry(func() (int, error) {
					return unix.SendmsgN(int(fd), head, nil, nil, unix.MSG_NOSIGNAL|unix.MSG_MORE)
				})
				head = head[max(sent, 0):]
			} else {
				sent, err = movePipe(pipe.R, int(fd), n)
				n -= sent
			}
			if err == unix.EAGAIN && c.linger.wait(int(fd), unix.POLLOUT) {
				continue
			}
			if err != nil {
				return err != unix.EAGAIN
			}
		}
		return true
	})
	return errors.Join(waited, os.NewSyscallError("splice", err))
}

// movePipe is splice.Move with an error in place of a number.
func movePipe(from, to, n int) (int, error) {
	moved, errno := splice.Move(from, to, n)
	if errno != 0 && errno != unix.EINTR {
		return 0, errno
	}
	return max(moved, 0), nil
}

// fillPipe waits for bytes and moves up to n of them to a pipe; nil: none is to be had.
func (c *bulkConn) fillPipe(pool *pipes, n int) (pipe *splice.Pipe, got int, err error) {
	waited := c.raw.Read(func(fd uintptr) bool {
		if pipe = pool.take(); pipe == nil {
			return true
		}
		var errno unix.Errno
		got, errno = splice.Move(int(fd), pipe.W, min(n, pipe.Size))
		if errno == unix.EAGAIN {
			c.batch.wait(int(fd), 1, n)
		}
		for errno == unix.EINTR || errno == unix.EAGAIN && c.linger.wait(int(fd), unix.POLLIN) {
			got, errno = splice.Move(int(fd), pipe.W, min(n, pipe.Size))
		}
		if errno == 0 && got > 0 {
			return true
		}
		pool.give(pipe, true)
		pipe, got = nil, 0
		switch {
		case errno == unix.EAGAIN:
			return false
		case errno != 0 && !splice.Unsupported(errno):
			err = os.NewSyscallError("splice", errno)
		case errno == 0:
			err = io.ErrUnexpectedEOF
		}
		return true
	})
	return pipe, got, errors.Join(waited, err)
}

package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"longhaul/bench/peers"
)

// serveCommand is the first argument by which this program becomes the target:
// it needs descriptors of its own for thousands of connections.
const serveCommand = "serve"

// requestSize is the size of a request. Its first eight bytes are the size of
// the reply, big endian; with closeAfter set in it, the connection ends after
// the reply.
const (
	requestSize = 64
	closeAfter  = 1 << 63
	endless     = 1 << 62 // a reply larger than any run
)

func putRequest(request []byte, reply uint64) { binary.BigEndian.PutUint64(request, reply) }

const (
	listenBacklog = 4096
	eventsPerWait = 512
	blockSize     = 256 << 10 // bytes of a read or write
)

// answering is one connection of the target.
type answering struct {
	request [requestSize]byte
	got     int    // bytes of it
	left    uint64 // bytes of the reply that are not sent
	end     bool
}

// serve answers requests until the context is done or standard input, which
// the parent holds, is closed: one event loop without allocation, so that what
// is measured is the relay.
func serve(ctx context.Context, addr peers.Address) error {
	runtime.LockOSThread()
	listener, err := listen(addr)
	if err != nil {
		return err
	}
	defer unix.Close(listener)
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(epfd)
	add := func(fd int, events uint32) error {
		return unix.EpollCtl(epfd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
	}
	if err := add(listener, unix.EPOLLIN); err != nil {
		return err
	}
	if err := add(0, unix.EPOLLIN); err != nil {
		return fmt.Errorf("standard input must be a pipe: %w", err)
	}
	block := make([]byte, blockSize)
	for i := range block {
		block[i] = byte(i * 7)
	}
	var conns []*answering // by descriptor
	events := make([]unix.EpollEvent, eventsPerWait)
	for ctx.Err() == nil {
		n, err := unix.EpollWait(epfd, events, 1000)
		if err != nil && err != unix.EINTR {
			return err
		}
		for i := range max(n, 0) {
			fd := int(events[i].Fd)
			switch {
			case fd == 0:
				return nil
			case fd == listener:
				for {
					c, _, err := unix.Accept4(listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
					if err == unix.EAGAIN || err == unix.ECONNABORTED {
						break
					}
					if err != nil {
						return fmt.Errorf("accept: %w", err)
					}
					if err := unix.SetsockoptInt(c, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
						return err
					}
					for c >= len(conns) {
						conns = append(conns, nil)
					}
					conns[c] = new(answering)
					if err := add(c, unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLET); err != nil {
						return err
					}
				}
			case !conns[fd].answer(fd, block):
				conns[fd] = nil
				unix.Close(fd)
			}
		}
	}
	return nil
}

// answer reads requests and writes replies as far as that goes; it returns
// false once the connection is to be closed.
func (a *answering) answer(fd int, block []byte) bool {
	for {
		for a.left > 0 {
			n, errno := write(fd, block[:min(a.left, uint64(len(block)))])
			if errno == unix.EAGAIN {
				return true
			}
			if errno != 0 {
				return false
			}
			a.left -= uint64(n)
		}
		if a.end {
			return false
		}
		n, errno := read(fd, a.request[a.got:])
		if errno == unix.EAGAIN {
			return true
		}
		if errno != 0 || n == 0 {
			return false
		}
		if a.got += n; a.got == requestSize {
			size := binary.BigEndian.Uint64(a.request[:])
			a.got, a.left, a.end = 0, size&^closeAfter, size&closeAfter != 0
		}
	}
}

func listen(addr peers.Address) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return -1, err
	}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err == nil {
		err = unix.Bind(fd, sockaddr(addr))
	}
	if err == nil {
		err = unix.Listen(fd, listenBacklog)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("listen on %s: %w", addr, err)
	}
	return fd, nil
}

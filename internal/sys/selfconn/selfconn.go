// Package selfconn makes connections of a process with itself: two TCP sockets over the loopback
// interface whose ends both belong to it. They end as any TCP connection does, by an end of stream each
// way or by a reset, and TCP_INFO says the same of them.
package selfconn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/words/remedy"
)

const (
	// Buffer is what each queue of a connection holds at most, in bytes as SO_SNDBUF and SO_RCVBUF have
	// it: enough for a segment of this interface under way and another one behind it.
	Buffer = 256 << 10

	backlog  = 16
	patience = 250 * time.Millisecond // for a handshake, which takes microseconds
	attempts = 2
)

// Connector makes connections, one at a time. It listens from the first one on, and takes only
// connections that it has made itself.
type Connector struct {
	turn   chan struct{}
	fd     int // of the listener; -1: none
	at     unix.Sockaddr
	closed bool
}

// New makes a Connector that does not listen yet.
func New() *Connector { return &Connector{turn: make(chan struct{}, 1), fd: -1} }

// Connect makes a connection and returns its two ends, which are non-blocking and which the caller
// closes. An error is the system's with a remedy, ctx's, or os.ErrClosed.
func (c *Connector) Connect(ctx context.Context) (dialed, accepted int, err error) {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return -1, -1, ctx.Err()
	}
	if c.closed {
		return -1, -1, os.ErrClosed
	}
	for range attempts {
		if c.fd < 0 {
			if err = c.listen(); err != nil {
				return -1, -1, advise(err)
			}
		}
		if dialed, accepted, err = c.connect(); err == nil {
			return dialed, accepted, nil
		}
		// A listener with another port has all local ports before it again, and nobody else's connections.
		c.drop()
	}
	return -1, -1, advise(err)
}

// Close ends listening. Connections go on.
func (c *Connector) Close() {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	c.drop()
	c.closed = true
}

func (c *Connector) drop() {
	if c.fd >= 0 {
		unix.Close(c.fd)
		c.fd = -1
	}
}

// listen begins to listen at a port that the kernel chooses, of IPv4 or else of IPv6.
func (c *Connector) listen() (err error) {
	for _, at := range []unix.Sockaddr{&unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}, &unix.SockaddrInet6{Addr: [16]byte{15: 1}}} {
		var fd int
		if fd, err = newSocket(at); err != nil {
			continue
		}
		if err = os.NewSyscallError("bind", unix.Bind(fd, at)); err == nil {
			err = os.NewSyscallError("listen", unix.Listen(fd, backlog))
		}
		if err == nil {
			c.at, err = unix.Getsockname(fd)
		}
		if err == nil {
			c.fd = fd
			return nil
		}
		unix.Close(fd)
	}
	return err
}

func newSocket(at unix.Sockaddr) (fd int, err error) {
	family := unix.AF_INET
	if _, is6 := at.(*unix.SockaddrInet6); is6 {
		family = unix.AF_INET6
	}
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, Buffer)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, Buffer)
	_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno") // which every kernel has, and which does not pace
	return fd, nil
}

func (c *Connector) connect() (dialed, accepted int, err error) {
	dialed, err = newSocket(c.at)
	if err != nil {
		return -1, -1, err
	}
	defer func() {
		if err != nil {
			unix.Close(dialed)
			dialed = -1
		}
	}()
	if err := unix.Connect(dialed, c.at); err != nil && err != unix.EINPROGRESS {
		return dialed, -1, os.NewSyscallError("connect", err)
	}
	own, err := unix.Getsockname(dialed)
	if err != nil {
		return dialed, -1, os.NewSyscallError("getsockname", err)
	}
	for until := time.Now().Add(patience); ; {
		accepted, from, err := unix.Accept4(c.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch {
		case err == nil && same(from, own):
			return dialed, accepted, nil
		case err == nil:
			unix.Close(accepted) // another process has connected
		case err == unix.EAGAIN:
			look := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN}}
			_, _ = unix.Poll(look, int(max(time.Until(until), 0)/time.Millisecond))
		case err != unix.EINTR && err != unix.ECONNABORTED:
			return dialed, -1, os.NewSyscallError("accept", err)
		}
		if time.Now().After(until) {
			return dialed, -1, os.NewSyscallError("connect", unix.ETIMEDOUT)
		}
	}
}

func same(a, b unix.Sockaddr) bool {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		b, is := b.(*unix.SockaddrInet4)
		return is && a.Port == b.Port && a.Addr == b.Addr
	case *unix.SockaddrInet6:
		b, is := b.(*unix.SockaddrInet6)
		return is && a.Port == b.Port && a.Addr == b.Addr
	}
	return false
}

// advise gives an error of Connect its remedy.
func advise(err error) error {
	fix := "look at the limits of open files and of memory"
	switch {
	case errors.Is(err, unix.EADDRNOTAVAIL) && bindFailed(err), errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EAFNOSUPPORT):
		fix = "set the loopback interface up: ip link set lo up"
	case errors.Is(err, unix.EADDRNOTAVAIL), errors.Is(err, unix.EADDRINUSE):
		fix = "widen net.ipv4.ip_local_port_range"
	case errors.Is(err, unix.ETIMEDOUT), errors.Is(err, unix.EPERM), errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.EACCES):
		fix = "have the host's firewall accept what comes and goes through lo"
	}
	return remedy.New(fmt.Errorf("connect this process with itself: %w", err), fix)
}

func bindFailed(err error) bool {
	var call *os.SyscallError
	return errors.As(err, &call) && call.Syscall == "bind"
}

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"longhaul/bench/peers"
)

// load is what the clients do: each of them sends a request, reads the reply,
// and begins again, on the same connection or on a new one.
type load struct {
	clients int
	reply   uint64 // bytes
	renew   bool   // a connection for every request; the target ends it
	once    bool   // one request on each connection, which is then kept
	rate    int    // requests in a second, of all together; 0: as many as there can be
}

// counted is what clients have done since the counters were last reset.
type counted struct {
	bytes    int64 // of replies
	requests int64
	latency  histogram // from a request (with renew: from its connect) to the end of its reply
}

// client is one connection, or a series of them.
type client struct {
	fd    int
	begun time.Duration // since the clients' start
	left  uint64        // bytes of the reply still to come
	idle  bool
}

// clients is one event loop that drives all of them.
type clients struct {
	load    load
	to      peers.Address
	epfd    int
	list    []client
	request [requestSize]byte
	block   []byte
	events  []unix.EpollEvent
	base    time.Time
	idle    int
	waiting []int // clients whose turn has not come yet, with a rate
	started int64 // requests, with a rate
	counted
}

// errShort says that a relay ended a connection before the reply was complete.
var errShort = errors.New("the connection ended before its reply was complete")

// portion is how many connections are begun at once.
const portion = 100

// connect begins all connections, in portions; of those that ask once, a
// portion has its replies before the next begins.
func connect(l load, to peers.Address) (*clients, error) {
	c := &clients{load: l, to: to, list: make([]client, l.clients), block: make([]byte, blockSize),
		events: make([]unix.EpollEvent, eventsPerWait), base: time.Now()}
	reply := l.reply
	if l.renew {
		reply |= closeAfter
	}
	putRequest(c.request[:], reply)
	var err error
	if c.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, err
	}
	for i := range c.list {
		c.list[i].fd = -1
	}
	for i := range c.list {
		if err := c.begin(i); err != nil {
			c.close()
			return nil, fmt.Errorf("connection %d of %d: %w", i+1, l.clients, err)
		}
		for wait := i%portion == portion-1; wait; wait = l.once && i+1-c.idle > portion {
			if err := c.turn(time.Millisecond); err != nil {
				c.close()
				return nil, fmt.Errorf("connection %d of %d: %w", i+1, l.clients, err)
			}
		}
	}
	return c, nil
}

func (c *clients) close() {
	for i := range c.list {
		if c.list[i].fd >= 0 {
			unix.Close(c.list[i].fd)
		}
	}
	unix.Close(c.epfd)
}

// begin makes a new connection for a client.
func (c *clients) begin(i int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return err
	}
	c.list[i] = client{fd: fd, begun: time.Since(c.base)}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return err
	}
	if err := unix.Connect(fd, sockaddr(c.to)); err != nil && err != unix.EINPROGRESS {
		return err
	}
	// One event for the connect, and from then on only those for reading.
	return unix.EpollCtl(c.epfd, unix.EPOLL_CTL_ADD, fd,
		&unix.EpollEvent{Events: unix.EPOLLOUT, Fd: int32(fd), Pad: int32(i)})
}

// run drives the clients for a time.
func (c *clients) run(d time.Duration) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for end := time.Now().Add(d); ; {
		left := time.Until(end)
		if left <= 0 {
			return nil
		}
		if err := c.turn(left); err != nil {
			return err
		}
	}
}

// untilIdle drives clients that send once until all have their reply.
func (c *clients) untilIdle(within time.Duration) error {
	for end := time.Now().Add(within); c.idle < len(c.list); {
		left := time.Until(end)
		if left <= 0 {
			return fmt.Errorf("%d of %d connections have no reply after %v", len(c.list)-c.idle, len(c.list), within)
		}
		if err := c.turn(left); err != nil {
			return err
		}
	}
	return nil
}

// turn waits for events, no longer than most, and deals with them.
func (c *clients) turn(most time.Duration) error {
	if len(c.waiting) > 0 {
		if err := c.release(); err != nil {
			return err
		}
		most = 0 // to the next millisecond
	}
	n, err := unix.EpollWait(c.epfd, c.events, int(most/time.Millisecond)+1)
	if err != nil && err != unix.EINTR {
		return err
	}
	for k := range max(n, 0) {
		ev := &c.events[k]
		if c.list[ev.Pad].fd != int(ev.Fd) {
			continue // of a connection that this turn has closed
		}
		if err := c.event(int(ev.Pad), ev.Events); err != nil {
			return err
		}
	}
	return nil
}

func (c *clients) event(i int, events uint32) error {
	k := &c.list[i]
	if events&unix.EPOLLOUT != 0 { // connected, or failed to
		if v, err := unix.GetsockoptInt(k.fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || v != 0 {
			return fmt.Errorf("connect to %s: %w", c.to, unix.Errno(v))
		}
		ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(k.fd), Pad: int32(i)}
		if err := unix.EpollCtl(c.epfd, unix.EPOLL_CTL_MOD, k.fd, &ev); err != nil {
			return err
		}
		return c.ask(k)
	}
	for {
		n, errno := read(k.fd, c.block)
		switch {
		case errno == unix.EAGAIN:
			return nil
		case errno != 0:
			return fmt.Errorf("read a reply: %w", errno)
		case n == 0 && c.load.renew && k.left == 0:
			c.requests++
			c.latency.add(time.Since(c.base) - k.begun)
			unix.Close(k.fd)
			k.fd = -1
			return c.next(i)
		case n == 0:
			return errShort
		}
		c.bytes += int64(n)
		if k.left -= uint64(n); k.left > 0 {
			if n < len(c.block) {
				return nil
			}
			continue
		}
		if c.load.renew {
			continue // to its end
		}
		c.requests++
		c.latency.add(time.Since(c.base) - k.begun)
		if c.load.once {
			k.idle = true
			c.idle++
			return nil
		}
		return c.next(i)
	}
}

// next has a client begin again, at once or when its turn comes.
func (c *clients) next(i int) error {
	if c.load.rate > 0 {
		c.waiting = append(c.waiting, i)
		return nil
	}
	return c.again(i)
}

func (c *clients) again(i int) error {
	if c.load.renew {
		return c.begin(i)
	}
	return c.ask(&c.list[i])
}

// release has as many clients begin as are due. What could not be begun in time,
// since none was waiting, is not made up for.
func (c *clients) release() error {
	due := int64(time.Since(c.base).Seconds() * float64(c.load.rate))
	n := min(int(due-c.started), len(c.waiting))
	for _, i := range c.waiting[:n] {
		if err := c.again(i); err != nil {
			return err
		}
	}
	c.waiting = append(c.waiting[:0], c.waiting[n:]...)
	c.started = max(c.started+int64(n), due-int64(c.load.rate/100))
	return nil
}

func (c *clients) ask(k *client) error {
	k.left = c.load.reply
	if !c.load.renew {
		k.begun = time.Since(c.base)
	}
	if n, errno := write(k.fd, c.request[:]); errno != 0 || n < requestSize {
		return fmt.Errorf("send a request: %d bytes, %w", n, errno)
	}
	return nil
}

func sockaddr(a peers.Address) unix.Sockaddr {
	return &unix.SockaddrInet4{Port: a.Port, Addr: netip.MustParseAddr(a.Host).As4()}
}

// read reads from a socket that does not block.
func read(fd int, b []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), 0, 0, 0)
	return int(n), errno
}

// write writes to a socket that does not block.
func write(fd int, b []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), unix.MSG_NOSIGNAL, 0, 0)
	return int(n), errno
}

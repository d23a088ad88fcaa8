//go:build linux

package main

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// meeting is where both ends of a running script learn of each other.
type meeting struct {
	clock    atomic.Int64
	urgent   [2]atomic.Int64 // bytes that each end has sent, or is about to
	deadline time.Time

	mu       sync.Mutex
	changed  *sync.Cond
	connects bool // the client has connected, or failed to
	done     [2]int
	idle     [2]bool // waits for something
	finished [2]bool
	over     bool // the deadline has passed
}

func newMeeting(within time.Duration) *meeting {
	m := &meeting{deadline: time.Now().Add(within)}
	m.changed = sync.NewCond(&m.mu)
	return m
}

func (m *meeting) tick() int64 { return m.clock.Add(1) }

func (m *meeting) set(change func()) {
	m.mu.Lock()
	change()
	m.changed.Broadcast()
	m.mu.Unlock()
}

// until waits for a condition; it returns false when the deadline has passed.
func (m *meeting) until(who int, cond func() bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for !cond() {
		if m.over {
			return false
		}
		if !m.idle[who] {
			m.idle[who] = true
			m.changed.Broadcast()
		}
		m.changed.Wait()
	}
	m.idle[who] = false
	return true
}

// route is how a script's client reaches its target.
type route struct {
	dial     netip.AddrPort
	listener int // where the target accepts; -1: it refuses

	// socket makes the client's socket; nil: this network namespace's.
	socket func(family int) (int, error)

	// takeOver is called once the client has connected, where the relay is to
	// have its listener only then.
	takeOver func() error

	// quiet says whether nothing that the client has begun can still reach the
	// target. It is asked once the client is done.
	quiet func() bool
}

// errStuck says that the deadline has passed.
var errStuck = errors.New("stuck")

// run runs a script once.
func run(s *Script, r route, within time.Duration) (Outcome, error) {
	m := newMeeting(within)
	over := time.AfterFunc(within, func() { m.set(func() { m.over = true }) })
	defer over.Stop()

	ends := [2]*runner{}
	for i, e := range s.ends() {
		ends[i] = &runner{m: m, me: i, script: e, fd: -1, peerUrgents: s.ends()[1-i].urgents()}
	}
	client, target := ends[0], ends[1]
	if s.Refused {
		m.finished[1] = true
	} else if err := unix.SetsockoptInt(r.listener, unix.SOL_SOCKET, unix.SO_OOBINLINE, flag(s.Target.InLine)); err != nil {
		return Outcome{}, err // from which the accepted socket has it
	}
	var wait sync.WaitGroup
	var errs [2]error
	wait.Go(func() { errs[0] = client.client(s, r) })
	if !s.Refused {
		wait.Go(func() { errs[1] = target.target(s, r) })
	}
	wait.Wait()
	return Outcome{Client: client.seen, Target: target.seen}, errors.Join(errs[:]...)
}

// runner is one end of a running script.
type runner struct {
	m           *meeting
	me          int // 0: the client
	script      *End
	fd          int
	seen        Seen
	peerUrgents []int64
	passed      int  // of the peer's urgent bytes
	announced   bool // the next one was
	taken       [128]bool
	goal        int64 // how far its steps have it read
	sentUrgents int
	resetTaken  bool // a call that sends has taken the connection's error
	atEnd       bool
	buf         []byte
}

var buffers = sync.Pool{New: func() any { b := make([]byte, wholeRead); return &b }}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (e *runner) client(s *Script, r route) error {
	defer e.m.set(func() { e.m.finished[0] = true; e.m.connects = true })
	family := unix.AF_INET6
	if r.dial.Addr().Is4() {
		family = unix.AF_INET
	}
	newSocket := newSocket
	if r.socket != nil {
		newSocket = r.socket
	}
	fd, err := newSocket(family)
	if err != nil {
		return err
	}
	e.fd = fd
	if err := e.setUp(); err != nil {
		unix.Close(fd)
		return err
	}
	if s.Client.InLine {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_OOBINLINE, 1)
	}
	if s.opensWith() > 0 {
		// The first write connects.
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 1)
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_NO_COOKIE, 1)
	}
	timeout := unix.NsecToTimeval(int64(time.Until(e.m.deadline)))
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout)
	err = unix.Connect(fd, sockaddr(r.dial, family))
	for err == unix.EINTR {
		err = e.connected()
	}
	switch {
	case err == unix.EAGAIN || err == unix.EINPROGRESS:
		e.seen.Stuck = "connect"
	case err != nil:
		e.seen.ConnectErr, e.seen.ConnectAt = errnoName(err), e.m.tick()
	default:
		e.seen.Connected = true
		if own, err := unix.Getsockname(fd); err == nil {
			e.seen.Address = addrPort(own)
		}
	}
	e.m.set(func() { e.m.connects = true })
	if err == nil && r.takeOver != nil {
		if err := r.takeOver(); err != nil {
			unix.Close(fd)
			return err
		}
	}
	if err != nil {
		e.seen.Closed, e.seen.ClosedAt = true, e.m.tick()
		unix.Close(fd)
		return nil
	}
	return e.steps()
}

// connected waits for a connect that a signal has interrupted.
func (e *runner) connected() error {
	p := []unix.PollFd{{Fd: int32(e.fd), Events: unix.POLLOUT}}
	if n, err := unix.Poll(p, int(time.Until(e.m.deadline).Milliseconds())); err != nil || n == 0 {
		return err
	}
	v, err := unix.GetsockoptInt(e.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && v != 0 {
		return unix.Errno(v)
	}
	return err
}

func (e *runner) target(s *Script, r route) error {
	defer e.m.set(func() { e.m.finished[1] = true })
	if s.LateAccept && !e.m.until(1, func() bool { return e.m.connects && (e.m.idle[0] || e.m.finished[0]) }) {
		e.seen.Stuck = "accept"
		return nil
	}
	fd, err := e.accept(r)
	if fd < 0 || err != nil {
		return err
	}
	e.fd = fd
	e.seen.Connected = true
	if err := e.setUp(); err != nil {
		unix.Close(fd)
		return err
	}
	return e.steps()
}

const slice = 5 * time.Millisecond

// accept waits for the connection, and returns -1 where none can come any more.
func (e *runner) accept(r route) (int, error) {
	for {
		quiet := false
		e.m.mu.Lock()
		alone := e.m.finished[0]
		e.m.mu.Unlock()
		if alone {
			quiet = r.quiet()
		}
		fd, client, err := unix.Accept4(r.listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch err {
		case nil:
			e.seen.Address = addrPort(client)
			return fd, nil
		case unix.EAGAIN, unix.EINTR, unix.ECONNABORTED:
		default:
			return -1, err
		}
		if quiet {
			return -1, nil
		}
		if time.Now().After(e.m.deadline) {
			e.seen.Stuck = "accept"
			return -1, nil
		}
		p := []unix.PollFd{{Fd: int32(r.listener), Events: unix.POLLIN}}
		_, _ = unix.Poll(p, int(slice.Milliseconds()))
	}
}

func (e *runner) setUp() error {
	s := e.script
	for _, o := range []struct{ level, name, value int }{
		{unix.SOL_SOCKET, unix.SO_SNDBUF, s.SendBuffer},
		{unix.SOL_SOCKET, unix.SO_RCVBUF, s.ReceiveBuffer},
		{unix.IPPROTO_TCP, unix.TCP_NODELAY, flag(s.NoDelay)},
	} {
		if o.value > 0 {
			if err := unix.SetsockoptInt(e.fd, o.level, o.name, o.value); err != nil {
				return err
			}
		}
	}
	return nil
}

// steps walks through the script's steps and closes.
func (e *runner) steps() error {
	if err := unix.SetNonblock(e.fd, true); err != nil {
		return err
	}
	b := buffers.Get().(*[]byte)
	defer buffers.Put(b)
	e.buf = *b
	open := true
	for i, s := range e.script.Steps {
		err := e.step(s)
		if err == errStuck {
			e.seen.Stuck = fmt.Sprintf("%d %s", i+1, s)
			break
		}
		if err != nil {
			unix.Close(e.fd)
			return err
		}
		e.m.set(func() { e.m.done[e.me]++ })
		if s.Op == OpClose || s.Op == OpReset {
			open = false
			break
		}
	}
	if open {
		e.close(false)
	}
	return nil
}

func (e *runner) step(s Step) error {
	switch s.Op {
	case OpSend, OpUrgent, OpSwap, OpRead:
		return e.move(s)
	case OpReadEnd:
		return e.move(Step{Op: OpRead, Bytes: toTheEnd, Chunk: s.Chunk})
	case OpShutWrite:
		e.awaitHandshake()
		at := e.m.tick()
		if err := unix.Shutdown(e.fd, unix.SHUT_WR); err == nil {
			e.seen.Ended, e.seen.EndedAt = true, at
		}
	case OpShutRead:
		e.awaitHandshake()
		_ = unix.Shutdown(e.fd, unix.SHUT_RD)
	case OpAwait:
		peer := 1 - e.me
		if !e.m.until(e.me, func() bool { return e.m.done[peer] >= s.Until || e.m.finished[peer] }) {
			return errStuck
		}
	case OpStall:
		peer := 1 - e.me
		if !e.m.until(e.me, func() bool { return e.m.idle[peer] || e.m.finished[peer] }) {
			return errStuck
		}
	case OpClose:
		e.close(false)
	case OpReset:
		e.close(true)
	}
	return nil
}

// awaitHandshake waits for the end of a handshake that the first write has begun (Fast
// Open). Who shuts down or closes earlier gives the connection up. Over the loopback device
// there is no earlier: there the handshake is over when the write returns.
func (e *runner) awaitHandshake() {
	const synSent = 2 // TCP_SYN_SENT
	for time.Now().Before(e.m.deadline) {
		info, err := unix.GetsockoptTCPInfo(e.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil || info.State != synSent {
			return
		}
		p := []unix.PollFd{{Fd: int32(e.fd), Events: unix.POLLOUT}}
		_, _ = unix.Poll(p, int(slice.Milliseconds()))
	}
}

func (e *runner) close(reset bool) {
	e.awaitHandshake()
	e.seen.Unread, _ = unix.IoctlGetInt(e.fd, unix.SIOCINQ)
	if reset {
		_ = unix.SetsockoptLinger(e.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	e.seen.Closed, e.seen.ClosedAt = true, e.m.tick()
	if !reset && e.seen.Unread == 0 && !e.seen.Ended {
		e.seen.Ended, e.seen.EndedAt = true, e.seen.ClosedAt
	}
	unix.Close(e.fd)
}

// toTheEnd is more than any stream has.
const toTheEnd = math.MaxInt32

// move does the steps that send, read, or both.
func (e *runner) move(s Step) error {
	left := s.writes()
	e.goal += int64(s.reads())
	for {
		sends := left > 0 && e.seen.SendErr == ""
		reads := e.seen.Read < e.goal && !e.atEnd && !e.hasUrgent()
		if !sends && !reads {
			return nil
		}
		var events int16
		moved := false
		if sends {
			n, again := e.send(s, left)
			left -= n
			moved = moved || !again
			if again {
				events |= unix.POLLOUT
			}
		}
		if reads {
			wants, again := e.read(s.Chunk)
			moved = moved || !again
			events |= wants
		}
		if moved {
			if time.Now().After(e.m.deadline) {
				return errStuck
			}
			continue
		}
		if err := e.poll(events); err != nil {
			return err
		}
	}
}

// hasUrgent says whether all that is left to read is urgent data that has been
// announced: no read returns it, and one that passes it needs a byte behind it.
func (e *runner) hasUrgent() bool {
	if !e.announced {
		return false
	}
	at := e.seen.Read
	for _, u := range e.peerUrgents[e.passed:e.m.urgent[1-e.me].Load()] {
		if u != at || at == e.goal {
			break
		}
		at++
	}
	return at == e.goal
}

// poll waits until something can be moved.
func (e *runner) poll(events int16) error {
	e.m.set(func() { e.m.idle[e.me] = true })
	p := []unix.PollFd{{Fd: int32(e.fd), Events: events}}
	for {
		left := time.Until(e.m.deadline)
		if left <= 0 {
			return errStuck
		}
		if e.announced {
			left = slice // no event tells of a later urgent byte, see hasUrgent
		}
		n, err := unix.Poll(p, int(left.Milliseconds())+1)
		if err != nil && err != unix.EINTR {
			return err
		}
		if n > 0 || e.announced {
			e.m.set(func() { e.m.idle[e.me] = false })
			return nil
		}
	}
}

// send makes one call; again says that there is no room.
func (e *runner) send(s Step, left int) (n int, again bool) {
	flags := unix.MSG_NOSIGNAL
	var data []byte
	if s.Op == OpUrgent {
		flags |= unix.MSG_OOB
		data = []byte{urgentByte(e.sentUrgents)}
		e.m.urgent[e.me].Store(int64(e.sentUrgents + 1))
	} else {
		data = ordinary(e.me, e.seen.Sent, min(left, max(s.Chunk, 1)))
	}
	if s.More {
		flags |= unix.MSG_MORE
	}
	n, err := unix.SendmsgN(e.fd, data, nil, nil, flags)
	switch err {
	case nil:
		e.seen.Sent += int64(n)
		if s.Op == OpUrgent {
			e.sentUrgents++
		}
		return n, false
	case unix.EAGAIN:
		return 0, true
	case unix.EINTR:
		return 0, false
	}
	e.seen.SendErr, e.seen.SendErrAt = errnoName(err), e.m.tick()
	e.resetTaken = err == unix.ECONNRESET || err == unix.ECONNREFUSED
	return 0, false
}

// read makes one call; again says that nothing has come, and wants what to wait
// for.
func (e *runner) read(chunk int) (wants int16, again bool) {
	n := int(min(e.goal-e.seen.Read, int64(len(e.buf)), int64(max(chunk, 1))))
	if !e.script.InLine && e.passed < len(e.peerUrgents) {
		before := e.peerUrgents[e.passed] - e.seen.Read
		if before == 0 {
			return e.readUrgent()
		}
		n = int(min(int64(n), before))
	}
	n, _, err := unix.Recvfrom(e.fd, e.buf[:n], 0)
	if n > 0 && err == nil {
		e.pass(e.buf[:n])
		return 0, false
	}
	return e.ended(err)
}

func (e *runner) pass(got []byte) {
	if e.seen.Wrong == "" {
		e.seen.Wrong = verify(1-e.me, e.seen.Read, e.peerUrgents, got)
	}
	e.seen.Read += int64(len(got))
	for e.passed < len(e.peerUrgents) && e.peerUrgents[e.passed] < e.seen.Read {
		e.passUrgent(UrgentInLine)
	}
}

func (e *runner) passUrgent(state UrgentState) {
	e.seen.Urgent = append(e.seen.Urgent, state)
	e.passed++
	e.announced = false
}

// ended notes how a read ended that has brought nothing.
func (e *runner) ended(err error) (wants int16, again bool) {
	switch {
	case err == unix.EAGAIN:
		return unix.POLLIN, true
	case err == unix.EINTR:
		return 0, false
	case err == unix.ECONNRESET, err == nil && e.resetTaken:
		e.seen.End = ResetEnd
	case err == nil:
		e.seen.End = CleanEnd
	default:
		e.seen.End = OtherEnd
	}
	e.seen.EndAt = e.m.tick()
	e.atEnd = true
	return 0, false
}

// readUrgent reads on where the peer's next byte is urgent, and is to be out of
// line. Its announcement may come after the look for it, so the look is repeated
// once the byte behind it can be seen, before that is read.
func (e *runner) readUrgent() (wants int16, again bool) {
	e.lookForUrgent()
	var one [1]byte
	n, _, err := unix.Recvfrom(e.fd, one[:], unix.MSG_PEEK)
	if err == unix.EAGAIN {
		if e.hasUrgent() {
			return 0, false
		}
		if e.announced {
			return unix.POLLIN, true
		}
		return unix.POLLIN | unix.POLLPRI, true
	}
	if err != nil {
		return e.ended(err)
	}
	if n == 1 && one[0] == urgentByte(e.passed) {
		_, _, _ = unix.Recvfrom(e.fd, one[:], 0)
		e.seen.Read++
		e.passUrgent(UrgentInLine)
		return 0, false
	}
	e.lookForUrgent()
	switch {
	case e.announced || e.taken[e.passed%len(e.taken)]:
		e.seen.Read++
		e.passUrgent(UrgentOutside)
	case n == 0: // it may not have been sent
		return e.ended(nil)
	default:
		e.seen.Read++
		e.passUrgent(UrgentVanished)
	}
	return 0, false
}

// lookForUrgent notes whether the next byte, which is urgent, is announced, and takes it if the
// script wants that.
func (e *runner) lookForUrgent() {
	if at, err := unix.IoctlGetInt(e.fd, unix.SIOCATMARK); err == nil && at != 0 {
		e.announced = true
	}
	if !e.script.TakesUrgent {
		return
	}
	var one [1]byte
	n, _, err := unix.Recvfrom(e.fd, one[:], unix.MSG_OOB)
	if n != 1 || err != nil {
		return
	}
	number := int(one[0] &^ urgentBit)
	if one[0]&urgentBit == 0 {
		if number = e.urgentAtMark(); number < 0 {
			if e.seen.Wrong == "" {
				e.seen.Wrong = fmt.Sprintf("an ordinary byte as urgent data, at %d", e.seen.Read)
			}
			return
		}
	}
	e.taken[number%len(e.taken)] = true
	e.announced = true // which nothing else tells any more
}

// urgentAtMark returns the number of the peer's urgent byte at the mark, if that byte has not
// arrived; -1: no urgent byte belongs there. A segment that begins just behind the mark may arrive
// first. Linux (6.18 at least) then looks for the urgent byte in that segment, and returns a byte
// of its header.
func (e *runner) urgentAtMark() int {
	before, err := unix.IoctlGetInt(e.fd, unix.SIOCINQ)
	if err != nil {
		return -1
	}
	at := e.seen.Read + int64(before)
	number := slices.Index(e.peerUrgents, at)
	if number < 0 {
		// The next byte is urgent too. Once a later mark is announced, Linux has skipped it, and
		// counts from the byte behind it.
		number = slices.Index(e.peerUrgents, at+1)
	}
	return number
}

func errnoName(err error) string {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

func sockaddr(a netip.AddrPort, family int) unix.Sockaddr {
	if family == unix.AF_INET {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().Unmap().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

func addrPort(of unix.Sockaddr) netip.AddrPort {
	switch of := of.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(of.Addr), uint16(of.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(of.Addr).Unmap(), uint16(of.Port))
	}
	return netip.AddrPort{}
}

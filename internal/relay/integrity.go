package relay

import (
	"context"
	"net/netip"
	"os"
	"sync/atomic"

	report "longhaul/internal/flow"

	"golang.org/x/sys/unix"

	"longhaul/internal/connsource"
	"longhaul/internal/proxyproto"
)

// IntegrityServer answers integrity checks on the flows of a tunnel.
type IntegrityServer interface {
	// Recognize classifies the first bytes from a client, at most helloPeek. It
	// runs on an event loop and must not block.
	Recognize(first []byte) Recognition

	// Serve answers a check in its own goroutine, and bounds the number of
	// concurrent checks. It reports whether the flow continues as an ordinary
	// flow. It must return soon after ctx has ended, and leaves the sockets
	// open.
	Serve(ctx context.Context, c IntegrityCheck) (goOn bool)
}

// Recognition classifies the first bytes of a client.
type Recognition uint8

// The classes of first bytes.
const (
	NoHello Recognition = iota
	MaybeHello
	IsHello
)

// IntegrityCheck is a flow that turned out to be an integrity check.
type IntegrityCheck struct {
	Client  *os.File
	Target  *os.File // nil: no target accepted, End and Err hold the cause
	From    netip.AddrPort
	Source  netip.Addr // the source of From, see [connsource]
	Listen  netip.AddrPort
	Forward string         // the target as configured
	Dialed  netip.AddrPort // zero: nothing was dialed
	End     report.EndReason
	Err     error

	Sent     int64  // bytes of the target that were sent to the client
	ToClient []byte // bytes of the target to send first
	ToTarget []byte // bytes of a PROXY header to send first
}

const (
	helloPeek        = 256          // bytes of a client to inspect
	helloHold        = int64(300e6) // ns that an incomplete hello waits for the rest
	helloAwaited     = int64(1e9)   // ns for a client to send a hello after every target failed
	integrityConnect = int64(2e9)   // ns for a check's target to accept
	maxAwaitedHellos = 64           // clients of one tunnel within helloAwaited
)

// looking says whether a flow may be a check.
type looking uint8

const (
	lookNever     looking = iota // it is not, or the tunnel has no integrity server
	lookFirst                    // the client has sent nothing, or part of a hello
	lookIntegrity                // it is a check
)

// integrityCounts counts a tunnel's checks.
type integrityCounts struct {
	awaited, total atomic.Int64
}

// serving is the state of a flow while the integrity server has its sockets.
type serving struct {
	files  [2]*os.File // by leg; nil: no socket
	cancel context.CancelFunc
}

// look inspects the client's first bytes and decides whether the flow is a
// check.
func (w *worker) look(f *flow) {
	l := &f.legs[client]
	n, errno := peek(int(l.fd), w.buf[:helloPeek])
	switch {
	case errno == unix.EAGAIN:
		l.readable = false
		return
	case errno == unix.EINTR:
		return
	case errno != 0:
		l.failed = errno // the peek consumed the error: the next read returns an end
		f.look = lookNever
		return
	case n == 0:
		f.look = lookNever // the next read finds the end
		return
	}
	switch f.route.tunnel.Integrity.Recognize(w.buf[:n]) {
	case IsHello:
		f.look = lookIntegrity
	case MaybeHello:
		if f.holdUntil == 0 {
			f.holdUntil = w.now + helloHold
		}
		if l.hungUp {
			f.look = lookNever
		}
	default:
		f.look = lookNever
	}
}

// undecided reports whether the client's bytes must wait because they may be a
// check. It hands a check to the integrity server.
func (w *worker) undecided(f *flow) bool {
	w.look(f)
	switch f.look {
	case lookIntegrity:
		w.takeOver(f)
		return true
	case lookFirst:
		w.schedule(f)
		return true
	}
	return false
}

// lookWhileDialing is look for a flow whose target has not accepted yet. A
// check waits less time for its target than other flows.
func (w *worker) lookWhileDialing(f *flow) {
	o := f.opening
	if f.look == lookFirst {
		w.look(f)
		if f.look == lookIntegrity {
			o.deadline = min(o.deadline, f.start+integrityConnect)
			o.attempt = min(o.attempt, o.deadline)
			w.timers.schedule(f, o.deadline)
		}
	}
	if !o.awaited {
		return
	}
	switch f.look {
	case lookIntegrity:
		w.takeOver(f)
	case lookNever:
		w.abort(f, o.reason, o.err)
	}
}

// awaitHello keeps a flow without a target while it may still be a check, so
// that the check learns the cause. It returns false for other flows.
func (w *worker) awaitHello(f *flow) bool {
	if f.look == lookFirst {
		w.look(f)
	}
	switch f.look {
	case lookNever:
		return false
	case lookIntegrity:
		w.takeOver(f)
		return true
	}
	counts := &f.route.state.integrity
	if counts.awaited.Add(1) > maxAwaitedHellos {
		counts.awaited.Add(-1)
		return false
	}
	f.opening.awaited = true
	w.timers.remove(f)
	w.timers.schedule(f, w.now+helloAwaited)
	return true
}

// stopAwaitingHello removes a flow from the count of awaited hellos.
func (w *worker) stopAwaitingHello(f *flow) {
	if f.opening != nil && f.opening.awaited {
		f.opening.awaited = false
		f.route.state.integrity.awaited.Add(-1)
	}
}

// takeOver hands a flow's sockets to the integrity server.
func (w *worker) takeOver(f *flow) {
	f.route.state.integrity.total.Add(1)
	f.look, f.isIntegrity = lookNever, true
	c := IntegrityCheck{
		From:    f.client,
		Source:  connsource.OfAddr(f.client.Addr()),
		Listen:  w.listenAddr(f),
		Forward: f.hopName(),
		Dialed:  f.target,
		Sent:    max(0, f.dirs[down].bytes),
	}
	if o := f.opening; o != nil {
		c.End, c.Err = o.reason, o.err
		w.stopAwaitingHello(f)
		w.endAwaitFD(o)
		w.openings.put(o)
		f.opening = nil
	} else if l := &f.legs[target]; l.failed != 0 {
		c.End, c.Err = legFailure(target, l.failed), l.failed
		w.dropAttempt(f)
	}
	w.timers.remove(f)
	w.unration(f)
	f.phase = phaseIntegrity
	taken := &serving{}
	f.serving = taken
	var whole bool
	if c.ToTarget, whole = w.takeHeld(&f.dirs[up]); whole {
		c.ToClient, whole = w.takeHeld(&f.dirs[down])
	}
	for s := client; s <= target; s++ {
		if fd := int(f.legs[s].fd); fd >= 0 {
			epollDel(w.epfd, fd)
			setsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1)
			taken.files[s] = os.NewFile(uintptr(fd), "check")
			f.legs[s].fd = -1
		}
	}
	var ctx context.Context
	ctx, taken.cancel = context.WithCancel(context.Background())
	if !whole {
		w.abort(f, report.EndCheck, unix.EIO)
		return
	}
	c.Client, c.Target = taken.files[client], taken.files[target]
	slot, gen, server := f.slot, f.gen, f.route.tunnel.Integrity
	w.relay.integrity.Go(func() {
		goOn := server.Serve(ctx, c)
		w.post(func() { w.served(slot, gen, goOn) })
	})
}

// takeHeld removes and returns the bytes that a direction holds.
func (w *worker) takeHeld(dir *direction) (held []byte, whole bool) {
	if dir.held > 0 && dir.own == nil && !w.unsplice(dir) {
		return nil, false
	}
	if dir.held > 0 {
		held = append(held, dir.own[len(dir.own)-dir.held:]...)
		if dir.bytes < 0 {
			dir.bytes += int64(len(held)) // a PROXY header, which does not count
		}
	}
	w.discard(dir)
	return held, true
}

// served continues or ends a flow whose check was answered.
func (w *worker) served(slot, gen uint32, goOn bool) {
	f := w.lookup(slot, gen)
	if f == nil || f.phase != phaseIntegrity {
		return
	}
	if !goOn || !w.resume(f) {
		f.serving.endCleanly()
		w.abort(f, report.EndCheck, nil)
	}
}

// resume turns a check's flow into an ordinary flow.
func (w *worker) resume(f *flow) bool {
	var fds [2]int
	for s, file := range f.serving.files {
		fd := -1
		if file != nil {
			fd = duplicate(file)
		}
		if fd < 0 {
			if s == int(target) {
				closeFD(fds[client])
			}
			return false
		}
		fds[s] = fd
	}
	f.serving.close()
	f.serving = nil
	f.phase = phaseMoving
	f.active = w.now
	for s := client; s <= target; s++ {
		was := f.legs[s]
		f.legs[s] = leg{fd: int32(fds[s]), readable: true, writable: true, urgent: was.urgent, setup: was.setup}
	}
	for s := client; s <= target; s++ {
		if errno := w.watch(fds[s], f, s); errno != 0 {
			w.abort(f, report.EndNoResources, errno)
			return true
		}
	}
	w.schedule(f)
	w.run(f)
	return true
}

// duplicate returns a descriptor of a file's socket that stays open when the
// file is closed; -1 on failure.
func duplicate(file *os.File) int {
	fd := -1
	if raw, err := file.SyscallConn(); err == nil {
		_ = raw.Control(func(from uintptr) {
			if dup, err := unix.FcntlInt(from, unix.F_DUPFD_CLOEXEC, 0); err == nil {
				fd = dup
			}
		})
	}
	return fd
}

// endCleanly makes the sockets end without a reset when they are closed.
func (c *serving) endCleanly() {
	for _, file := range c.files {
		if file == nil {
			continue
		}
		if raw, err := file.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { setLinger(int(fd), false) })
		}
	}
}

// close cancels the check and closes its sockets.
func (c *serving) close() {
	c.cancel()
	for _, file := range c.files {
		if file != nil {
			_ = file.Close()
		}
	}
}

// integrityGone removes an ending flow from the counts of checks.
func (w *worker) integrityGone(f *flow) {
	w.stopAwaitingHello(f)
	f.serving = nil
}

// recvHeader reads part of a PROXY header. In a tunnel with an integrity server
// it consumes no byte behind the header.
func (w *worker) recvHeader(f *flow) (int, unix.Errno) {
	fd := int(f.legs[client].fd)
	limit := proxyproto.MaxLen
	if f.look != lookNever {
		n, errno := peek(fd, w.buf[:limit])
		if n <= 0 || errno != 0 {
			return n, errno
		}
		have := len(f.opening.header)
		_, used, err := proxyproto.Parse(append(f.opening.header[:have:have], w.buf[:n]...))
		if limit = n; err == nil {
			limit = used - have
		}
	}
	return recv(fd, w.buf[:limit])
}

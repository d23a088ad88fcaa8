package relay

import (
	"context"
	"net/netip"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"longhaul/internal/connsource"
	"longhaul/internal/proxyproto"
)

// Checker answers integrity checks on the flows of a tunnel.
type Checker interface {
	// Recognize says whether the first bytes from a client begin a check, of
	// which it sees helloPeek at the most. It runs on an event loop and must
	// not block.
	Recognize(first []byte) Recognition

	// Serve answers a check, in a goroutine of its own, and bounds how many it
	// answers at a time. It returns whether the flow is to go on as any other.
	// It must return soon after ctx has ended, and leaves the sockets open.
	Serve(ctx context.Context, c Checked) (goOn bool)
}

// Recognition is what the first bytes of a client are.
type Recognition uint8

// The recognitions.
const (
	NotCheck Recognition = iota
	MaybeCheck
	IsCheck
)

// Checked is a flow that turned out to be a check.
type Checked struct {
	Client  *os.File
	Target  *os.File // nil: none could be had, End and Err say why
	From    netip.AddrPort
	Source  netip.Addr // of From, see [connsource]
	Listen  netip.AddrPort
	Forward string         // the target as it is configured
	Dialed  netip.AddrPort // zero: none
	End     EndReason
	Err     error

	Sent     int64  // bytes of the target that the client was sent
	ToClient []byte // bytes that are to be sent before all else: of the target,
	ToTarget []byte // and those of a PROXY header
}

const (
	helloPeek    = 256          // bytes of a client that are looked at
	helloHold    = int64(300e6) // ns that the beginning of a hello waits for the rest
	helloAwaited = int64(1e9)   // ns that a client whose target could not be had has to show that it is a check
	checkConnect = int64(2e9)   // ns that a check's target has to accept
	mostAwaited  = 64           // clients that are so waited for, of a tunnel
)

// looking is how far it is known whether a flow is a check.
type looking uint8

const (
	lookNever looking = iota // it is not, or nobody wants to know
	lookFirst                // the client has sent nothing, or only a part
	lookCheck                // it is
)

// checkCounts are those of a tunnel.
type checkCounts struct {
	awaited, total atomic.Int64
}

// checked is what a flow needs while it is a check.
type checked struct {
	files  [2]*os.File // by leg; nil: there is none
	cancel context.CancelFunc
}

// look decides whether a flow is a check by the first bytes of its client.
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
		l.failed = errno // looking has taken the error: what is left reads as an end
		f.look = lookNever
		return
	case n == 0:
		f.look = lookNever // whoever reads will find the end
		return
	}
	switch f.route.tunnel.Checker.Recognize(w.buf[:n]) {
	case IsCheck:
		f.look = lookCheck
	case MaybeCheck:
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

// undecided says whether the client's bytes have to wait, because they may be a
// check. One that is is taken over.
func (w *worker) undecided(f *flow) bool {
	w.look(f)
	switch f.look {
	case lookCheck:
		w.takeOver(f)
		return true
	case lookFirst:
		w.schedule(f)
		return true
	}
	return false
}

// lookWhileDialing is look for a flow whose target has not accepted yet. A check
// does not wait for that as long as others do.
func (w *worker) lookWhileDialing(f *flow) {
	o := f.opening
	if f.look == lookFirst {
		w.look(f)
		if f.look == lookCheck {
			o.deadline = min(o.deadline, f.start+checkConnect)
			o.attempt = min(o.attempt, o.deadline)
			w.timers.schedule(f, o.deadline)
		}
	}
	if !o.awaited {
		return
	}
	switch f.look {
	case lookCheck:
		w.takeOver(f)
	case lookNever:
		w.abort(f, o.reason, o.err)
	}
}

// awaitHello keeps a flow for which no target could be had, as it may be a check
// that wants to know. It returns false for others.
func (w *worker) awaitHello(f *flow) bool {
	if f.look == lookFirst {
		w.look(f)
	}
	switch f.look {
	case lookNever:
		return false
	case lookCheck:
		w.takeOver(f)
		return true
	}
	counts := &f.route.state.checks
	if counts.awaited.Add(1) > mostAwaited {
		counts.awaited.Add(-1)
		return false
	}
	f.opening.awaited = true
	w.timers.remove(f)
	w.timers.schedule(f, w.now+helloAwaited)
	return true
}

// awaitedNoMore takes a flow from those whose hello is waited for.
func (w *worker) awaitedNoMore(f *flow) {
	if f.opening != nil && f.opening.awaited {
		f.opening.awaited = false
		f.route.state.checks.awaited.Add(-1)
	}
}

// takeOver hands a flow's sockets to the checker.
func (w *worker) takeOver(f *flow) {
	f.route.state.checks.total.Add(1)
	f.look, f.isCheck = lookNever, true
	c := Checked{
		From:    f.client,
		Source:  connsource.OfAddr(f.client.Addr()),
		Listen:  w.listenAddr(f),
		Forward: f.hopName(),
		Dialed:  f.target,
		Sent:    max(0, f.dirs[down].bytes),
	}
	if o := f.opening; o != nil {
		c.End, c.Err = o.reason, o.err
		w.awaitedNoMore(f)
		w.fed(o)
		w.openings.put(o)
		f.opening = nil
	} else if l := &f.legs[target]; l.failed != 0 {
		c.End, c.Err = legFailure(target, l.failed), l.failed
		w.dropAttempt(f)
	}
	w.timers.remove(f)
	w.unration(f)
	f.phase = phaseChecked
	taken := &checked{}
	f.checked = taken
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
		w.abort(f, EndCheck, unix.EIO)
		return
	}
	c.Client, c.Target = taken.files[client], taken.files[target]
	slot, gen, checker := f.slot, f.gen, f.route.tunnel.Checker
	w.relay.checks.Go(func() {
		goOn := checker.Serve(ctx, c)
		w.post(func() { w.served(slot, gen, goOn) })
	})
}

// takeHeld takes what a direction holds.
func (w *worker) takeHeld(dir *direction) (held []byte, whole bool) {
	if dir.held > 0 && dir.own == nil && !w.unsplice(dir) {
		return nil, false
	}
	if dir.held > 0 {
		held = append(held, dir.own[len(dir.own)-dir.held:]...)
		if dir.bytes < 0 {
			dir.bytes += int64(len(held)) // a header, which does not count
		}
	}
	w.discard(dir)
	return held, true
}

// served goes on with a flow whose check has been answered.
func (w *worker) served(slot, gen uint32, goOn bool) {
	f := w.lookup(slot, gen)
	if f == nil || f.phase != phaseChecked {
		return
	}
	if !goOn || !w.resume(f) {
		f.checked.endCleanly()
		w.abort(f, EndCheck, nil)
	}
}

// resume makes a flow of a check what any other is.
func (w *worker) resume(f *flow) bool {
	var fds [2]int
	for s, file := range f.checked.files {
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
	f.checked.close()
	f.checked = nil
	f.phase = phaseMoving
	f.active = w.now
	for s := client; s <= target; s++ {
		was := f.legs[s]
		f.legs[s] = leg{fd: int32(fds[s]), readable: true, writable: true, urgent: was.urgent, setup: was.setup}
	}
	for s := client; s <= target; s++ {
		if errno := w.watch(fds[s], f, s); errno != 0 {
			w.abort(f, EndNoResources, errno)
			return true
		}
	}
	w.schedule(f)
	w.run(f)
	return true
}

// duplicate returns a descriptor of a file's socket that outlives the file.
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

// endCleanly has the sockets end without a reset when they are closed.
func (c *checked) endCleanly() {
	for _, file := range c.files {
		if file == nil {
			continue
		}
		if raw, err := file.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { setLinger(int(fd), false) })
		}
	}
}

// close ends whatever is being done with the sockets.
func (c *checked) close() {
	c.cancel()
	for _, file := range c.files {
		if file != nil {
			_ = file.Close()
		}
	}
}

// checkGone takes a flow that ends from the counts.
func (w *worker) checkGone(f *flow) {
	w.awaitedNoMore(f)
	f.checked = nil
}

// recvHeader reads what may be a part of a PROXY header. Where checks are looked
// for it takes nothing of what is behind the header.
func (w *worker) recvHeader(f *flow) (int, unix.Errno) {
	fd := int(f.legs[client].fd)
	most := proxyproto.MaxLen
	if f.look != lookNever {
		n, errno := peek(fd, w.buf[:most])
		if n <= 0 || errno != 0 {
			return n, errno
		}
		have := len(f.opening.header)
		_, used, err := proxyproto.Parse(append(f.opening.header[:have:have], w.buf[:n]...))
		if most = n; err == nil {
			most = used - have
		}
	}
	return recv(fd, w.buf[:most])
}

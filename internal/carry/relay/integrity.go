package relay

import (
	"context"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/carry/proxyproto"
	"longhaul/internal/sys/connsource"
	"longhaul/internal/sys/descriptor"
	"longhaul/internal/sys/socket"
)

// IntegrityServer answers integrity checks on the flows of a tunnel.
type IntegrityServer interface {
	// Recognize classifies the first bytes from a client, at most helloPeek. It
	// runs on an event loop and must not block.
	Recognize(first []byte) Recognition

	// Serve answers a check in its own goroutine, and bounds the number of
	// concurrent checks. It reports whether the flow continues as an ordinary
	// flow. It must return soon after ctx has ended, and leaves the client's socket open, and that of
	// the target of a flow that continues. The handshake with the target may still lack its ACK.
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
	helloPeek        = 256                    // bytes of a client to inspect
	helloHold        = 300 * time.Millisecond // that an incomplete hello waits for the rest
	helloAwaited     = time.Second            // for a client to send a hello after every target failed
	integrityConnect = 2 * time.Second        // for a check's target to accept
	maxAwaitedHellos = 64                     // clients of one tunnel within helloAwaited
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

// The phases of a flow that may be an integrity check:
//
//	dialing ─ connected ─> recognizing ─ other bytes ─> moving
//	   │                        └─────── hello ───────> integrity ─ goes on ─> moving
//	   └───── no target ──> awaiting ─── hello ───────> integrity
//	                            └─────── other bytes ─> gone
//
// Bytes of the target reach the client in the recognizing phase. A client whose
// hello comes while the flow is dialing gets less time for its target.

// beginRecognition prepares a flow that begins to dial.
func (w *worker) beginRecognition(f *flow) {
	if f.route.tunnel.Integrity == nil {
		return
	}
	f.hello = MaybeHello
	if f.legs[client].readable {
		w.recognizeEarly(f)
	}
}

// recognizeEarly inspects the client's first bytes while the flow has no target.
func (w *worker) recognizeEarly(f *flow) {
	if f.hello != MaybeHello {
		return
	}
	switch w.peekHello(f); {
	case f.hello == MaybeHello:
	case f.phase == phaseAwaiting && f.hello == IsHello:
		w.takeOver(f)
	case f.phase == phaseAwaiting:
		w.abort(f, f.opening.reason, f.opening.err)
	case f.hello == IsHello:
		o := f.opening
		o.brief = true
		o.deadline = min(o.deadline, f.start+integrityConnect)
		o.attempt = min(o.attempt, o.deadline)
		w.timers.schedule(f, o.deadline)
	}
}

// awaitHello begins the awaiting phase: an integrity check learns why it has no
// target. It returns false for other flows.
func (w *worker) awaitHello(f *flow) bool {
	if f.hello == MaybeHello {
		w.peekHello(f)
	}
	switch f.hello {
	case NoHello:
		return false
	case IsHello:
		w.takeOver(f)
		return true
	}
	counts := &f.route.state.integrity
	if counts.awaited.Add(1) > maxAwaitedHellos {
		counts.awaited.Add(-1)
		return false
	}
	f.phase = phaseAwaiting
	w.timers.remove(f)
	w.timers.schedule(f, w.now+helloAwaited)
	return true
}

// recognizing begins the recognizing phase of a connected flow that may be an
// integrity check. It returns false if the integrity server has the flow.
func (w *worker) recognizing(f *flow) bool {
	switch f.hello {
	case IsHello:
		w.takeOver(f)
		return false
	case MaybeHello:
		f.phase = phaseRecognizing
		if f.holdUntil != 0 {
			w.timers.schedule(f, f.holdUntil)
		}
	}
	return true
}

// recognize inspects the client's first bytes in the recognizing phase, once a
// PROXY header is written. It returns true if the flow is ordinary.
func (w *worker) recognize(f *flow) bool {
	if !w.pump(f, up, 0) {
		return false
	}
	switch w.peekHello(f); f.hello {
	case MaybeHello:
		if f.holdUntil != 0 {
			w.timers.schedule(f, f.holdUntil)
		}
		return false
	case IsHello:
		w.takeOver(f)
		return false
	}
	f.phase = phaseMoving
	return true
}

// holdDue ends the wait for the rest of a hello once its time is over.
func (w *worker) holdDue(f *flow) {
	switch {
	case f.phase != phaseRecognizing || f.holdUntil == 0:
	case w.now < f.holdUntil:
		w.timers.schedule(f, f.holdUntil)
	default:
		f.hello, f.phase = NoHello, phaseMoving
		w.run(f)
	}
}

// peekHello decides by the client's first bytes whether they are a hello. They
// stay in the socket.
func (w *worker) peekHello(f *flow) {
	l := &f.legs[client]
	n, errno := socket.Peek(int(l.fd), w.buf[:helloPeek])
	switch {
	case errno == unix.EAGAIN:
		l.readable = false
		return
	case errno == unix.EINTR:
		return
	case errno != 0:
		l.failed = errorNumber(errno) // the peek consumed the error: the next read returns an end
		f.hello = NoHello
		return
	case n == 0:
		f.hello = NoHello // the next read finds the end
		return
	}
	f.hello = f.route.tunnel.Integrity.Recognize(w.buf[:n])
	if f.hello != MaybeHello {
		return
	}
	if f.holdUntil == 0 {
		f.holdUntil = w.now + helloHold
	}
	if l.hungUp {
		f.hello = NoHello
	}
}

// leaveIntegrity removes an ending flow from the count of awaited hellos, and
// ends its integrity check.
func (w *worker) leaveIntegrity(f *flow) {
	w.stopAwaiting(f)
	if f.serving != nil {
		f.serving.close()
		f.serving = nil
	}
}

func (w *worker) stopAwaiting(f *flow) {
	if f.phase == phaseAwaiting {
		f.route.state.integrity.awaited.Add(-1)
	}
}

// takeOver begins the integrity phase: the integrity server gets the flow's
// sockets.
func (w *worker) takeOver(f *flow) {
	f.route.state.integrity.total.Add(1)
	w.stopAwaiting(f)
	w.timers.remove(f)
	w.unration(f)
	w.setUpLegs(f)
	if f.legs[target].fd >= 0 {
		f.legs[target].noDelay(1, 0)
	}
	f.phase, f.hello, f.isIntegrity = phaseIntegrity, NoHello, true
	c := w.describe(f)
	c.End, c.Err = w.endOpening(f)
	var whole bool
	if c.ToTarget, whole = w.takeHeld(f, up); whole {
		c.ToClient, whole = w.takeHeld(f, down)
	}
	ctx := w.detach(f)
	if !whole {
		w.abort(f, report.EndCheck, unix.EIO)
		return
	}
	c.Client, c.Target = f.serving.files[client], f.serving.files[target]
	slot, gen, server := f.slot, f.gen, f.route.tunnel.Integrity
	w.relay.integrity.Go(func() {
		goOn := server.Serve(ctx, c)
		w.post(func() { w.served(slot, gen, goOn) })
	})
}

// describe returns the addresses and the count of bytes of a flow.
func (w *worker) describe(f *flow) IntegrityCheck {
	return IntegrityCheck{
		From:    f.client,
		Source:  connsource.OfAddr(f.client.Addr()),
		Listen:  w.listenAddr(f),
		Forward: f.hopName(),
		Dialed:  f.target(),
		Sent:    max(0, f.dirs[down].bytes),
	}
}

// endOpening ends a flow's attempts to connect. It returns why the flow has no
// target, empty if it has one.
func (w *worker) endOpening(f *flow) (report.EndReason, error) {
	if o := f.opening; o != nil {
		reason, err := o.reason, o.err
		w.endAwaitFD(o)
		w.openings.put(o)
		f.opening = nil
		return reason, err
	}
	if errno := unix.Errno(f.legs[target].failed); errno != 0 {
		w.dropAttempt(f)
		return legFailure(target, errno), errno
	}
	return "", nil
}

// detach takes a flow's sockets from the event loop. The context ends with the
// flow.
func (w *worker) detach(f *flow) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	f.serving = &serving{cancel: cancel}
	setsockoptInt(int(f.legs[client].fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1)
	if f.route.tunnel.SourceClient { // the server could not connect from the client's address
		setsockoptInt(int(f.legs[target].fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1)
	}
	for s := client; s <= target; s++ {
		if fd := int(f.legs[s].fd); fd >= 0 {
			epollDel(w.epfd, fd)
			f.serving.files[s] = os.NewFile(uintptr(fd), "check")
			f.legs[s].fd = -1
		}
	}
	return ctx
}

// takeHeld removes and returns the bytes that a direction holds.
func (w *worker) takeHeld(f *flow, s side) (held []byte, whole bool) {
	dir := &f.dirs[s]
	if dir.held > 0 && dir.own == nil && !w.unsplice(dir) {
		return nil, false
	}
	if dir.held > 0 {
		held = append(held, dir.unwritten()...)
		if dir.bytes < 0 {
			w.count(f, s, dir.bytes+int64(len(held))) // a PROXY header, which does not count
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
			fd, _ = descriptor.Duplicate(file)
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

// recvHeader reads part of a PROXY header. In a tunnel with an integrity server
// it consumes no byte behind the header.
func (w *worker) recvHeader(f *flow) (int, unix.Errno) {
	fd := int(f.legs[client].fd)
	limit := proxyproto.MaxLen
	if f.route.tunnel.Integrity != nil {
		n, errno := socket.Peek(fd, w.buf[:limit])
		if n <= 0 || errno != 0 {
			return n, errno
		}
		have := len(f.opening.header)
		_, used, err := proxyproto.Parse(append(f.opening.header[:have:have], w.buf[:n]...))
		if limit = n; err == nil {
			limit = used - have
		}
	}
	return socket.Recv(fd, w.buf[:limit])
}

package relay

import (
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	eventsPerWait  = 256
	acceptsPerTurn = 16
	acceptRetry    = int64(100e6) // ns until accepting is tried again after the system ran out of something
	acceptSettled  = int64(1e9)   // ns without trouble after which accepting counts as recovered
	youth          = int64(1e9)   // ns after which a flow counts as one that lasts
	ackDelayFirst  = int64(1e6)   // ns until a leg's queue is looked at again, doubling
	ackDelayMost   = int64(64e6)
)

// What an epoll event belongs to: the low bits of its data's second word.
const (
	kindLeg      = 0 // plus the side
	kindListener = 2
	kindWake     = 3
	kindBits     = 2
)

// worker is one event loop: an epoll instance, the flows it accepted, and
// everything they need. Only its goroutine touches any of it, but for mail
// and the atomics.
type worker struct {
	relay *Relay
	log   *slog.Logger
	epfd  int
	wake  int // eventfd
	spare int // a descriptor in reserve, so that a client that was accepted can also be connected
	clock func() int64
	now   int64
	batch uint64 // of events, the one that is being dispatched or was last

	slots []slot
	free  []uint32
	load  atomic.Int64 // flows

	timers     timers
	queue      []*flow // have work left after their turn
	pipes      pipePool
	spliceMost int          // bytes that a pipe may be given at once; less while memory is short
	buf        []byte       // what is read here is written or kept before the next read
	buffers    [][]byte     // idle buffers for what could not be written
	flows      spares[flow] // closed ones; only the run list may still hold one
	openings   spares[opening]
	ended      []FlowRecord // of this turn
	algorithms [2]string    // congestion controls of the legs that ended last
	events     []unix.EpollEvent
	from       unix.RawSockaddrAny
	listeners  map[int32]*listener
	local      map[netip.Addr]locality

	paused    bool
	acceptAt  int64 // when accepting is tried again
	settledAt int64 // when it counts as recovered; 0: nothing to recover from

	lookAt       int64 // when the loop looks at what its flows hold; 0: not before something happens
	stir         bool  // something has happened since it looked
	bounding     bool  // its flows' queues are bounded
	held, queues int64 // what it found

	mail    mailbox
	pulse   pulse
	stopped bool
	done    chan struct{}
}

type slot struct {
	flow *flow
	gen  uint32
}

// mailbox brings commands from other goroutines into the loop.
type mailbox struct {
	mu     sync.Mutex
	letter []func()
	closed bool
}

func newWorker(r *Relay) (*worker, error) {
	w := &worker{
		relay:      r,
		log:        r.log,
		epfd:       -1,
		wake:       -1,
		spliceMost: pipeWanted,
		spare:      -1,
		clock:      r.opts.clock,
		buf:        make([]byte, largeRead),
		events:     make([]unix.EpollEvent, eventsPerWait),
		listeners:  map[int32]*listener{},
		done:       make(chan struct{}),
	}
	if w.clock == nil {
		w.clock = monotonic
	}
	w.now = w.clock()
	w.pipes = pipePool{open: r.opts.openPipe, budget: &r.pipeBudget}
	if w.pipes.open == nil {
		w.pipes.open = openPipe
	}
	var err error
	if w.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err == nil {
		if w.wake, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err == nil {
			ev := unix.EpollEvent{Events: unix.EPOLLIN, Pad: kindWake}
			err = unix.EpollCtl(w.epfd, unix.EPOLL_CTL_ADD, w.wake, &ev)
		}
	}
	if err != nil {
		w.closeDescriptors()
		return nil, fmt.Errorf("cannot start an event loop: %w; raise the limit of open files", err)
	}
	w.reserve()
	return w, nil
}

func (w *worker) reserve() bool {
	if w.spare < 0 {
		fd, err := unix.FcntlInt(uintptr(w.wake), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return false
		}
		w.spare = fd
	}
	return true
}

func (w *worker) closeDescriptors() {
	for _, fd := range []int{w.spare, w.wake, w.epfd} {
		if fd >= 0 {
			closeFD(fd)
		}
	}
}

func (w *worker) loop() {
	defer close(w.done)
	runtime.LockOSThread() // else the scheduler moves a busy loop from thread to thread
	defer runtime.UnlockOSThread()
	for !w.stopped {
		n, err := unix.EpollWait(w.epfd, w.events, w.timeout())
		if err != nil && err != unix.EINTR {
			panic(fmt.Sprintf("epoll_wait: %v", err)) // the descriptor is ours: a bug
		}
		w.now = w.clock()
		if n > 0 || len(w.queue) > 0 {
			w.stirred()
		}
		w.batch++
		for i := 0; i < n; i++ {
			w.dispatch(&w.events[i])
		}
		w.turnQueue()
		for f := w.timers.due(w.now); f != nil; f = w.timers.due(w.now) {
			w.due(f)
		}
		if w.lookAt != 0 && w.now >= w.lookAt {
			w.lookAtMemory()
		}
		if w.acceptAt != 0 && w.now >= w.acceptAt {
			w.retryAccepting()
		}
		if w.settledAt != 0 && w.now >= w.settledAt {
			w.settledAt = 0
			w.relay.acceptRecovered()
		}
		w.report()
	}
	w.pipes.close()
	w.closeDescriptors()
}

// timeout is how many milliseconds the loop may sleep, rounded up so that it
// does not spin shortly before a deadline.
func (w *worker) timeout() int {
	if len(w.queue) > 0 {
		return 0
	}
	at := int64(0)
	for _, t := range [...]int64{w.timers.first(), w.acceptAt, w.settledAt, w.lookAt} {
		if t != 0 && (at == 0 || t < at) {
			at = t
		}
	}
	if at == 0 {
		return -1
	}
	wait := at - w.clock()
	if wait <= 0 {
		return 0
	}
	return int(min((wait+999_999)/1_000_000, 3_600_000))
}

func (w *worker) dispatch(ev *unix.EpollEvent) {
	switch kind := ev.Pad & (1<<kindBits - 1); kind {
	case kindListener:
		if l := w.listeners[ev.Fd]; l != nil {
			w.acceptFrom(l)
		}
	case kindWake:
		w.readMail()
	default:
		if f := w.lookup(uint32(ev.Fd), uint32(ev.Pad)>>kindBits); f != nil {
			w.legEvent(f, side(kind), ev.Events)
		}
	}
}

func (w *worker) legEvent(f *flow, s side, events uint32) {
	l := &f.legs[s]
	switch f.phase {
	case phaseMoving:
		l.note(events)
		if l.fin && f.end.shut[s] {
			l.entrust()
		}
		switch {
		case f.end.awaits(s) && f.arrived(s, events):
			w.apply(f, f.end.step(eventAcked, s))
		case events&unix.EPOLLERR != 0 && !f.end.broken[s]:
			w.apply(f, f.end.step(eventBroken, s))
		}
		if f.phase == phaseMoving {
			w.run(f)
		}
	case phaseDialing:
		if s == target {
			// Else it is of an attempt that this batch has ended.
			if l.fd >= 0 && f.opening.batch != w.batch {
				w.dialed(f, events)
			}
			return
		}
		l.note(events)
		if events&unix.EPOLLERR == 0 {
			if f.look != lookNever {
				w.lookWhileDialing(f)
			}
			return
		}
		if len(f.opening.header) > 0 || unread(int(l.fd)) > 0 {
			f.opening.broken = true // the target is still to get what came before
			return
		}
		errno := l.failed
		if errno == 0 {
			errno = socketError(int(l.fd))
		}
		w.abort(f, legFailure(client, errno), errnoOrNil(errno))
	case phaseHeader:
		l.note(events)
		w.readHeader(f)
	}
}

// note keeps what an edge said until a call on the socket says otherwise.
func (l *leg) note(events uint32) {
	if events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		l.readable = true
	}
	if events&unix.EPOLLOUT != 0 {
		l.writable = true
	}
	if events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		l.hungUp = true
	}
	if events&unix.EPOLLRDHUP != 0 && events&(unix.EPOLLHUP|unix.EPOLLERR) == 0 {
		l.fin = true // a reset says RDHUP too, but never alone
	}
	if events&unix.EPOLLPRI != 0 {
		l.urgent = true
	}
}

// watch registers a leg for every event, once and for all.
func (w *worker) watch(fd int, f *flow, s side) unix.Errno {
	ev := unix.EpollEvent{
		Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLPRI | unix.EPOLLET,
		Fd:     int32(f.slot),
		Pad:    int32(f.gen<<kindBits | uint32(s)),
	}
	return epollAdd(w.epfd, fd, &ev)
}

// admit gives a flow its place in the worker's table.
func (w *worker) place(f *flow) {
	if n := len(w.free); n > 0 {
		f.slot = w.free[n-1]
		w.free = w.free[:n-1]
	} else {
		f.slot = uint32(len(w.slots))
		w.slots = append(w.slots, slot{})
	}
	s := &w.slots[f.slot]
	s.flow = f
	f.gen = s.gen
	w.load.Add(1)
}

// forget takes a closed flow out of every table.
func (w *worker) forget(f *flow) {
	f.phase = phaseGone
	w.checkGone(f)
	if f.opening != nil {
		w.fed(f.opening)
		w.openings.put(f.opening)
		f.opening = nil
	}
	w.timers.remove(f)
	w.unration(f)
	s := &w.slots[f.slot]
	s.flow = nil
	s.gen = (s.gen + 1) & (1<<(32-kindBits) - 1)
	w.free = append(w.free, f.slot)
	w.load.Add(-1)
	if w.paused {
		w.acceptAt = w.now
	}
	w.relay.flowGone(f)
	w.flows.put(f)
}

// lookup finds a flow that has not ended since its slot and generation were
// taken down.
func (w *worker) lookup(at, gen uint32) *flow {
	if int(at) >= len(w.slots) || w.slots[at].gen != gen {
		return nil
	}
	return w.slots[at].flow
}

// again gives a flow another turn after all the others.
func (w *worker) again(f *flow) {
	if !f.queued {
		f.queued = true
		w.queue = append(w.queue, f)
	}
}

func (w *worker) turnQueue() {
	n := len(w.queue)
	for i := 0; i < n; i++ {
		f := w.queue[i]
		f.queued = false
		if f.phase == phaseMoving {
			w.run(f)
		}
	}
	rest := copy(w.queue, w.queue[n:])
	clear(w.queue[rest:])
	w.queue = w.queue[:rest]
}

// buffer returns an empty buffer for what could not be written.
func (w *worker) buffer() []byte {
	if n := len(w.buffers); n > 0 {
		b := w.buffers[n-1]
		w.buffers = w.buffers[:n-1]
		return b
	}
	return make([]byte, 0, smallRead)
}

func (w *worker) recycle(b []byte) {
	if cap(b) == smallRead && len(w.buffers) < pipesKept {
		w.buffers = append(w.buffers, b[:0])
	}
}

// schedule puts an established flow's next deadline into the heap.
func (w *worker) schedule(f *flow) {
	if at := w.nextDeadline(f); at != 0 {
		w.timers.schedule(f, at)
	}
}

func (w *worker) nextDeadline(f *flow) (at int64) {
	sooner := func(t int64) {
		if at == 0 || t < at {
			at = t
		}
	}
	if f.end.deadline {
		sooner(f.closing.deadline)
		if f.closing.ackDelay != 0 {
			sooner(w.now + f.closing.ackDelay)
		}
		return at
	}
	if f.young {
		sooner(f.start + youth)
	}
	patience := func(t time.Duration) {
		sooner(f.active + int64(t))
		if f.end.waits() { // acknowledgements, of which no event tells, are a sign of life
			sooner(w.now + int64(t)/4)
		}
	}
	if idle := f.route.tunnel.IdleTimeout; idle > 0 {
		patience(idle)
	}
	if half := w.relay.opts.HalfCloseTimeout; half > 0 && f.end.halfDone() {
		patience(half)
	}
	if f.look == lookFirst && f.holdUntil != 0 {
		sooner(f.holdUntil)
	}
	return at
}

// due looks at the deadlines of a flow whose time in the heap has come.
func (w *worker) due(f *flow) {
	if f.phase != phaseMoving {
		w.openingDue(f)
		return
	}
	if f.young && w.now >= f.start+youth {
		f.young = false
		l := &f.legs[target]
		if err := f.route.tunnel.Transport.Lasting(int(l.fd), l.setup.side); err != nil {
			f.route.state.warnOnce(w.log, "leg towards the target is not set up as asked", err.Error())
		}
	}
	if f.look == lookFirst && f.holdUntil != 0 && w.now >= f.holdUntil {
		f.look = lookNever
		w.run(f)
		if f.phase != phaseMoving {
			return
		}
	}
	if w.lookForAcks(f); f.phase == phaseGone {
		return
	}
	half := w.relay.opts.HalfCloseTimeout
	idle := f.route.tunnel.IdleTimeout
	switch {
	case f.end.deadline:
		if w.now >= f.closing.deadline {
			w.apply(f, f.end.step(eventAbort, client))
			return
		}
		f.closing.ackDelay = min(2*f.closing.ackDelay, ackDelayMost)
	case idle > 0 && w.now >= f.active+int64(idle):
		w.abort(f, EndIdle, nil)
		return
	case half > 0 && f.end.halfDone() && w.now >= f.active+int64(half):
		w.abort(f, EndHalfClosed, nil)
		return
	}
	w.schedule(f)
}

// lookForAcks sees whether those who are to acknowledge what they were sent
// have, or have got on with it.
func (w *worker) lookForAcks(f *flow) {
	left := 0
	for s := client; s <= target; s++ {
		if !f.end.awaits(s) {
			continue
		}
		n := unacknowledged(int(f.legs[s].fd))
		if left += n; n > 0 {
			continue
		}
		if w.apply(f, f.end.step(eventAcked, s)); f.phase == phaseGone {
			return
		}
	}
	if left > 0 && left != f.closing.unacked {
		f.closing.unacked = left
		f.active = w.now
	}
}

// post has a function run by the loop. It is dropped once the loop has ended.
func (w *worker) post(letter func()) bool {
	w.mail.mu.Lock()
	defer w.mail.mu.Unlock()
	if w.mail.closed {
		return false
	}
	w.mail.letter = append(w.mail.letter, letter)
	if len(w.mail.letter) == 1 {
		one := [8]byte{0: 1, 7: 1} // not zero in either byte order
		_, _ = unix.Write(w.wake, one[:])
	}
	return true
}

// do has a function run by the loop and waits for it. It returns false once
// the loop has ended.
func (w *worker) do(letter func()) bool {
	ran := make(chan struct{})
	if !w.post(func() { letter(); close(ran) }) {
		return false
	}
	<-ran
	return true
}

func (w *worker) readMail() {
	var count [8]byte
	_, _ = unix.Read(w.wake, count[:])
	w.mail.mu.Lock()
	letters := w.mail.letter
	w.mail.letter = nil
	w.mail.mu.Unlock()
	for _, letter := range letters {
		letter()
	}
}

// stop ends the loop; every flow is reset. It runs in the loop.
func (w *worker) stop(reason EndReason) {
	w.eachFlow(func(f *flow) { w.leave(f, reason) })
	w.stopped = true
	w.mail.mu.Lock()
	w.mail.closed = true
	letters := w.mail.letter
	w.mail.letter = nil
	w.mail.mu.Unlock()
	for _, letter := range letters {
		letter()
	}
}

func (w *worker) eachFlow(do func(*flow)) {
	for i := range w.slots {
		if f := w.slots[i].flow; f != nil {
			do(f)
		}
	}
}

func (w *worker) setUp(f *flow, s side, tr Transport) {
	side, degraded := tr.Established(int(f.legs[s].fd), s == target)
	f.legs[s].setup = f.route.state.setup(legSetup{side, degraded})
	if degraded != "" {
		f.route.state.warnOnce(w.log, "leg is not as asked", degraded)
	}
}

// listenAddr is the address that the client connected to.
func (w *worker) listenAddr(f *flow) netip.AddrPort {
	if !f.listen.IsValid() {
		f.listen = f.route.listen
		if f.listen.Addr().IsUnspecified() {
			if a := localAddr(int(f.legs[client].fd)); a.IsValid() {
				f.listen = a
			}
		}
	}
	return f.listen
}

package relay

import (
	"container/list"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay/monotime"
	"longhaul/internal/sys/socket"
	"longhaul/internal/sys/splice"
)

const (
	eventsPerWait  = 256
	acceptsPerTurn = 4                      // their first events come with the next turn, and a descriptor for the target of each is reserved
	acceptRetry    = 100 * time.Millisecond // until accepting is tried again after resources ran out
	acceptSettled  = time.Second            // without trouble after which accepting counts as recovered
	lastingAge     = time.Second            // after which Transport.Lasting is called
	firstAckDelay  = time.Millisecond       // until a leg's queue is checked again, doubling
	maxAckDelay    = 64 * time.Millisecond
)

// The source of an epoll event: the low bits of its data's second word.
const (
	kindLeg      = 0 // plus the side
	kindListener = 2
	kindWake     = 3
	kindStranger = 4
	kindBits     = 3
)

// worker is one event loop: an epoll instance, the flows it accepted, and
// everything they need. Only its goroutine touches any of it, except the
// mailbox and the atomics.
type worker struct {
	relay *Relay
	log   *slog.Logger
	epfd  int
	wake  int                  // eventfd
	spare []int                // reserved descriptors: accepted clients must also get connections to their targets
	clock func() time.Duration // monotonic
	now   time.Duration
	batch uint64 // number of the current or latest batch of events
	// raceWon are flows of which an attempt has won in this batch: a further event may be a loser's.
	raceWon []*flow

	slots    []slot
	free     []uint32
	load     atomic.Int64 // flows
	undialed int          // flows in phaseAccepted

	timers     timers
	queue      []*flow // flows with work left after their turn
	pipes      pipePool
	maxSplice  int              // bytes per splice into a pipe; less while memory is short
	addrs      []netip.AddrPort // of a name, until their order is known
	buf        []byte           // its content is written or copied before the next read
	buffers    []*[]byte        // idle buffers for unwritten bytes
	flows      spares[flow]     // closed flows; only the run list may still refer to them
	openings   spares[opening]
	ended      []report.Record // of this turn
	algorithms [2]string       // congestion controls of the latest legs to end
	events     []unix.EpollEvent
	from       unix.RawSockaddrAny
	listeners  map[int32]*listener
	fib        fib

	strangers      map[int]*stranger // by descriptor
	strangersByAge list.List         // of *stranger, the oldest first
	strangersAt    time.Duration     // deadline of the oldest stranger; 0: no stranger

	pairedFlows int // in phasePaired

	waiters waiters
	visits  visits
	sums    sums // of this turn

	paused    bool
	acceptAt  time.Duration // next attempt to accept
	settledAt time.Duration // when accepting counts as recovered; 0: it did not fail

	measureAt    time.Duration // when the loop measures the memory of its flows; 0: after the next event
	activity     bool          // an event came since the measurement
	bounding     bool          // the flows' queues are bounded
	held, queues int64         // the measured bytes and queues

	mail    mailbox
	pulse   pulse
	stopped bool
	done    chan struct{}
}

type slot struct {
	flow *flow
	gen  uint32
	link // of a list of visits
}

// mailbox brings commands from other goroutines into the loop.
type mailbox struct {
	mu       sync.Mutex
	commands []func()
	closed   bool
}

func newWorker(r *Relay) (*worker, error) {
	w := &worker{
		relay:     r,
		log:       r.log,
		epfd:      -1,
		wake:      -1,
		maxSplice: splice.Wanted,
		clock:     r.opts.clock,
		buf:       make([]byte, largeRead),
		events:    make([]unix.EpollEvent, eventsPerWait),
		listeners: map[int32]*listener{},
		strangers: map[int]*stranger{},
		fib:       fib{fd: -1},
		done:      make(chan struct{}),
	}
	if w.clock == nil {
		w.clock = monotime.Now
	}
	w.now = w.clock()
	w.pipes = pipePool{open: r.opts.openPipe, budget: &r.pipeBudget}
	if w.pipes.open == nil {
		w.pipes.open = splice.Open
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
		return nil, fmt.Errorf("start an event loop: %w", err)
	}
	w.reserve()
	_ = w.fib.open() // else when it is needed
	return w, nil
}

func (w *worker) reserve() bool {
	for len(w.spare) < acceptsPerTurn {
		fd, err := unix.FcntlInt(uintptr(w.wake), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return false
		}
		w.spare = append(w.spare, fd)
	}
	return true
}

func (w *worker) closeDescriptors() {
	for _, fd := range append(w.spare, w.wake, w.epfd) {
		if fd >= 0 {
			closeFD(fd)
		}
	}
	w.fib.close()
}

func (w *worker) loop() {
	defer close(w.done)
	runtime.LockOSThread() // otherwise the scheduler moves a busy loop between threads
	defer runtime.UnlockOSThread()
	for !w.stopped {
		n, err := unix.EpollWait(w.epfd, w.events, w.timeout())
		if err != nil && err != unix.EINTR {
			panic(fmt.Sprintf("epoll_wait: %v", err)) // the descriptor is ours: a bug
		}
		w.now = w.clock()
		if n > 0 || len(w.queue) > 0 {
			w.noteActivity()
		}
		w.batch++
		clear(w.raceWon)
		w.raceWon = w.raceWon[:0]
		for i := 0; i < n; i++ {
			w.dispatch(&w.events[i])
		}
		for i := 0; i < n; i++ { // behind the first events of the clients that it has accepted
			w.dispatchListener(&w.events[i])
		}
		w.turnQueue()
		for f := w.timers.due(w.now); f != nil; f = w.timers.due(w.now) {
			w.due(f)
		}
		if w.measureAt != 0 && w.now >= w.measureAt {
			w.measureMemory()
		}
		if w.strangersAt != 0 && w.now >= w.strangersAt {
			w.strangersDue()
		}
		if w.waiters.lookAt != 0 && w.now >= w.waiters.lookAt {
			w.lookForHops()
		}
		if w.acceptAt != 0 && w.now >= w.acceptAt {
			w.retryAccepting()
		}
		if w.settledAt != 0 && w.now >= w.settledAt {
			w.settledAt = 0
			w.relay.acceptRecovered()
		}
		w.report()
		w.addSums()
	}
	w.pipes.close()
	w.closeDescriptors()
}

// timeout is the sleep of the loop in ms, rounded up so that it does not spin
// shortly before a deadline.
func (w *worker) timeout() int {
	if len(w.queue) > 0 {
		return 0
	}
	var at time.Duration
	for _, t := range [...]time.Duration{w.timers.first(), w.acceptAt, w.settledAt, w.measureAt, w.strangersAt, w.waiters.lookAt} {
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
	return int(min((wait+time.Millisecond-1)/time.Millisecond, 3_600_000))
}

func (w *worker) dispatch(ev *unix.EpollEvent) {
	switch kind := ev.Pad & (1<<kindBits - 1); kind {
	case kindListener: // see dispatchListener
	case kindWake:
		w.readMail()
	case kindStranger:
		if s := w.strangers[int(ev.Fd)]; s != nil {
			w.recognizeStranger(s, ev.Events)
		}
	default:
		if f := w.lookup(uint32(ev.Fd), uint32(ev.Pad)>>kindBits); f != nil {
			w.legEvent(f, side(kind), ev.Events)
		}
	}
}

func (w *worker) dispatchListener(ev *unix.EpollEvent) {
	if ev.Pad&(1<<kindBits-1) != kindListener {
		return
	}
	if l := w.listeners[ev.Fd]; l != nil {
		w.acceptFrom(l)
	}
}

func (w *worker) legEvent(f *flow, s side, events uint32) {
	w.stir(f)
	l := &f.legs[s]
	if s == target && slices.Contains(w.raceWon, f) {
		return // won has what the kernel knows of the winner
	}
	switch f.phase {
	case phaseRecognizing, phaseMoving:
		l.note(events)
		if l.fin && f.end.shut[s] {
			l.endArrived()
		}
		switch {
		case f.end.awaits(s) && f.arrived(s, events):
			w.apply(f, f.end.step(eventAcked, s))
		case events&unix.EPOLLERR != 0 && !f.end.broken[s]:
			w.apply(f, f.end.step(eventBroken, s))
		}
		if f.connected() {
			w.run(f)
		}
	case phaseDialing, phaseAwaiting:
		if s == client {
			w.clientEvent(f, events)
			return
		}
		// Otherwise the event belongs to an attempt that ended in this batch.
		if l.fd >= 0 && (f.opening.batch != w.batch || f.opening.raced) {
			w.dialed(f, events)
		}
	case phaseAccepted:
		w.clientReady(f, events)
	case phaseHeader:
		l.note(events)
		w.readHeader(f)
	case phaseHeld:
		l.note(events)
	case phaseWaiting:
		w.waitingEvent(f, events)
	}
}

// note records the readiness that an edge reported, until a call on the socket
// shows otherwise.
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
		l.fin = true // a reset also sets RDHUP, but never alone
	}
	if events&unix.EPOLLPRI != 0 {
		l.urgent = true
	}
}

// watch registers a leg once for all events.
func (w *worker) watch(fd int, f *flow, s side) unix.Errno {
	ev := unix.EpollEvent{
		Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLPRI | unix.EPOLLET,
		Fd:     int32(f.slot),
		Pad:    int32(f.gen<<kindBits | uint32(s)),
	}
	return epollAdd(w.epfd, fd, &ev)
}

// place assigns a flow a slot of the worker's table.
func (w *worker) place(f *flow) {
	if n := len(w.free); n > 0 {
		f.slot = w.free[n-1]
		w.free = w.free[:n-1]
	} else {
		f.slot = uint32(len(w.slots))
		if len(w.slots) == cap(w.slots) { // append adds a quarter: of what it leaves behind there is more than of flows
			w.slots = slices.Grow(w.slots, max(len(w.slots), 64))
		}
		w.slots = append(w.slots, slot{})
	}
	s := &w.slots[f.slot]
	s.flow = f
	f.gen = s.gen
	w.load.Add(1)
	w.enlist(f, newFlows, w.visits.pass)
}

// forget removes a closed flow from every table.
func (w *worker) forget(f *flow) {
	w.leaveIntegrity(f)
	if f.phase == phaseAccepted {
		w.undialed--
	}
	if f.phase == phasePaired {
		w.pairedFlows--
	}
	f.phase = phaseGone
	if f.opening != nil {
		w.endAwaitFD(f.opening)
		f.opening.dropBeside()
		w.waiters.remove(f)
		w.openings.put(f.opening)
		f.opening = nil
	}
	w.timers.remove(f)
	w.unlist(f)
	w.unration(f)
	w.leaveName(f)
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

// lookup returns the flow of a slot and generation, or nil if that flow has
// ended.
func (w *worker) lookup(at, gen uint32) *flow {
	if int(at) >= len(w.slots) || w.slots[at].gen != gen {
		return nil
	}
	return w.slots[at].flow
}

// again queues a flow for another turn behind the others.
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
		if f.connected() {
			w.run(f)
		}
	}
	rest := copy(w.queue, w.queue[n:])
	clear(w.queue[rest:])
	w.queue = w.queue[:rest]
}

// buffer returns an empty buffer for unwritten bytes.
func (w *worker) buffer() *[]byte {
	if n := len(w.buffers); n > 0 {
		b := w.buffers[n-1]
		w.buffers = w.buffers[:n-1]
		return b
	}
	b := make([]byte, 0, smallRead)
	return &b
}

func (w *worker) recycle(b *[]byte) {
	if cap(*b) == smallRead && len(w.buffers) < pipesKept {
		*b = (*b)[:0]
		w.buffers = append(w.buffers, b)
	}
}

// schedule puts an established flow's next deadline into the heap.
func (w *worker) schedule(f *flow) {
	if at := w.nextDeadline(f); at != 0 {
		w.timers.schedule(f, at)
	}
}

func (w *worker) nextDeadline(f *flow) (at time.Duration) {
	sooner := func(t time.Duration) {
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
	if f.lasting {
		sooner(f.start + lastingAge)
	}
	patience := func(t time.Duration) {
		sooner(f.active + t)
		if f.end.waits() || f.delivered() { // acknowledgements count as activity, but cause no event
			sooner(w.now + t/4)
		}
	}
	if idle := f.route.tunnel.IdleTimeout; idle > 0 {
		patience(idle)
	}
	if half := w.relay.opts.HalfCloseTimeout; half > 0 && f.halfDone() {
		patience(half)
	} else if half > 0 && f.carried() {
		sooner(w.now + half) // the carrier reports no end of one stream, which counts as activity
	}
	return at
}

// due checks the deadlines of a flow whose time in the heap has come.
func (w *worker) due(f *flow) {
	w.lookAtPaired(f)
	switch {
	case f.carried() && f.opening != nil:
		w.offerDue(f)
		return
	case !f.connected() && !f.carried():
		w.openingDue(f)
		return
	}
	if f.lasting && w.now >= f.start+lastingAge {
		f.lasting = false
		w.setUpLegs(f)
		if f.carried() {
			f.sockets(func(fds [2]int) { w.makeLasting(f, fds[target]) })
		} else { // without garbage for each flow
			w.makeLasting(f, int(f.legs[target].fd))
		}
	}
	if w.holdDue(f); !f.connected() && !f.carried() {
		return
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
		f.closing.ackDelay = min(2*f.closing.ackDelay, maxAckDelay)
	case idle > 0 && w.now >= f.active+idle:
		w.abort(f, report.EndIdle, nil)
		return
	case half > 0 && f.halfDone() && w.now >= f.active+half:
		w.abort(f, report.EndHalfClosed, nil)
		return
	}
	w.schedule(f)
}

// makeLasting sets what only a connection to the target needs that lasts. A carrier may have closed it.
func (w *worker) makeLasting(f *flow, fd int) {
	if fd < 0 {
		return
	}
	tr, _ := f.route.tunnel.transportTo(f.target().Addr())
	if err := tr.Lasting(fd, f.legs[target].setup.side); err != nil {
		f.route.state.warnOnce(w.log, "leg towards the target is not set up as asked", err.Error())
	}
}

// lookForAcks checks whether the peers have acknowledged everything, or made
// progress.
func (w *worker) lookForAcks(f *flow) {
	left := 0
	if f.delivered() && f.chain == nil {
		left = f.carriedUnacknowledged()
	}
	for s := client; s <= target; s++ {
		if !f.end.awaits(s) {
			continue
		}
		n := f.legs[s].unacknowledged()
		if left += n; n > 0 {
			continue
		}
		if w.apply(f, f.end.step(eventAcked, s)); f.phase == phaseGone {
			return
		}
	}
	if left > 0 && left != f.close().unacked {
		f.closing.unacked = left
		f.active = w.now
	}
}

// carriedUnacknowledged is the number of bytes that the peer of a carried flow's own socket has not acknowledged.
func (f *flow) carriedUnacknowledged() (n int) {
	f.sockets(func(fds [2]int) {
		if fd := fds[f.paired.leg]; fd >= 0 {
			n = socket.Unacknowledged(fd)
		}
	})
	return n
}

// post queues a command for the loop. It returns false after the loop has
// ended.
func (w *worker) post(command func()) bool {
	w.mail.mu.Lock()
	defer w.mail.mu.Unlock()
	if w.mail.closed {
		return false
	}
	w.mail.commands = append(w.mail.commands, command)
	if len(w.mail.commands) == 1 {
		one := [8]byte{0: 1, 7: 1} // not zero in either byte order
		_, _ = unix.Write(w.wake, one[:])
	}
	return true
}

// do queues a command for the loop and waits for it. It returns false after the
// loop has ended.
func (w *worker) do(command func()) bool {
	ran := make(chan struct{})
	if !w.post(func() { command(); close(ran) }) {
		return false
	}
	<-ran
	return true
}

func (w *worker) readMail() {
	var count [8]byte
	_, _ = unix.Read(w.wake, count[:])
	w.mail.mu.Lock()
	commands := w.mail.commands
	w.mail.commands = nil
	w.mail.mu.Unlock()
	for _, command := range commands {
		command()
	}
}

// stop ends the loop and all flows, see leave. It runs in the loop.
func (w *worker) stop(reason report.EndReason) {
	w.eachFlow(func(f *flow) { w.leave(f, reason) })
	w.dropStrangers()
	w.stopped = true
	w.mail.mu.Lock()
	w.mail.closed = true
	commands := w.mail.commands
	w.mail.commands = nil
	w.mail.mu.Unlock()
	for _, command := range commands {
		command()
	}
}

func (w *worker) eachFlow(do func(*flow)) {
	for i := range w.slots {
		if f := w.slots[i].flow; f != nil {
			do(f)
		}
	}
}

func (w *worker) setUp(f *flow, s side, tr Transport, destination netip.Prefix) {
	if f.ration != nil { // the next measurement bounds what is set now, which is then also what is given back
		f.ration.sizes[s].unbound(int(f.legs[s].fd))
		f.ration.sizes[s] = queueSizes{}
	}
	side, degraded := tr.Established(int(f.legs[s].fd), s == target)
	f.legs[s].setup = f.route.state.setup(legSetup{side, degraded, destination})
	if degraded != "" {
		f.route.state.warnOnce(w.log, "leg is not as asked", degraded)
	}
}

// setUpLegs sets up the legs of a flow that needs it: it lasts, it moves more than a few segments, or
// somebody looks at it. Most connections are short, and end before.
func (w *worker) setUpLegs(f *flow) {
	w.setUpClient(f)
	w.setUpTarget(f)
}

func (w *worker) setUpClient(f *flow) {
	if tr := f.route.tunnel.Transport; tr != nil && f.legs[client].fd >= 0 && f.legs[client].setup == nil {
		w.setUp(f, client, tr, netip.Prefix{})
	}
}

// boundClient sets up the leg of a client that has sent more than a little before its flow has a target:
// until then its receive buffer may have the size that a WAN leg begins with. The kernel reports each
// arrival, so what the first event brings waits for the next.
func (w *worker) boundClient(f *flow, events uint32) {
	l := &f.legs[client]
	if f.phase == phaseAccepted || events&unix.EPOLLIN == 0 || l.setup != nil || f.route.tunnel.Transport == nil {
		return
	}
	if m, ok := socketMemory(int(l.fd)); ok && m[skReceived] >= smallRead {
		w.setUpClient(f)
	}
}

func (w *worker) setUpTarget(f *flow) {
	if !f.legs[target].plain {
		return
	}
	f.legs[target].plain = false
	if tr, destination := f.route.tunnel.transportTo(f.target().Addr()); tr != nil && f.legs[target].fd >= 0 && f.legs[target].setup == nil {
		w.setUp(f, target, tr, destination)
	}
}

// listenAddr is the address that the client connected to.
func (w *worker) listenAddr(f *flow) netip.AddrPort {
	if at := f.dialed(); at.IsValid() {
		return at
	}
	at := f.route.listen
	if at.Addr().IsUnspecified() {
		if a := localAddr(int(f.legs[client].fd)); a.IsValid() {
			f.setListen(a)
			return a
		}
	}
	return at
}

package link

import (
	"encoding/binary"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// minQuantum is the shortest time between two wake-ups under load. An idle
	// link reacts at once.
	minQuantum = 50 * time.Microsecond
	// maxQuantum and quantumShare let a long link wake less often: at most 1/64
	// of its delay late, and at most maxQuantum.
	maxQuantum   = 250 * time.Microsecond
	quantumShare = 64

	// maxLateness bounds how early a wait ends before a packet is due, to
	// compensate for the time of waking up.
	maxLateness = 100 * time.Microsecond

	// receiveBatch bounds the packets read before due packets are delivered.
	receiveBatch = 64
)

func quantum(delay time.Duration) time.Duration {
	return min(max(delay/quantumShare, minQuantum), maxQuantum)
}

// worker carries the packets of one direction. A single thread does all of it;
// it shares only the published counters.
type worker struct {
	from, to Port
	pipe     *pipe
	arena    arena
	head     [maxHeaderLen]byte

	wakeFD int // eventfd that interrupts the wait

	mu        sync.Mutex // guards the fields below
	published Counters
	request   *change
	stop      bool
	thread    int           // its ID; 0 while it does not run
	cpu       time.Duration // of the thread once it has ended

	done chan struct{} // closed when the thread has ended
}

// change is a request for new settings; applied is closed when they apply.
type change struct {
	settings   Settings
	queueLimit int
	applied    chan struct{}
}

func newWorker(from, to Port, s Settings, queueLimit int) (*worker, error) {
	wakeFD, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	w := &worker{from: from, to: to, wakeFD: wakeFD, done: make(chan struct{})}
	w.pipe = newPipe(s, queueLimit, w.arena.recycle)
	return w, nil
}

// epoch is the origin of the path's monotonic clock.
var epoch = time.Now()

func monotonic() int64 { return int64(time.Since(epoch)) }

// run is the thread. It ends with the goroutine, because it has changed its
// timer slack and scheduling.
func (w *worker) run() {
	runtime.LockOSThread()
	defer close(w.done)
	preferLatency()
	w.mu.Lock()
	w.thread = unix.Gettid()
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.cpu, w.thread = threadCPUTime(w.thread), 0
		w.mu.Unlock()
	}()

	poll := [2]unix.PollFd{
		{Fd: int32(w.wakeFD), Events: unix.POLLIN},
		{Fd: int32(w.from.descriptor()), Events: unix.POLLIN},
	}
	w.pipe.begin(monotonic())
	sourceOpen, sourceFailed := true, false
	lateness := time.Duration(0) // recent lateness of timers
	for {
		now := monotonic()
		received := 0
		if sourceOpen {
			received, sourceOpen = w.receive()
			sourceOpen = sourceOpen && !(sourceFailed && received == 0)
		}
		delivered := w.deliver()
		if !w.sync() {
			return
		}
		if received == receiveBatch {
			continue
		}

		// Under load, sleep for the quantum and ignore the source. Without
		// work, wait for the source or the next due packet.
		fds := poll[:1]
		wait := time.Duration(-1)
		due, waiting := int64(0), false
		if received+delivered > 0 {
			wait = max(quantum(w.pipe.settings.Delay)-time.Duration(monotonic()-now), 0)
		} else {
			if due, waiting = w.pipe.next(); waiting {
				wait = max(time.Duration(due-monotonic())-lateness, 0)
			}
			if sourceOpen {
				fds = poll[:]
			}
		}
		poll[0].Revents, poll[1].Revents = 0, 0
		timedOut := pollFor(fds, wait)
		if waiting && timedOut {
			if wait > 0 {
				late := time.Duration(monotonic()-due) + lateness
				lateness = min(max(lateness+(late-lateness)/8, 0), maxLateness)
			}
			for monotonic() < due { // spin: the sleep ended just before
			}
		}
		sourceFailed = poll[1].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0
		if poll[0].Revents != 0 {
			var count [8]byte
			_, _ = readRaw(w.wakeFD, count[:])
		}
	}
}

// receive reads waiting packets of the source, at most receiveBatch. It returns
// false if the source has failed for good.
func (w *worker) receive() (packets int, open bool) {
	for packets < receiveBatch {
		h, skip, n, err := w.from.receive(w.arena.room(receiveRoom))
		if err == errAgain {
			return packets, true
		}
		if err != nil {
			return packets, false
		}
		w.pipe.arrive(monotonic(), w.arena.take(skip, n, h))
		packets++
	}
	return packets, true
}

// deliver delivers due packets, consecutive segments of one super-packet as one
// packet if all or none of them are marked, and returns their number on the wire.
func (w *worker) deliver() (packets int) { return w.deliverAt(monotonic()) }

func (w *worker) deliverAt(now int64) (packets int) {
	w.pipe.advance(now)
	next, ok := w.pipe.pop(now)
	for ok {
		super, first, last, size, ce := next.super, next.index, next.index, int(next.size), next.ce
		for {
			next, ok = w.pipe.pop(now)
			if !ok || next.super != super || next.index != last+1 || next.ce != ce {
				break
			}
			last++
			size += int(next.size)
		}
		h, head, body := super.slice(int(first), int(last), ce, w.head[:])
		count := int(last - first + 1)
		w.pipe.done(super, count, size, w.to.send(h, head, body) == nil)
		packets += count
	}
	return packets
}

// sync publishes the counters and applies a request; it returns false when the
// thread must end.
func (w *worker) sync() bool {
	w.mu.Lock()
	request, stop := w.request, w.stop
	w.request = nil
	if request != nil && !stop {
		w.pipe.set(monotonic(), request.settings, request.queueLimit)
	}
	w.published = w.pipe.counters
	w.published.InFlight = uint64(w.pipe.inFlight())
	w.published.QueuedBytes = w.pipe.queuedBytes
	w.mu.Unlock()
	if request != nil {
		close(request.applied)
	}
	return !stop
}

// set makes the thread apply new settings and waits until they apply.
func (w *worker) set(s Settings, queueLimit int) {
	c := &change{settings: s, queueLimit: queueLimit, applied: make(chan struct{})}
	w.mu.Lock()
	w.request = c
	w.mu.Unlock()
	w.wake()
	select {
	case <-c.applied:
	case <-w.done:
	}
}

// halt stops the thread and waits for it.
func (w *worker) halt() {
	w.mu.Lock()
	w.stop = true
	w.mu.Unlock()
	w.wake()
	<-w.done
}

func (w *worker) wake() {
	_, _ = unix.Write(w.wakeFD, binary.NativeEndian.AppendUint64(nil, 1))
}

func (w *worker) counters() Counters {
	w.mu.Lock()
	c := w.published
	w.mu.Unlock()
	q := w.pipe.queueDelay.quantiles(0.50, 0.95, 0.99, 1)
	c.QueueDelayP50, c.QueueDelayP95, c.QueueDelayP99, c.QueueDelayMax = q[0], q[1], q[2], q[3]
	c.DeviceDrops = w.from.drops()
	return c
}

func (w *worker) cpuTime() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.thread != 0 {
		return threadCPUTime(w.thread)
	}
	return w.cpu
}

// threadCPUTime reads the CPU clock of a thread of this process.
func threadCPUTime(thread int) time.Duration {
	const perThread, scheduled = 4, 2 // CPUCLOCK_PERTHREAD_MASK, CPUCLOCK_SCHED
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^thread<<3|perThread|scheduled), &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// pollFor waits for an event or a timeout; a negative timeout means no bound.
// It returns true if no event came.
func pollFor(fds []unix.PollFd, wait time.Duration) bool {
	if wait == 0 {
		return true
	}
	var timeout *unix.Timespec
	if wait > 0 {
		t := unix.NsecToTimespec(int64(wait))
		timeout = &t
	}
	n, err := unix.Ppoll(fds, timeout, nil)
	return n == 0 && err == nil // EINTR counts as an event
}

// preferLatency requests punctual wake-ups of this thread from the kernel. A
// refusal only costs precision.
func preferLatency() {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // ns
}

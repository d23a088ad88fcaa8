package relay

import (
	"errors"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Of the memory limit, memoryShort is the share from which queues are bounded
// and memoryEase the share below which they are given back what they had.
const (
	memoryShort = 3.0 / 4
	memoryEase  = 1.0 / 2
)

const (
	leastQueue     = 16 << 10              // bytes, as the kernel counts, that a queue may always hold
	leastSegments  = 8                     // the same in segments: a window of less than a few stalls the sender
	memoryLook     = 20 * time.Millisecond // between two looks while there are flows
	memoryLookBusy = 2 * time.Millisecond  // the same while more than an eighth of the limit is used
	memoryLookFlow = 50 * time.Microsecond // the same for each flow, of which a look takes about 1 µs
	memoryLogPause = 10 * time.Second
)

// errMemoryLimit is why accepting pauses when the flows hold what they may.
var errMemoryLimit = errors.New("the memory limit is reached")

// memoryGuard keeps what the flows hold below a limit. Nothing that was
// received is ever dropped for it: from memoryShort on, each queue may grow
// only by an equal part of what is left, so that windows close and senders
// wait, and at the limit no connection is accepted.
type memoryGuard struct {
	limit atomic.Int64 // bytes; 0: none
	used  atomic.Int64 // bytes, at the last look; 0 while there is no limit
	short atomic.Bool

	wake chan struct{} // told when the limit was changed and when the first flow begins
	stop chan struct{}
	done chan struct{} // nil until there was a limit

	warned time.Time
}

// SetMemoryLimit bounds what the flows' sockets and pipes hold, in bytes as
// the kernel counts them; 0 lifts the bound. It takes effect at once, for
// running flows, too.
func (r *Relay) SetMemoryLimit(bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.started && !r.closed {
		r.setMemoryLimit(bytes)
	}
}

func (r *Relay) setMemoryLimit(bytes int64) {
	g := &r.memory
	g.limit.Store(max(0, bytes))
	if g.done == nil {
		if bytes <= 0 {
			return
		}
		g.stop, g.done = make(chan struct{}), make(chan struct{})
		go r.guardMemory(r.workers)
	}
	g.look()
}

// look has the guard look now.
func (g *memoryGuard) look() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// stopGuard ends the guard's goroutine, if there is one.
func (r *Relay) stopGuard() {
	if r.memory.done != nil {
		close(r.memory.stop)
		<-r.memory.done
	}
}

func (g *memoryGuard) full() bool {
	limit := g.limit.Load()
	return limit > 0 && g.used.Load() >= limit
}

// guardMemory looks at the flows' queues from time to time.
func (r *Relay) guardMemory(workers []*worker) {
	g := &r.memory
	defer close(g.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-g.stop:
			return
		case <-g.wake:
		case <-timer.C:
		}
		limit := g.limit.Load()
		if limit == 0 && !g.short.Load() {
			g.used.Store(0)
			continue
		}
		r.lookAtMemory(workers)
		next := memoryLook
		if g.used.Load() > limit/8 {
			next = memoryLookBusy
		}
		if flows := r.live.Load(); flows > 0 || g.short.Load() {
			timer.Reset(max(next, time.Duration(flows)*memoryLookFlow))
		}
	}
}

// lookAtMemory adds up what all flows hold and acts on it.
func (r *Relay) lookAtMemory(workers []*worker) {
	g := &r.memory
	limit := g.limit.Load()
	var used, queues int64
	for _, w := range workers {
		w.do(func() {
			w.eachFlow(func(f *flow) {
				held, n := f.memory()
				used += held
				queues += n
			})
		})
	}
	g.used.Store(used)
	switch short := g.short.Load(); {
	case !short && float64(used) >= memoryShort*float64(limit) && limit > 0:
		g.short.Store(true)
		if time.Since(g.warned) > memoryLogPause {
			g.warned = time.Now()
			r.log.Warn("memory is short: senders are slowed down", "used_bytes", used, "limit_bytes", limit, "flows", r.live.Load(),
				"remedy", "raise memory_limit, or lower max_flows")
		}
	case short && (limit == 0 || float64(used) < memoryEase*float64(limit)):
		g.short.Store(false)
		for _, w := range workers {
			w.do(func() {
				w.spliceMost = pipeWanted
				w.eachFlow((*flow).unbound)
			})
		}
	}
	if !g.short.Load() {
		return
	}
	room := max(0, limit-used) / max(1, queues)
	for _, w := range workers {
		w.do(func() {
			w.spliceMost = int(min(max(leastQueue, room), pipeWanted))
			w.eachFlow(func(f *flow) { f.bound(room) })
			if g.full() {
				w.pauseAccepting(errMemoryLimit)
			}
		})
	}
}

// queueSizes are the bounds that a leg's socket had before memory was short;
// zero while they are untouched.
type queueSizes struct {
	send, receive uint32 // as the kernel counts
	least         int64  // what each of them may always hold
	locks         int    // SO_BUF_LOCK: which of them are not autotuned
}

// memory is how many bytes the flow's sockets and pipes hold, and how many
// queues that are.
func (f *flow) memory() (held, queues int64) {
	for s := client; s <= target; s++ {
		held += int64(f.dirs[s].held)
		if m, ok := socketMemory(int(f.legs[s].fd)); ok {
			held += m.held()
			queues += 2
		}
	}
	return held, queues
}

// bound lets each queue of the flow hold room bytes more than it does now.
func (f *flow) bound(room int64) {
	if f.bounded == nil {
		f.bounded = new([2]queueSizes)
	}
	for s := client; s <= target; s++ {
		fd := int(f.legs[s].fd)
		m, ok := socketMemory(fd)
		if !ok {
			continue
		}
		was := &f.bounded[s]
		first := was.send == 0
		if first {
			locks, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BUF_LOCK)
			mss, _ := unix.GetsockoptInt(fd, unix.SOL_TCP, unix.TCP_MAXSEG)
			*was = queueSizes{
				send: m[skSendBound], receive: m[skReceiveBound], locks: locks,
				least: max(leastQueue, int64(leastSegments*mss)),
			}
		}
		for _, q := range [...]struct {
			option         int
			held, now, was uint32
		}{
			{unix.SO_RCVBUF, m[skReceived], m[skReceiveBound], was.receive},
			{unix.SO_SNDBUF, m[skSendQueued], m[skSendBound], was.send},
		} {
			want := min(max(int64(q.held)+room, was.least), int64(q.was))
			// The first time counts in any case: it ends autotuning.
			if change := want - int64(q.now); first || change > int64(q.now)/4 || -change > int64(q.now)/4 {
				setsockoptInt(fd, unix.SOL_SOCKET, q.option, int32(want/2)) // the kernel doubles it
			}
		}
	}
}

// unbound gives the queues the bounds back that they had. What was left to
// the kernel's autotuning is left to it again.
func (f *flow) unbound() {
	if f.bounded == nil {
		return
	}
	for s := client; s <= target; s++ {
		was, fd := &f.bounded[s], int(f.legs[s].fd)
		if was.send == 0 || fd < 0 {
			continue
		}
		for _, q := range [...]struct {
			option, force int
			size          uint32
		}{{unix.SO_RCVBUF, unix.SO_RCVBUFFORCE, was.receive}, {unix.SO_SNDBUF, unix.SO_SNDBUFFORCE, was.send}} {
			// Without privilege the kernel gives no more than rmem_max and
			// wmem_max; autotuning grows from there.
			if setsockoptInt(fd, unix.SOL_SOCKET, q.force, int32(q.size/2)) != 0 {
				setsockoptInt(fd, unix.SOL_SOCKET, q.option, int32(q.size/2))
			}
		}
		setsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BUF_LOCK, int32(was.locks))
	}
	f.bounded = nil
}

// meminfo is what SO_MEMINFO tells of a socket, in the kernel's order. Every
// value is in bytes and counts what the kernel spends, not the payload.
type meminfo [skCount]uint32

const (
	skReceived     = iota // in the receive queue
	skReceiveBound        // SO_RCVBUF
	skInTransit           // handed to the device
	skSendBound           // SO_SNDBUF
	skForward             // reserved for what comes next
	skSendQueued          // in the send queue
	skOptions
	skBacklog // received while the socket was in use
	skDrops
	skCount
)

// held is what a socket holds. The reserve is a signed number that runs below
// zero for moments.
func (m meminfo) held() int64 {
	reserve := max(0, int64(int32(m[skForward])))
	return int64(m[skReceived]) + int64(m[skSendQueued]) + int64(m[skBacklog]) + reserve
}

func socketMemory(fd int) (m meminfo, ok bool) {
	if fd < 0 {
		return m, false
	}
	size := uint32(unsafe.Sizeof(m))
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&m)), uintptr(unsafe.Pointer(&size)), 0)
	return m, errno == 0
}

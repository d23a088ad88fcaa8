package relay

import (
	"errors"
	"sync/atomic"
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
	leastQueue    = 16 << 10 // bytes, as the kernel counts, that a queue may always hold
	leastSegments = 8        // the same in segments: a window of less than a few stalls the sender

	memoryLogPause = int64(10e9) // ns
)

// How often a loop looks at what its flows hold, in ns: before memoryIntake
// could fill an eighth of what is left, within bounds. A loop in which nothing
// happens looks once a second while its flows hold anything.
const (
	memoryIntake    = int64(1250e6) // bytes a second: 10 Gb/s
	memoryLookLeast = int64(2e6)
	memoryLookMost  = int64(100e6)
	memoryLookIdle  = int64(1e9)
	memoryLookFlow  = int64(50e3) // at least so much for each flow, of which a look takes about 1 µs
)

// errMemoryLimit is why accepting pauses when the flows hold what they may.
var errMemoryLimit = errors.New("the memory limit is reached")

// memoryGuard keeps what the flows hold below a limit. Nothing that was
// received is ever dropped for it: from memoryShort on, each queue may grow
// only by an equal part of what is left, so that windows close and senders
// wait, and at the limit no connection is accepted.
type memoryGuard struct {
	limit  atomic.Int64 // bytes; 0: none
	used   atomic.Int64 // bytes, as each loop found at its last look
	queues atomic.Int64 // queues of sockets, the same
	short  atomic.Bool
	warned atomic.Int64 // when it was last said that memory is short
}

func (g *memoryGuard) watching() bool { return g.limit.Load() > 0 || g.short.Load() }

func (g *memoryGuard) full() bool {
	limit := g.limit.Load()
	return limit > 0 && g.used.Load() >= limit
}

// interval is how long a loop may go without a look.
func (g *memoryGuard) interval() int64 {
	left := float64(g.limit.Load()-g.used.Load()) / 8
	return min(max(int64(left/float64(memoryIntake)*1e9), memoryLookLeast), memoryLookMost)
}

// SetMemoryLimit bounds what the flows' sockets and pipes hold, in bytes as
// the kernel counts them; 0 lifts the bound. It takes effect at once, for
// running flows, too.
func (r *Relay) SetMemoryLimit(bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.memory.limit.Store(max(0, bytes))
	r.lookAtMemory()
}

// lookAtMemory has every loop look at what its flows hold.
func (r *Relay) lookAtMemory() {
	for _, w := range r.workers {
		w.post(func() { w.lookAt = w.now })
	}
}

// stirred notes that something has happened in a loop, so that its flows may
// hold more than they did.
func (w *worker) stirred() {
	g := &w.relay.memory
	if !g.watching() {
		return
	}
	w.stir = true
	if next := w.now + max(g.interval(), w.load.Load()*memoryLookFlow); w.lookAt == 0 || next < w.lookAt {
		w.lookAt = next
	}
}

// lookAtMemory adds up what the loop's flows hold, and acts on what all hold.
func (w *worker) lookAtMemory() {
	g := &w.relay.memory
	if !g.watching() && !w.bounding {
		w.lookAt = 0
		g.used.Add(-w.held)
		g.queues.Add(-w.queues)
		w.held, w.queues = 0, 0
		return
	}
	var held, queues int64
	w.eachFlow(func(f *flow) {
		h, n := f.memory()
		held += h
		queues += n
	})
	used := g.used.Add(held - w.held)
	all := g.queues.Add(queues - w.queues)
	w.held, w.queues = held, queues

	limit := g.limit.Load()
	switch short := g.short.Load(); {
	case !short && limit > 0 && float64(used) >= memoryShort*float64(limit):
		if g.short.CompareAndSwap(false, true) {
			w.relay.lookAtMemory()
			if last := g.warned.Load(); last == 0 || w.now-last > memoryLogPause {
				g.warned.Store(w.now)
				w.log.Warn("memory is short: senders are slowed down", "used_bytes", used, "limit_bytes", limit, "flows", w.relay.live.Load(),
					"remedy", "raise memory_limit, or lower max_flows")
			}
		}
	case short && (limit == 0 || float64(used) < memoryEase*float64(limit)):
		if g.short.CompareAndSwap(true, false) {
			w.relay.lookAtMemory()
		}
	}
	switch {
	case g.short.Load():
		room := max(0, limit-used) / max(1, all)
		w.bounding = true
		w.spliceMost = int(min(max(leastQueue, room), pipeWanted))
		w.eachFlow(func(f *flow) { f.bound(room) })
		if g.full() {
			w.pauseAccepting(errMemoryLimit)
		}
		w.lookAt = w.now + max(memoryLookLeast, w.load.Load()*memoryLookFlow)
	default:
		if w.bounding {
			w.bounding = false
			w.spliceMost = pipeWanted
			w.eachFlow((*flow).unbound)
		}
		w.lookAt = 0
		if w.stir {
			w.stirred()
		} else if held > 0 {
			w.lookAt = w.now + memoryLookIdle
		}
	}
	w.stir = false
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

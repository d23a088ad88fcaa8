package relay

import (
	"cmp"
	"fmt"
	"slices"
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

// Where every queue is bounded, the limit can still be passed: each of many
// flows may hold a little. From there on it is not for the full stall timeout
// that one may keep what others need.
const (
	stallFull  = 5 * time.Second // at the limit
	stallOver  = time.Second     // from memoryOver times the limit on
	memoryOver = 1.5
)

// memoryGuard keeps what the flows hold below a limit. From memoryShort on,
// each queue may grow only by an equal part of what is left, and those of a
// source or a tunnel that has its share not at all, so that windows close and
// senders wait. Who has nothing yet is always let in: a source that has its
// share gets no new flow, and flows that hold memory and get none of it
// delivered are reset, the largest first. Nothing else that was received is
// ever dropped.
type memoryGuard struct {
	limit  atomic.Int64 // bytes; 0: none
	held   holdings     // as each loop found at its last look
	short  atomic.Bool
	warned atomic.Int64 // when it was last said that memory is short
	told   atomic.Int64 // when it was last said that flows are reset for it
}

func (g *memoryGuard) watching() bool { return g.limit.Load() > 0 || g.short.Load() }

// full says why a source gets no new flow.
func (g *memoryGuard) full(src *source) error {
	limit := g.limit.Load()
	if limit == 0 || !g.short.Load() {
		return nil
	}
	free := max(0, limit-g.held.bytes.Load())
	if n := src.held.bytes.Load(); n > max(leastQueue, shareOfFree*free) {
		return fmt.Errorf("the source's flows hold %d of %d bytes (memory_limit); what is left is for others", n, limit)
	}
	return nil
}

// patience is how long a flow may hold memory of which it gets nothing
// delivered, while so much is used. 0 is without end.
func (g *memoryGuard) patience(timeout time.Duration, used int64) int64 {
	limit := g.limit.Load()
	switch {
	case timeout < 0 || limit == 0 || float64(used) < memoryShort*float64(limit):
		return 0
	case float64(used) >= memoryOver*float64(limit):
		timeout = min(timeout, stallOver)
	case used >= limit:
		timeout = min(timeout, stallFull)
	}
	return int64(timeout)
}

// interval is how long a loop may go without a look.
func (g *memoryGuard) interval() int64 {
	left := float64(g.limit.Load()-g.held.bytes.Load()) / 8
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
		g.held.add(-w.held, -w.queues)
		w.held, w.queues = 0, 0
		return
	}
	short := g.short.Load()
	var held, queues int64
	w.eachFlow(func(f *flow) {
		var h, n int64
		if short {
			h, n = w.weigh(f)
		} else {
			h, n = f.memory()
		}
		held += h
		queues += n
	})
	g.held.add(held-w.held, queues-w.queues)
	w.held, w.queues = held, queues
	if short {
		w.evict()
	}

	limit, used := g.limit.Load(), g.held.bytes.Load()
	switch {
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
		free := max(0, limit-used)
		room := free / max(1, g.held.queues.Load())
		w.bounding = true
		w.spliceMost = int(min(max(leastQueue, room), pipeWanted))
		w.eachFlow(func(f *flow) {
			if f.ration == nil {
				return // it began, or memory became short, since the look: the next is soon
			}
			f.bound(min(room, f.source.held.room(free), f.route.state.held.room(free)))
		})
		w.lookAt = w.now + max(memoryLookLeast, w.load.Load()*memoryLookFlow)
	default:
		if w.bounding {
			w.bounding = false
			w.spliceMost = pipeWanted
			w.eachFlow(w.unration)
		}
		w.lookAt = 0
		if w.stir {
			w.stirred()
		} else if w.held > 0 {
			w.lookAt = w.now + memoryLookIdle
		}
	}
	w.stir = false
}

// ration is what is known of a flow while memory is short.
type ration struct {
	sizes        [2]queueSizes // by leg
	held, queues int64         // what it counts for in what its source and tunnel hold
	delivered    [2]int64      // of each direction, when a fair part of what it held had been
	since        [2]int64      // when that was, or when it last held nothing
}

// weigh finds what a flow holds, and whether it gets any of it delivered. A
// trickle does not count: in the time that is allowed it has to be an eighth.
func (w *worker) weigh(f *flow) (held, queues int64) {
	r := f.ration
	if r == nil {
		r = &ration{since: [2]int64{w.now, w.now}}
		f.ration = r
	}
	var inflow, outflow [2]int64 // in the queues of each leg
	for s := client; s <= target; s++ {
		if m, ok := socketMemory(int(f.legs[s].fd)); ok {
			held += m.held()
			queues += 2
			inflow[s], outflow[s] = int64(m[skReceived]), int64(m[skSendQueued])
		}
	}
	for s := client; s <= target; s++ {
		dir, o := &f.dirs[s], s.other()
		held += int64(dir.held)
		delivered := dir.bytes
		if fd := int(f.legs[o].fd); fd >= 0 && outflow[o] > 0 {
			delivered -= int64(unacknowledged(fd))
		}
		holds := inflow[s] + int64(dir.held) + outflow[o]
		if holds == 0 || delivered-r.delivered[s] > holds/8 {
			r.since[s], r.delivered[s] = w.now, delivered
		}
	}
	f.source.held.add(held-r.held, queues-r.queues)
	f.route.state.held.add(held-r.held, queues-r.queues)
	r.held, r.queues = held, queues
	return held, queues
}

// unration gives a flow's queues back what they had, and takes the flow from
// what its source and its tunnel hold.
func (w *worker) unration(f *flow) {
	r := f.ration
	if r == nil {
		return
	}
	f.source.held.add(-r.held, -r.queues)
	f.route.state.held.add(-r.held, -r.queues)
	f.unbound()
	f.ration = nil
}

// evict resets flows that hold memory and get none of it delivered, the largest
// first, until there is as much as there has to be.
func (w *worker) evict() {
	g := &w.relay.memory
	timeout := w.relay.opts.StallTimeout
	patience := g.patience(timeout, g.held.bytes.Load())
	if patience == 0 {
		return
	}
	var stalled []*flow
	w.eachFlow(func(f *flow) {
		if f.phase != phaseChecked && w.now-min(f.ration.since[up], f.ration.since[down]) >= patience {
			stalled = append(stalled, f)
		}
	})
	slices.SortFunc(stalled, func(a, b *flow) int { return cmp.Compare(b.ration.held, a.ration.held) })
	for _, f := range stalled {
		used := g.held.bytes.Load()
		since := w.now - min(f.ration.since[up], f.ration.since[down])
		patience := g.patience(timeout, used)
		if patience == 0 {
			return
		}
		if since < patience {
			continue
		}
		held, queues := f.ration.held, f.ration.queues
		if last := g.told.Load(); last == 0 || w.now-last > memoryLogPause {
			g.told.Store(w.now)
			w.log.Warn("memory is short: flows that get nothing delivered are reset, the largest first", "used_bytes", used, "limit_bytes", g.limit.Load(),
				"client", f.client.String(), "tunnel", f.route.tunnel.Name, "held_bytes", held, "remedy", "raise memory_limit, or lower max_flows_per_source")
		}
		g.held.add(-held, -queues)
		w.held -= held
		w.queues -= queues
		w.abort(f, EndStalled, fmt.Errorf("it held %d bytes, and nothing was delivered for %v", held, time.Duration(since).Round(time.Millisecond)))
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
	for s := client; s <= target; s++ {
		fd := int(f.legs[s].fd)
		m, ok := socketMemory(fd)
		if !ok {
			continue
		}
		was := &f.ration.sizes[s]
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
	for s := client; s <= target; s++ {
		was, fd := &f.ration.sizes[s], int(f.legs[s].fd)
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

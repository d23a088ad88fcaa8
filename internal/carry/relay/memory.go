package relay

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay/monotime"
	"longhaul/internal/sys/socket"
	"longhaul/internal/sys/splice"
)

// The shares of the memory limit at which the guard begins and ends to bound
// queues.
const (
	memoryShort = 3.0 / 4 // at or above: bound the queues
	memoryEase  = 1.0 / 2 // below: restore the queues
)

const (
	minQueue    = 16 << 10 // bytes, as the kernel counts, that every queue may hold
	minSegments = 8        // the same in segments: a smaller window stalls the sender

	memoryLogPause = 10 * time.Second
)

// The interval at which a loop measures its flows. It is the time in which
// memoryIntake fills an eighth of the remaining memory, within bounds. An idle
// loop measures once a second while its flows hold anything.
const (
	memoryIntake           = int64(1250e6) // bytes a second: 10 Gb/s
	minMeasureInterval     = 2 * time.Millisecond
	maxMeasureInterval     = 100 * time.Millisecond
	idleMeasureInterval    = time.Second
	measureIntervalPerFlow = 50 * time.Microsecond // lower bound per flow; measuring a flow takes about 1 µs
)

// Even with all queues bounded, many flows with a little each can exceed the
// limit. At or above the limit, the guard shortens the stall timeout.
const (
	stallFull  = 5 * time.Second // at the limit
	stallOver  = time.Second     // at or above memoryOver times the limit
	memoryOver = 1.5
)

// memoryGuard keeps the memory of all flows below a limit. At or above
// memoryShort, each queue may grow only by an equal part of the remaining
// memory. Queues of a source or a tunnel above its share may not grow, so that
// windows close and senders wait.
//
// A source without flows is always admitted; a source above its share gets no
// new flow. The guard resets flows that hold memory without delivering any of
// it, largest first, unless they are paired and wait for the path between two relays. It never
// drops other received data.
type memoryGuard struct {
	limit       atomic.Int64 // bytes; 0: no limit
	held        holdings     // the sum of the loops' latest measurements
	short       atomic.Bool
	shortLogged monotime.Atomic // when the relay last logged that memory is short
	evictLogged monotime.Atomic // when the relay last logged that it resets flows
}

func (g *memoryGuard) watching() bool { return g.limit.Load() > 0 || g.short.Load() }

// full returns an error if a source is above its share and may not have a new
// flow.
func (g *memoryGuard) full(src *source) error {
	limit := g.limit.Load()
	if limit == 0 || !g.short.Load() {
		return nil
	}
	free := max(0, limit-g.held.bytes.Load())
	if n := src.held.bytes.Load(); n > max(minQueue, shareOfFree*free) {
		return fmt.Errorf("the source's flows hold %d of %d bytes (memory_limit); what is left is for others", n, limit)
	}
	return nil
}

// patience is the time that a flow may hold memory without delivering any of
// it, at this use of memory; 0 means no bound.
func (g *memoryGuard) patience(timeout time.Duration, used int64) time.Duration {
	limit := g.limit.Load()
	switch {
	case timeout < 0 || limit == 0 || float64(used) < memoryShort*float64(limit):
		return 0
	case float64(used) >= memoryOver*float64(limit):
		timeout = min(timeout, stallOver)
	case used >= limit:
		timeout = min(timeout, stallFull)
	}
	return timeout
}

// interval is the time until a loop must measure again.
func (g *memoryGuard) interval() time.Duration {
	left := float64(g.limit.Load()-g.held.bytes.Load()) / 8
	return min(max(time.Duration(left/float64(memoryIntake)*float64(time.Second)), minMeasureInterval), maxMeasureInterval)
}

// SetMemoryLimit bounds the memory of the flows' sockets and pipes, in bytes as
// the kernel counts; 0 lifts the bound. It takes effect at once and for running
// flows.
func (r *Relay) SetMemoryLimit(bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.memory.limit.Store(max(0, bytes))
	r.measureMemory()
}

// measureMemory makes every loop measure its flows now.
func (r *Relay) measureMemory() {
	for _, w := range r.workers {
		w.post(func() { w.measureAt = w.now })
	}
}

// noteActivity schedules a measurement: after an event, the loop's flows may
// hold more.
func (w *worker) noteActivity() {
	g := &w.relay.memory
	if !g.watching() {
		return
	}
	w.activity = true
	if next := w.now + max(g.interval(), time.Duration(w.load.Load())*measureIntervalPerFlow); w.measureAt == 0 || next < w.measureAt {
		w.measureAt = next
	}
}

// measureMemory measures the loop's flows, and acts on the sum over all loops.
func (w *worker) measureMemory() {
	g := &w.relay.memory
	if !g.watching() && !w.bounding {
		w.measureAt = 0
		g.held.add(-w.held, -w.queues)
		w.held, w.queues = 0, 0
		return
	}
	short := g.short.Load()
	var held, queues int64
	w.eachFlow(func(f *flow) {
		w.lookAtPaired(f)
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
			w.relay.measureMemory()
			if last := g.shortLogged.Load(); last == 0 || w.now-last > memoryLogPause {
				g.shortLogged.Store(w.now)
				w.log.Warn("memory is short: senders are slowed down", "used_bytes", used, "limit_bytes", limit, "flows", w.relay.live.Load(),
					"remedy", "raise memory_limit, or lower max_flows")
			}
		}
	case short && (limit == 0 || float64(used) < memoryEase*float64(limit)):
		if g.short.CompareAndSwap(true, false) {
			w.relay.measureMemory()
		}
	}
	switch {
	case g.short.Load():
		free := max(0, limit-used)
		room := free / max(1, g.held.queues.Load())
		w.bounding = true
		w.maxSplice = int(min(max(minQueue, room), splice.Wanted))
		w.eachFlow(func(f *flow) {
			if f.ration == nil {
				return // the flow began, or memory became short, after the measurement; the next is soon
			}
			f.bound(min(room, f.source.held.room(free), f.route.state.held.room(free)))
		})
		w.measureAt = w.now + max(minMeasureInterval, time.Duration(w.load.Load())*measureIntervalPerFlow)
	default:
		if w.bounding {
			w.bounding = false
			w.maxSplice = splice.Wanted
			w.eachFlow(w.unration)
		}
		w.measureAt = 0
		if w.activity {
			w.noteActivity()
		} else if w.held > 0 {
			w.measureAt = w.now + idleMeasureInterval
		}
	}
	w.activity = false
}

// ration is the accounting of a flow while memory is short.
type ration struct {
	sizes        [2]queueSizes    // by leg
	held, queues int64            // its part of the source's and tunnel's holdings
	delivered    [2]int64         // bytes of each direction at the latest progress
	since        [2]time.Duration // time of the latest progress, or when it last held nothing
}

// weigh measures a flow and its progress in delivery. Progress means more than
// an eighth of the held bytes; a trickle does not count.
func (w *worker) weigh(f *flow) (held, queues int64) {
	r := f.ration
	if r == nil {
		r = &ration{since: [2]time.Duration{w.now, w.now}}
		f.ration = r
		w.setUpLegs(f)
	}
	f.sockets(func(fds [2]int) {
		var inflow, outflow [2]int64 // in the queues of each leg
		for s := client; s <= target; s++ {
			if m, ok := socketMemory(fds[s]); ok {
				held += m.held()
				queues += 2
				inflow[s], outflow[s] = int64(m[skReceived]), int64(m[skSendQueued])
			}
		}
		for s := client; s <= target; s++ {
			dir, o := &f.dirs[s], s.other()
			held += int64(dir.held)
			delivered := dir.bytes
			if fd := fds[o]; fd >= 0 && outflow[o] > 0 && !f.isLane(o) {
				delivered -= int64(socket.Unacknowledged(fd))
			}
			holds := inflow[s] + int64(dir.held) + outflow[o]
			if f.isLane(o) { // what is kept lies in its queue too, and bytes count once the other relay has delivered them
				holds = inflow[s] + max(int64(dir.held), outflow[o])
			}
			if holds == 0 || delivered-r.delivered[s] > holds/8 || f.inOutage() {
				r.since[s], r.delivered[s] = w.now, delivered
			}
		}
	})
	held += f.jointMemory()
	f.source.held.add(held-r.held, queues-r.queues)
	f.route.state.held.add(held-r.held, queues-r.queues)
	r.held, r.queues = held, queues
	return held, queues
}

// unration restores the bounds of a flow's queues, and subtracts the flow from
// the holdings of its source and tunnel.
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

// evict resets flows that hold memory without delivering any of it, largest
// first, until enough memory is free.
func (w *worker) evict() {
	g := &w.relay.memory
	timeout := w.relay.opts.StallTimeout
	patience := g.patience(timeout, g.held.bytes.Load())
	if patience == 0 {
		return
	}
	var stalled []*flow
	w.eachFlow(func(f *flow) {
		if f.phase != phaseIntegrity && w.now-min(f.ration.since[up], f.ration.since[down]) >= patience {
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
		if f.waitsForPath() {
			f.ration.since = [2]time.Duration{w.now, w.now}
			continue
		}
		held, queues := f.ration.held, f.ration.queues
		if last := g.evictLogged.Load(); last == 0 || w.now-last > memoryLogPause {
			g.evictLogged.Store(w.now)
			w.log.Warn("memory is short: flows that get nothing delivered are reset, the largest first", "used_bytes", used, "limit_bytes", g.limit.Load(),
				"client", f.client.String(), "tunnel", f.route.tunnel.Name, "held_bytes", held, "remedy", "raise memory_limit, or lower max_flows_per_source")
		}
		g.held.add(-held, -queues)
		w.held -= held
		w.queues -= queues
		w.abort(f, report.EndStalled, fmt.Errorf("it held %d bytes, and nothing was delivered for %v", held, since.Round(time.Millisecond)))
	}
}

// queueSizes holds the bounds of a leg's socket from before memory was short;
// zero while they are untouched.
type queueSizes struct {
	send, receive uint32 // as the kernel counts
	least         int64  // bytes that each queue may always hold
	locks         int    // SO_BUF_LOCK: the queues without autotuning
}

// memory returns how many bytes the flow's sockets and pipes hold, and the
// number of queues.
func (f *flow) memory() (held, queues int64) {
	f.sockets(func(fds [2]int) {
		for s := client; s <= target; s++ {
			held += int64(f.dirs[s].held)
			if m, ok := socketMemory(fds[s]); ok {
				held += m.held()
				queues += 2
			}
		}
	})
	return held + f.jointMemory(), queues
}

// bound limits each queue of the flow to room bytes above its current content.
func (f *flow) bound(room int64) {
	f.sockets(func(fds [2]int) {
		for s := client; s <= target; s++ {
			f.ration.sizes[s].bound(fds[s], room)
		}
	})
}

// bound limits both queues of a leg's socket.
func (was *queueSizes) bound(fd int, room int64) {
	m, ok := socketMemory(fd)
	if !ok {
		return
	}
	first := was.send == 0
	if first {
		locks, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BUF_LOCK)
		mss, _ := unix.GetsockoptInt(fd, unix.SOL_TCP, unix.TCP_MAXSEG)
		*was = queueSizes{
			send: m[skSendBound], receive: m[skReceiveBound], locks: locks,
			least: max(minQueue, int64(minSegments*mss)),
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
		// The first call always sets the option: it ends autotuning.
		if change := want - int64(q.now); first || change > int64(q.now)/4 || -change > int64(q.now)/4 {
			setsockoptInt(fd, unix.SOL_SOCKET, q.option, int32(want/2)) // the kernel doubles it
		}
	}
}

// unbound restores the bounds of the queues, and autotuning where it was on.
func (f *flow) unbound() {
	f.sockets(func(fds [2]int) {
		for s := client; s <= target; s++ {
			f.ration.sizes[s].unbound(fds[s])
		}
	})
}

func (was *queueSizes) unbound(fd int) {
	if was.send == 0 || fd < 0 {
		return
	}
	for _, q := range [...]struct {
		option, force int
		size          uint32
	}{{unix.SO_RCVBUF, unix.SO_RCVBUFFORCE, was.receive}, {unix.SO_SNDBUF, unix.SO_SNDBUFFORCE, was.send}} {
		// Without CAP_NET_ADMIN the kernel grants at most rmem_max and
		// wmem_max; autotuning grows from there.
		if setsockoptInt(fd, unix.SOL_SOCKET, q.force, int32(q.size/2)) != 0 {
			setsockoptInt(fd, unix.SOL_SOCKET, q.option, int32(q.size/2))
		}
	}
	setsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BUF_LOCK, int32(was.locks))
}

// meminfo is the result of SO_MEMINFO, in the kernel's order. Values are in
// bytes and count the kernel's allocations, not the payload.
type meminfo [skCount]uint32

const (
	skReceived     = iota // in the receive queue
	skReceiveBound        // SO_RCVBUF
	skInTransit           // handed to the device
	skSendBound           // SO_SNDBUF
	skForward             // reserved for future use
	skSendQueued          // in the send queue
	skOptions
	skBacklog // received while the socket was in use
	skDrops
	skCount
)

// held is the memory of a socket in bytes. The reserve is signed and may be
// below zero for moments.
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

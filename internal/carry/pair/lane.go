package pair

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/compress"
	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
	"longhaul/internal/sys/splice"
	"longhaul/internal/sys/tcpinfo"
)

// errOtherProcess is the error of a lane that another far process than the session's has
// answered.
var errOtherProcess = errors.New("another process answers")

// errUnbound is the error of a send on a lane that the flow has no more.
var errUnbound = errors.New("the lane is another flow's")

// holder is the flow that has a lane.
type holder interface {
	// deliver, deliverEnd and deliverPipe take what the lane brings, and wait for room.
	deliver(l *lane, offset uint64, b []byte) error
	deliverEnd(l *lane, length uint64, crc uint32) error
	deliverPipe(l *lane, pipe *splice.Pipe, n int) (empty bool)
	// passable reports that bytes may go to the flow's own socket unseen.
	passable(l *lane, offset uint64, n int) bool
	// early returns memory for bytes that come before their turn, and spilled counts them.
	early(l *lane, offset uint64, n int) (e *stream.Early, skip bool)
	spilled(e *stream.Early, n int)
	// answeredAttach takes the far relay's answer to an ATTACH or a JOIN.
	answeredAttach(l *lane, id, received uint64, join bool)
	// answeredRelease takes the far relay's answer to a RELEASE, and reports whether the lane is free.
	answeredRelease(l *lane) (free bool)
	// giveLane takes a RELEASE of the near relay, and reports whether the lane is free.
	giveLane(l *lane, final bool, received uint64) bool
	laneLost(l *lane)
	leavePath(l *lane)
	// cannotDoWithout reports that the flow is cut with its lane.
	cannotDoWithout(l *lane) bool
	Reset(reason flow.EndReason, err error)
	// packing decides which of the flow's records are worth compressing; nil: none was yet, and none is begun.
	packing(begin bool) *compress.Policy
	// credit counts what the kernel has sent for the flow.
	credit(c flow.Counters)
}

// home is the session that has a lane.
type home interface {
	// open, attach and released take frames that begin or end a flow's time on the lane.
	open(l *lane, frame wire.Frame, b []byte) error
	attach(l *lane, id uint64, frame wire.Frame) error
	released(l *lane, f holder, frame wire.Frame) error
	padded(l *lane)
	// laneGreeted takes the news that the far relay's HELLO has come, laneFailed that the lane broke before it,
	// laneEnded that it has ended.
	laneGreeted()
	laneFailed(err error)
	laneEnded(l *lane, err error)
	// connected reports whether there is a control connection.
	connected() bool
}

// lane is one WAN connection that carries one flow at a time. Its goroutine reads;
// whoever has something to send writes.
type lane struct {
	s    *relation
	home home
	frames
	acceptor Acceptor      // far relay: the tunnel that accepted it
	path     *wanPath      // near relay
	ended    chan struct{} // the reader has returned
	// instance is that of the far process which the reader expects in a HELLO, at
	// first; 0: HELLO was read.
	instance uint64
	answered atomic.Bool // HELLO was read
	pads     atomic.Bool // on its way to the pool

	tuned readerWait // at the last look at whether lanes limit the flow; under the flow's lock

	wmu      sync.Mutex // serializes writes; taken before mu
	recorded readerWait // when a write last had to wait; under wmu

	mu   sync.Mutex
	flow holder // set by carry; nil: none
	// idleSince is since when an accepted lane has no flow.
	idleSince stamp
	counted   bool // among the idle lanes of its peer
	// settled are the connection's counters up to which its flows have their shares.
	settled flow.Counters
	brought
	// draining: a final RELEASE was sent; bytes are dropped until its answer.
	draining bool
	retired  bool      // no flow is to have it again
	since    time.Time // of draining, or before it of pads
	warm     bool      // in the pool
	used     bool      // it has carried a flow
	closed   bool
	dead     bool // its reader has returned
}

// brought is what a lane has brought of its flow.
type brought struct {
	sawEnd  bool   // nothing of it follows
	reached uint64 // in a sealed session: behind the latest of its bytes
	// reachedAt is when reached moved, or the lane came to the flow.
	reachedAt stamp
	offer     wire.Frame // far: a RELEASE without an answer yet
}

func newLane(s *relation, home home, c *connection, a Acceptor) *lane {
	l := &lane{s: s, home: home, frames: frames{c.bulk, c.stream, c.sums()}, acceptor: a, path: c.path, ended: make(chan struct{})}
	if l.spliced() {
		l.bulk.exact, l.bulk.linger = true, &s.node.linger
	}
	return l
}

func (l *lane) close() {
	l.mu.Lock()
	closed := l.closed
	l.closed = true
	l.settle()
	l.mu.Unlock()
	if !closed {
		l.path.leave(l)
		l.bulk.Close()
	}
}

// closeByReset closes the lane so that nothing the kernel has queued comes late, behind what
// another lane carries.
func (l *lane) closeByReset() {
	l.bulk.control(func(fd int) { setReset(fd, true) })
	l.close()
}

// bind gives the lane to a flow, nil: to none. It reports false if the lane has ended.
func (l *lane) bind(f holder) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		return false
	}
	l.settle()
	if f != nil && f != l.flow {
		l.settled, _ = l.counters()
	}
	l.carry(f)
	l.brought, l.used = brought{reachedAt: stampNow()}, l.used || f != nil
	return true
}

// enter takes the news that the session has got the lane, and whether its window is opened first.
func (l *lane) enter(pads bool) {
	l.pads.Store(pads)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.since = time.Now()
	l.count(l.flow == nil && !l.dead)
}

// carry sets the lane's flow. The caller holds l.mu.
func (l *lane) carry(f holder) {
	l.flow = f
	l.count(f == nil && !l.dead)
}

// count has an accepted lane counted among the idle ones of its peer, or not. The caller holds
// l.mu.
func (l *lane) count(idle bool) {
	lanes := l.s.idle
	if lanes == nil || l.counted == idle {
		return
	}
	if l.counted = idle; idle {
		l.idleSince = stampNow()
		lanes.Add(1)
	} else {
		lanes.Add(-1)
	}
}

// idle reports whether an accepted lane carries no flow, and since when.
func (l *lane) idle() (since stamp, yes bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.idleSince, l.counted
}

// die ends the lane, whose reader has returned, and returns its flow.
func (l *lane) die() holder {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.flow
	l.settle()
	l.dead = true
	l.carry(nil)
	return f
}

func (l *lane) isDead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dead
}

// unbind takes the lane from a flow, if it has it.
func (l *lane) unbind(f holder) {
	l.mu.Lock()
	if l.flow == f {
		l.settle()
		l.carry(nil)
	}
	l.mu.Unlock()
}

func (l *lane) bound() holder {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.flow
}

// overdue reports that the far relay does not answer a final RELEASE, or that nothing comes any more of
// the bytes that are to open the lane's window.
func (l *lane) overdue(now time.Time) bool {
	pads := l.pads.Load()
	l.mu.Lock()
	waits := (l.draining || pads) && now.Sub(l.since) > drainWithin+l.s.strained()
	draining := l.draining
	l.mu.Unlock()
	return waits && (draining || kernelSays(l.bulk, func(i *tcpinfo.Info) bool { return i.LastDataRecv > drainWithin }))
}

// retire has the lane closed when it has been drained: the pool would give it out again.
func (l *lane) retire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.retired = true
}

// keepOffer keeps a RELEASE that has overtaken an acknowledgement.
func (l *lane) keepOffer(f holder, offer wire.Frame) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flow == f {
		l.offer = offer
	}
}

// carried are the bytes that the other end has acknowledged on the lane, and those that have
// come.
func (l *lane) carried() (sent, received int64) {
	kernelSays(l.bulk, func(i *tcpinfo.Info) bool {
		if i.Has(tcpinfo.FieldBytesAcked) {
			sent, received = int64(i.BytesAcked), int64(i.BytesReceived)
		}
		return true
	})
	return sent, received
}

const drainWithin = 5 * time.Second // of a lane that was released with bytes under way, or waits for PADs

// beginDrain has the lane drop bytes until the far relay has answered a final RELEASE.
func (l *lane) beginDrain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.draining, l.since = true, time.Now()
}

// endDrain reports whether the lane was drained, and whether it is to be closed then.
func (l *lane) endDrain() (drained, retired bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	drained, l.draining = l.draining, false
	return drained, l.retired
}

// spliced reports whether bytes of the lane may pass unseen.
func (l *lane) spliced() bool { return l.s.noResume && l.bulk.clear }

// settle credits the lane's flow with what was sent since the last time. The caller holds
// l.mu.
func (l *lane) settle() {
	if l.flow == nil {
		return
	}
	if now, known := l.counters(); known {
		l.flow.credit(now.Minus(l.settled))
		l.settled = now
	}
}

// counters are those of the lane's connection; false: it is closed.
func (l *lane) counters() (c flow.Counters, known bool) {
	known = kernelSays(l.bulk, func(i *tcpinfo.Info) bool {
		c = flow.Counters{BytesSent: int64(i.BytesSent), BytesRetransmitted: int64(i.BytesRetrans), Retransmits: int64(i.Missed())}
		return i.Has(tcpinfo.FieldBytesSent)
	})
	return c, known
}

// unsettled is what the lane has sent that its flow has no share of yet.
func (l *lane) unsettled() flow.Counters {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now, known := l.counters(); known {
		return now.Minus(l.settled)
	}
	return flow.Counters{}
}

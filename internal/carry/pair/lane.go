package pair

import (
	"errors"
	"io"
	"log/slog"
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
	// laneFailed takes the news that the lane broke before the far relay's HELLO, laneEnded that it has ended.
	laneFailed(err error)
	laneEnded(l *lane, err error)
	// connected reports whether there is a control connection.
	connected() bool
}

// lane is one WAN connection that carries one flow at a time. Its goroutine reads;
// whoever has something to send writes.
type lane struct {
	s        *relation
	home     home
	bulk     *bulkConn
	conn     io.ReadWriter // TLS, or bulk in clear
	acceptor Acceptor      // far relay: the tunnel that accepted it
	path     *wanPath      // near relay
	sums     bool          // of frames
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
	sawEnd  bool   // of the flow, on this lane: nothing of it follows
	reached uint64 // in a sealed session: behind the latest bytes that the lane has brought of the flow
	// reachedAt is when reached moved, or the lane came to the flow.
	reachedAt stamp
	offer     wire.Frame // far: a RELEASE of the flow without an answer yet
	// draining: a final RELEASE was sent; bytes are dropped until its answer.
	draining bool
	retired  bool      // no flow is to have it again
	since    time.Time // of draining, or before it of pads
	warm     bool      // in the pool
	used     bool      // it has carried a flow
	closed   bool
	dead     bool // its reader has returned
}

func newLane(s *relation, home home, c *connection, a Acceptor) *lane {
	l := &lane{s: s, home: home, bulk: c.bulk, conn: c.stream, acceptor: a, path: c.path, sums: c.sums(), ended: make(chan struct{})}
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
	l.sawEnd, l.reached, l.reachedAt, l.used = false, 0, stampNow(), l.used || f != nil
	l.offer = wire.Frame{}
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

// send writes a frame of a flow, then an item; each may be nil. Its error closes the lane.
func (l *lane) send(f holder, greet []byte, item *stream.Item) error {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	if l.bound() != f {
		return errUnbound
	}
	l.bulk.waited = false
	record := l.compressed(f, item)
	defer giveBuffer(record)
	err := l.write(l.framed(greet), item, record)
	if l.bulk.waited {
		l.full(f)
	}
	return err
}

// awaitRoom waits until the kernel takes more of a flow. Its error closes the lane.
func (l *lane) awaitRoom(f holder) error {
	waited, err := l.bulk.awaitRoom()
	if err != nil {
		l.close()
	}
	if waited {
		l.wmu.Lock()
		defer l.wmu.Unlock()
		l.full(f)
	}
	return err
}

// release answers or begins a RELEASE behind which nothing of the flow is sent.
func (l *lane) release(f holder, flags byte, received uint64) error {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	l.unbind(f)
	return l.write(l.framed(wire.AppendRelease(nil, flags, received)), nil, nil)
}

// framed is a frame as the lane has it.
func (l *lane) framed(frame []byte) []byte {
	if !l.sums || len(frame) == 0 {
		return frame
	}
	return wire.WithSums(frame)
}

// putHead writes a frame's head to b as the lane has it, and returns its length there.
func (l *lane) putHead(b []byte, frame wire.Frame) int {
	frame.Put(b)
	if !l.sums {
		return wire.HeadSize
	}
	return wire.PutSum(b, wire.HeadSize)
}

// write sends bytes of frames, then an item, in place of whose bytes goes their record if there is
// one.
func (l *lane) write(frames []byte, item *stream.Item, record []byte) error {
	err := l.writeCorked(frames, item, record)
	if err == nil {
		err = l.bulk.flush()
	}
	if err != nil {
		l.close()
	}
	return err
}

func (l *lane) writeCorked(frames []byte, item *stream.Item, record []byte) error {
	if len(frames) > 0 {
		if _, err := l.conn.Write(frames); err != nil {
			return err
		}
	}
	switch {
	case item == nil:
		return nil
	case item.End:
		_, err := l.conn.Write(l.framed(wire.AppendEnd(nil, item.Offset, item.CRC)))
		return err
	}
	// The head goes with the bytes of the first record: one of its own would cost as much
	// as a full one.
	first := takeBuffer(false)
	defer giveBuffer(first)
	frame, b := wire.Frame{Type: wire.FrameData, Offset: item.Offset}, item.Bytes
	if record != nil {
		frame.Flags, b = wire.FlagCompressed, record
	}
	frame.Length = len(b)
	head := l.putHead(first, frame)
	l.bulk.expected = head + len(b)
	most := recordAt(item.Offset)
	n := copy(first[head:most], b)
	_, err := l.conn.Write(first[:head+n])
	for b = b[n:]; err == nil && len(b) > 0; b = b[n:] {
		if n = len(b); most < maxRecord {
			n = min(n, most)
		}
		_, err = l.conn.Write(b[:n])
	}
	return err
}

// maxHead is the most bytes of a frame's head with its sum.
const maxHead = wire.HeadSize + wire.SumSize

const (
	// maxRecord is the most bytes of a TLS record (RFC 8446, section 5.1).
	maxRecord = 16 << 10
	// smallRecord is that of the records in which the first bytes of a flow go, up to smallUntil:
	// crypto/tls keeps a buffer of the largest record that a connection has brought. A crowd of small
	// flows takes a quarter of the memory.
	smallRecord = 4 << 10
	smallUntil  = 64 << 10
)

// recordAt is the size of TLS records at an offset of a stream.
func recordAt(offset uint64) int {
	if offset < smallUntil {
		return smallRecord
	}
	return maxRecord
}

// flush sends what waits to be sent with a flow's first bytes.
func (l *lane) flush() {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	_ = l.write(nil, nil, nil)
}

// padPiece is what pad writes at a time, in bytes: while the other end reads nothing, no more
// waits in memory.
const padPiece = 8 << 10

var zeros [padPiece]byte

// pad sends n bytes that the other end skips. An end that takes none of them for
// writeTimeout loses the lane.
func (l *lane) pad(n int) {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	defer l.bulk.SetWriteDeadline(time.Time{})
	var head [maxHead]byte
	size := l.putHead(head[:], wire.Frame{Type: wire.FramePad, Length: n})
	_ = l.bulk.SetWriteDeadline(time.Now().Add(writeTimeout))
	err := l.write(head[:size], nil, nil)
	for ; n > 0 && err == nil; n -= padPiece {
		_ = l.bulk.SetWriteDeadline(time.Now().Add(writeTimeout))
		err = l.write(zeros[:min(n, padPiece)], nil, nil)
	}
}

// run reads the lane until it ends.
func (l *lane) run() {
	defer close(l.ended)
	err := l.greet()
	if err != nil {
		l.home.laneFailed(err)
	} else {
		err = l.read()
	}
	if errors.Is(err, wire.ErrSum) {
		l.altered()
	}
	l.close()
	l.home.laneEnded(l, err)
}

// altered takes the news that nobody knows any more where the lane's next frame begins.
func (l *lane) altered() {
	l.s.tell(slog.LevelWarn, "bytes of a connection in clear were altered on the way: it is closed", nil)
	f := l.bound()
	if f == nil || !f.cannotDoWithout(l) {
		return
	}
	f.Reset(flow.EndDamaged, wire.ErrSum)
	if !l.home.connected() {
		return
	}
	// The other end takes the lane's end for an outage. The cause goes ahead of it.
	_ = l.bulk.SetReadDeadline(time.Now().Add(drainWithin))
	_, _ = io.Copy(io.Discard, l.conn)
}

// greet reads the HELLO of a lane that was used before it came.
func (l *lane) greet() error {
	if l.instance == 0 {
		l.answered.Store(true)
		return nil
	}
	_ = l.bulk.SetReadDeadline(time.Now().Add(handshakeTimeout + l.s.strained()))
	hello, err := readHello(l.conn, l.s.features())
	if err != nil {
		return err
	}
	if hello.Instance != l.instance {
		return errOtherProcess
	}
	l.answered.Store(true)
	return l.bulk.SetReadDeadline(time.Time{})
}

func (l *lane) read() error {
	var head [maxHead]byte
	var small [512]byte
	for {
		if err := l.readPart(head[:], wire.HeadSize); err != nil {
			return err
		}
		frame, err := wire.ParseFrame(head[:])
		if err != nil {
			return err
		}
		if frame.Compressed() {
			if err := l.readRecord(frame); err != nil {
				return err
			}
			continue
		}
		if frame.Type == wire.FrameData || frame.Type == wire.FramePad {
			if err := l.readBytes(frame); err != nil {
				return err
			}
			continue
		}
		if err := l.readPart(small[:], frame.Length); err != nil {
			return err
		}
		if err := l.handle(frame, small[:frame.Length]); err != nil {
			return err
		}
	}
}

// readPart reads a head, or what follows that of a frame without bytes of a stream, and its sum.
func (l *lane) readPart(b []byte, n int) error {
	if !l.sums || n == 0 {
		_, err := io.ReadFull(l.conn, b[:n])
		return err
	}
	if _, err := io.ReadFull(l.conn, b[:n+wire.SumSize]); err != nil {
		return err
	}
	return wire.CheckSum(b[:n+wire.SumSize])
}

// readBytes delivers the bytes of a frame as they come, in as large pieces as are here.
func (l *lane) readBytes(frame wire.Frame) error {
	buf := takeBuffer(frame.Length > smallBuffer)
	defer giveBuffer(buf)
	f := l.bound()
	for left, offset := frame.Length, frame.Offset; left > 0; {
		if frame.Type == wire.FrameData {
			n, err := l.passIn(f, offset, left)
			if err != nil {
				return err
			}
			if n > 0 {
				left, offset = left-n, offset+uint64(n)
				continue
			}
		}
		var spill *stream.Early
		skip := false
		if f != nil && frame.Type == wire.FrameData {
			spill, skip = f.early(l, offset, left)
		}
		want := buf[:min(left, len(buf))]
		if spill != nil {
			want = spill.Space()
			want = want[:min(left, len(want))]
		}
		n, err := l.readHere(want, left)
		if frame.Type == wire.FrameData {
			l.noteReached(f, offset+uint64(n))
		}
		switch {
		case spill != nil:
			f.spilled(spill, n)
		case f != nil && frame.Type == wire.FrameData && err == nil && !skip:
			err = f.deliver(l, offset, want[:n])
		}
		if err != nil {
			return err
		}
		left, offset = left-n, offset+uint64(n)
	}
	if frame.Type == wire.FramePad {
		l.home.padded(l)
	}
	return nil
}

// readHere waits for bytes and reads those that are here, of a frame of which so many are
// left.
func (l *lane) readHere(want []byte, left int) (n int, err error) {
	l.bulk.due = left
	n, err = l.conn.Read(want)
	for err == nil && n < len(want) && l.bulk.ready() {
		var more int
		l.bulk.due = left - n
		more, err = l.conn.Read(want[n:])
		n += more
	}
	l.bulk.due = 0
	return n, err
}

func (l *lane) handle(frame wire.Frame, b []byte) error {
	if l.s.sealed() && (frame.Type == wire.FrameOpen || frame.Type == wire.FrameEnd) {
		return errUnsealed
	}
	f := l.bound()
	switch frame.Type {
	case wire.FrameOpen:
		return l.home.open(l, frame, b)
	case wire.FrameAttach:
		return l.home.attach(l, wire.ParseAttach(b), frame)
	case wire.FrameEnd:
		if f == nil {
			return nil
		}
		l.mu.Lock()
		l.sawEnd = l.sawEnd || l.flow == f
		l.mu.Unlock()
		return f.deliverEnd(l, frame.Offset, wire.ParseEnd(b))
	case wire.FrameRelease:
		return l.home.released(l, f, frame)
	}
	return nil
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

// noteReached notes up to where a lane of a sealed session has brought a flow's bytes.
func (l *lane) noteReached(f holder, offset uint64) {
	if f == nil || !l.s.sealed() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flow == f && offset > l.reached {
		l.reached, l.reachedAt = offset, stampNow()
	}
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

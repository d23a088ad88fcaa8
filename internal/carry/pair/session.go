package pair

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"longhaul/internal/carry/pair/compress"
	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
)

// padSize is what opens the congestion window of an idle lane, in bytes: beyond it a
// flow's first 64 kB need no second round trip.
const padSize = 128 << 10

const (
	// maxBuried bounds the flows of a far session that are over and that it remembers, so that
	// a late OPEN dials no target.
	maxBuried = 4096
	// maxAsking bounds the OPENs of a far session that are neither admitted nor refused yet.
	maxAsking = 64
)

// session is one relation of two processes: a control connection, lanes, flows. It
// outlives its connections.
type session struct {
	node   *Node
	near   bool
	link   *Link  // near relay
	peer   string // name in Identity
	id     uint64
	use    *peerUse // far relay
	tunnel string   // of this host
	origin origin   // far relay
	boot   uint64   // far relay: of the near relay's host; 0: not said
	mode            // of its lanes

	resumes           atomic.Int64
	flowsTotal        atomic.Int64
	congestionControl atomic.Pointer[string] // of the latest lane
	srtt              atomic.Int64           // nanoseconds; 0: not measured
	strain            strain                 // of both processes, as PONGs show it
	dialStrain        strain                 // as handshakes of lanes show it beside late PONGs
	served            atomic.Int64           // stamp of when a flow last got a lane; 0: never
	rttvar            atomic.Int64
	delays            delays
	waiting           atomic.Int64 // flows that need a lane and have none
	proven            atomic.Int64 // near relay: attempts for the control connection that lack HELLO alone
	beginning         sync.Mutex   // near relay: held by the attempt that takes over
	compresses        atomic.Bool  // both ends know compressed records, and the near one wants them
	compressed        compressed
	reportsHeld       atomic.Bool // the other end takes HELD
	tellsSent         atomic.Bool // the other end takes SENT, and answers with LATE
	// sealed: lanes are in clear, and neither OPEN nor END comes on them.
	sealed atomic.Bool
	summed atomic.Bool // frames of lanes that are made now have sums

	mu         sync.Mutex
	instance   uint64 // of the other process; 0: not known yet
	stood      bool   // the pair has stood, in this session or before it: without ctl there is an outage
	release    string
	remote     netip.AddrPort
	over       *wanPath      // near relay: over which remote was reached
	acceptor   Acceptor      // far relay: of the latest connection
	resume     time.Duration // far relay: how long flows wait for a lane, as the near end says; 0: not said
	ctl        *control
	since      time.Time // of ctl, or of its loss
	outage     time.Duration
	lanesMany  bool // several lanes may carry a flow
	ahead      bool // OPEN may go ahead of its lane
	draining   bool
	ended      bool // near relay: the far process has said its last
	lastDue    bool // far relay: that is to be said
	trouble    trouble
	closed     bool
	revoked    bool          // of the watching goroutine
	greeting   time.Time     // near relay: an attempt for ctl is in its handshake since; zero: none
	padding    int           // near relay: lanes on their way to the pool
	writer     chan struct{} // closed when the goroutine that writes to ctl, or did, has ended; nil: none yet
	stale      bool          // far relay: see setStale
	asking     chan struct{} // far relay: has an element for each OPEN that is not decided
	undecided  atomic.Int64  // far relay: those, and further ones that wait to be asked for
	flows      map[uint64]*Flow
	watched    map[*Flow]struct{} // those that do not rest
	emptySince time.Time          // near relay, of a session that ends: without flows since
	buried     dropped
	outcomes   *outcomes            // far relay
	expects    map[uint64]*expected // far relay: by flow
	twin       bool                 // far relay: another relay of the same origin has lived beside the near one
	beside     bool                 // and does now
	lanes      map[*lane]struct{}
	warm       []*lane   // near relay, the latest used last
	renewed    time.Time // the latest renewal of one of warm
	dirty      []*Flow
	timer      *time.Timer // of a delayed flush; nil: none
	problem    Problem
	text       string
	pings      uint64

	moved   time.Time // near relay: of the latest move of ctl to a better path
	refused time.Time // near relay with several paths: somebody refused

	laneErr      error     // near relay: why no other connection could be made; nil: it could
	laneErrSince time.Time // of it, while the control connection stands

	laneDials int       // near relay, under the link's lock
	redialed  time.Time // near relay, under the link's lock: the latest attempt for ctl
}

func newSession(n *Node, peer string, id uint64, near bool) *session {
	s := &session{node: n, near: near, peer: peer, id: id, since: time.Now(), renewed: time.Now(),
		flows: map[uint64]*Flow{}, watched: map[*Flow]struct{}{}, lanes: map[*lane]struct{}{}}
	if !near {
		s.asking, s.use, s.outcomes = make(chan struct{}, maxAsking), &peerUse{}, &outcomes{}
	}
	return s
}

// goesOnFrom has a new session take what an older one of its link knows of outages and of the far
// tunnel. The caller holds the link's lock.
func (s *session) goesOnFrom(old *session) {
	old.mu.Lock()
	defer old.mu.Unlock()
	s.trouble = old.trouble
	if s.stood = old.stood; old.ctl == nil && old.stood {
		s.since = old.since
	}
}

// waits is how long a near session's flows wait for a lane.
func (s *session) waits(o LinkOptions) time.Duration {
	if s.noResume {
		return waitNoResume
	}
	return o.Resume
}

func (s *session) rtt() time.Duration { return time.Duration(s.srtt.Load()) }

// patience is max(floor, n round trips): how long an answer may take.
func (s *session) patience(floor time.Duration, n int) time.Duration {
	return max(floor, time.Duration(n)*s.rtt(), s.rtt()+4*time.Duration(s.rttvar.Load()))
}

// connectWithin bounds a connect: beyond it a fresh socket is faster than the kernel's
// repeated SYN, and sooner than the path is known to be slow, it is not.
func (s *session) connectWithin() time.Duration {
	late := s.node.strained() // to see that the connection stands
	if s.rtt() == 0 {
		return handshakeTimeout + late
	}
	return s.patience(time.Second, 4) + late
}

// laneWithin is connectWithin for a lane. While no lane can be made although the control connection
// stands, the path may have become slower than that: each connect gets as long as that has lasted.
func (s *session) laneWithin(now time.Time) time.Duration {
	within := s.connectWithin()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctl == nil || s.laneErr == nil {
		return within
	}
	return max(within, min(now.Sub(s.laneErrSince), handshakeTimeout))
}

// begin makes c the control connection, which replaces an older one.
func (s *session) begin(c *connection) {
	ctl := newControl(c)
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		ctl.close()
		return
	}
	old, oldWriter, writer := s.ctl, s.writer, make(chan struct{})
	s.ctl, s.writer = ctl, writer
	if old == nil {
		if s.stood {
			s.outage += time.Since(s.since)
		}
		s.since, s.stood = time.Now(), true
	} else if old.c.path != c.path {
		s.srtt.Store(0)
	}
	s.instance, s.release = c.hello.Instance, c.hello.Release
	s.remote, s.over, s.lanesMany = addressOf(c), c.path, c.hello.Features&wire.FeatureLanes != 0 && !s.noResume
	s.compresses.Store(s.compress && c.hello.Features&wire.FeatureCompress != 0)
	s.reportsHeld.Store(c.hello.Features&wire.FeatureHeld != 0)
	s.sealed.Store(s.sealedWith(c.hello))
	s.tellsSent.Store(s.sealed.Load() || c.hello.Features&wire.FeatureSent != 0)
	s.summed.Store(s.summedWith(c.hello))
	s.ahead = c.hello.Features&wire.FeatureAhead != 0 && !s.noResume
	if s.trouble.both = c.both&wire.FeatureTrouble != 0; !s.trouble.both {
		s.trouble = trouble{}
	}
	s.problem, s.text, s.laneErr = ProblemNone, "", nil
	flows := slices.Collect(maps.Values(s.flows))
	s.mu.Unlock()
	if old != nil {
		old.close()
	}
	if oldWriter != nil {
		<-oldWriter // else it may take what becomes due again below
	}
	if s.node.draining.Load() || s.isStale() {
		ctl.post(wire.Message{Type: wire.MessageDrain})
	}
	s.sendPing(ctl)
	if !s.near {
		s.outcomes.again(s.owesFor())
	}
	for _, f := range flows {
		f.resync()
	}
	s.node.tasks.Go(func() {
		defer close(writer)
		_ = ctl.write(s.fill)
		ctl.close()
	})
	s.node.tasks.Go(func() {
		err := ctl.read(func(m wire.Message) { s.handle(ctl, m) })
		ctl.close()
		s.controlLost(ctl, err)
	})
}

func (s *session) controlLost(ctl *control, err error) {
	s.mu.Lock()
	current := s.ctl == ctl
	if current {
		s.ctl = nil
		s.since = time.Now()
		s.problem, s.text = problemOf(err), errorText(err)
	}
	s.mu.Unlock()
	if !current {
		return
	}
	s.node.log.Debug("control connection lost", "peer", s.peer, "tunnel", s.tunnel, "error", err)
	s.blame(err)
	if s.link != nil {
		s.link.poke()
	}
}

// tell writes a line about the session's peer, unless one like it was written just now. err may be
// nil.
func (s *session) tell(level slog.Level, message string, err error) {
	attrs := []slog.Attr{slog.String("peer", s.peer), slog.String("tunnel", s.tunnel)}
	if err != nil {
		attrs = append(attrs, slog.Any("error", err))
	}
	s.node.limited.Log(level, message, []string{"peer", "tunnel"}, attrs...)
}

// violations are the errors of connections whose other end breaks the protocol.
var violations = []error{wire.ErrMalformed, errWrongEnd, errRecordUnasked, errUnsealed, compress.ErrRecord, stream.ErrGap}

// blame tells which rule of the protocol the peer has broken, if err says so.
func (s *session) blame(err error) {
	if slices.ContainsFunc(violations, func(v error) bool { return errors.Is(err, v) }) {
		s.tell(slog.LevelWarn, "peer breaks the pair protocol: its connection is closed", err)
	}
}

// upSince is for how long the control connection has stood; 0: it does not.
func (s *session) upSince(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctl == nil {
		return 0
	}
	return now.Sub(s.since)
}

// manyLanes reports whether several lanes may carry a flow: both ends know how.
func (s *session) manyLanes() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lanesMany
}

// opensAhead reports whether an OPEN may come ahead of its lane: both ends know how.
func (s *session) opensAhead() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ahead
}

func (s *session) control() *control {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ctl
}

// post notes that a flow has something for the control connection.
func (s *session) post(f *Flow, urgent bool) { // with f.mu
	s.mu.Lock()
	defer s.mu.Unlock()
	if !f.dirty {
		f.dirty = true
		s.dirty = append(s.dirty, f)
	}
	if s.ctl == nil {
		return
	}
	if urgent {
		s.ctl.flush()
	} else if s.timer == nil {
		s.timer = time.AfterFunc(ackDelay, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.timer = nil
			if s.ctl != nil {
				s.ctl.flush()
			}
		})
	}
}

// message sends a message, if the control connection stands.
func (s *session) message(m wire.Message) {
	if ctl := s.control(); ctl != nil {
		ctl.post(m)
	}
}

// offer is message for one that is repeated: it reports whether it went.
func (s *session) offer(m wire.Message) bool {
	ctl := s.control()
	return ctl != nil && ctl.offer(m)
}

// reply is message for an answer to what a lane brought: it waits as control's does.
func (s *session) reply(m wire.Message) {
	if ctl := s.control(); ctl != nil {
		ctl.reply(m)
	}
}

// fill appends the messages that flows have due, of so many flows that they come to about
// maxFill.
func (s *session) fill(out []byte) []byte {
	before, more := len(out), false
	s.mu.Lock()
	if !s.near {
		out, more = s.outcomes.fill(out, before+maxFill)
	}
	dirty := s.dirty
	s.dirty = nil
	last := s.lastDue && len(dirty) == 0 && !more
	s.lastDue = s.lastDue && !last
	s.mu.Unlock()
	if last { // behind all that this end says of flows
		return wire.Message{Type: wire.MessageDrain, Flags: wire.FlagLast}.Append(out)
	}
	for len(dirty) > 0 && len(out) <= before+maxFill {
		f := dirty[0]
		dirty = dirty[1:]
		s.mu.Lock()
		f.dirty = false
		s.mu.Unlock()
		out = f.messages(out)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dirty = append(dirty, s.dirty...) // they have waited longer
	if s.lastDue && s.ctl != nil {
		s.ctl.flush()
	}
	return out
}

func (s *session) flow(id uint64) *Flow {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flows[id]
}

func (s *session) add(f *Flow) {
	s.flowsTotal.Add(1)
	s.mu.Lock()
	s.flows[f.id] = f
	s.watched[f] = struct{}{}
	s.mu.Unlock()
}

// forget drops a flow that is over.
func (s *session) forget(f *Flow) {
	s.mu.Lock()
	delete(s.flows, f.id)
	delete(s.watched, f)
	if !s.near {
		s.buried.add(f.id, 0)
	}
	s.mu.Unlock()
	s.node.flowsNow.Add(-1)
}

// handle takes a message of the other end.
func (s *session) handle(ctl *control, m wire.Message) {
	switch m.Type {
	case wire.MessagePing:
		ctl.answerPing(binary.BigEndian.Uint64(m.Bytes))
	case wire.MessagePong:
		s.pong(ctl, binary.BigEndian.Uint64(m.Bytes))
	case wire.MessageTrouble:
		s.takeTrouble(ctl, m.Text)
	case wire.MessageDrain:
		s.drained(m.Flags&wire.FlagLast != 0)
	case wire.MessageKey:
		err := s.node.identity.Learn(s.peer, slices.Clone(m.Bytes))
		if errors.Is(err, identity.ErrTooSoon) {
			return // the peer announces it again
		}
		if err != nil {
			s.tell(slog.LevelWarn, "peer's new key is not stored", err)
			return
		}
		ctl.reply(wire.Message{Type: wire.MessageKeyTaken, Bytes: slices.Clone(m.Bytes)})
	case wire.MessageKeyTaken:
		if err := s.node.identity.Taken(s.peer, slices.Clone(m.Bytes)); err != nil {
			s.tell(slog.LevelWarn, "peer's receipt of the new key is not stored", err)
		}
	default:
		s.handleFlow(ctl, m)
	}
}

func (s *session) handleFlow(ctl *control, m wire.Message) {
	if m.Type == wire.MessageOpen && !s.near {
		s.takeOpen(m)
		return
	}
	f := s.flow(m.Flow)
	if f == nil {
		if !s.near && (m.Type == wire.MessageReset || m.Type == wire.MessageGone) {
			s.bury(m.Flow)
		}
		if m.Type != wire.MessageGone {
			ctl.reply(wire.Message{Type: wire.MessageGone, Flow: m.Flow})
		}
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.finished || f.s != s { // it has moved on
		return
	}
	f.take(m)
	f.wake()
}

func (s *session) bury(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buried.add(id, 0)
	s.outcomes.answered(id)
}

// join takes a lane whose HELLO names this session.
func (s *session) join(l *lane, pads bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.lanes[l] = struct{}{}
	l.enter()
	l.path.enter(l)
	s.noteCongestionControl(l)
	if l.pads = pads; pads {
		s.padding++
		l.since = time.Now()
	}
	s.node.tasks.Go(l.run)
	return true
}

// laneEnded takes the news that a lane's reader has returned.
func (s *session) laneEnded(l *lane, err error) {
	s.blame(err)
	s.mu.Lock()
	delete(s.lanes, l)
	if l.pads {
		l.pads = false
		s.padding--
	}
	s.warm = slices.DeleteFunc(s.warm, func(w *lane) bool { return w == l })
	s.mu.Unlock()
	l.path.probeEnded(l)
	if f := l.die(); f != nil {
		s.node.log.Debug("lane lost", "peer", s.peer, "tunnel", s.tunnel, "error", err)
		f.laneLost(l)
	}
	if s.link != nil {
		s.link.poke()
	}
}

// attach takes an ATTACH: at the near relay the answer to its own.
func (s *session) attach(l *lane, id uint64, frame wire.Frame) error {
	received, join := frame.Offset, frame.Flags&wire.FlagJoin != 0
	if s.near {
		f := l.bound()
		if f == nil || f.id != id {
			return nil
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.heard(l)
		switch {
		case join:
			f.joined(l, received)
		case f.lane == l:
			f.attaching, f.laneSince, f.wokeAt = false, stampNow(), 0
			f.attached(received)
		}
		return nil
	}
	if frame.Flags == wire.FlagBegin && s.sealed.Load() {
		return s.beginOn(l, id)
	}
	f := s.flow(id)
	if f == nil {
		l.bind(nil)
		s.reply(wire.Message{Type: wire.MessageGone, Flow: id})
		return nil
	}
	if join {
		f.joinFar(l, received)
		return nil
	}
	f.attachFar(l, received, wire.AppendAttach)
	return nil
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func addressOf(c *connection) netip.AddrPort {
	a, err := netip.ParseAddrPort(c.bulk.RemoteAddr().String())
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

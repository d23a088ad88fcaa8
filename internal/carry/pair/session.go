package pair

import (
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"longhaul/internal/carry/pair/compress"
	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
	"longhaul/internal/sys/tcpinfo"
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

// laneCongestionControl names that of the session's lanes; empty: there was none.
func (s *session) laneCongestionControl() string {
	if name := s.congestionControl.Load(); name != nil {
		return *name
	}
	return ""
}

func (s *session) noteCongestionControl(l *lane) {
	l.bulk.control(func(fd int) {
		likely := s.laneCongestionControl()
		if name, err := tcpinfo.LikelyCongestionControl(fd, likely); err == nil && name != likely {
			s.congestionControl.Store(&name)
		}
	})
}

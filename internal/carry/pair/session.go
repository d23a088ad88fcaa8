package pair

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
)

// session is one relation of two processes: a control connection, lanes, flows. It
// outlives its connections. Its parts have locks of their own, which are taken after its own.
type session struct {
	relation
	outbox
	registry
	pool
	traces traces
	*nearSide
	*farSide

	mu       sync.Mutex
	instance uint64 // of the other process; 0: not known yet
	release  string
	remote   netip.AddrPort
	stood    bool      // the pair has stood, in this session or before it: without a control connection there is an outage
	since    time.Time // of the control connection, or of its loss
	outage   time.Duration
	writer   chan struct{} // closed when the goroutine that writes to the latest control connection has ended; nil: none yet
	draining bool
	revoked  atomic.Bool // its peer was not admitted at the latest look
	trouble  trouble
	validity validity
	problem  flow.PairProblem
	text     string
}

// nearSide is what only a near session has. Without another word it is under the session's lock.
type nearSide struct {
	link      supplier
	paths     *pathSet
	proven    atomic.Int64 // attempts for the control connection that lack HELLO alone
	beginning sync.Mutex   // held by the attempt that takes over
	ended     atomic.Bool  // the far process has said its last
	unmade    unmade       // lanes
	missed    atomic.Bool  // the host was asked for another control connection in vain
	refusals  refusals

	over     *wanPath // over which remote was reached
	own      ownAddress
	greeting time.Time // an attempt for the control connection is in its handshake since; zero: none
	seeking  time.Time // the same of one that any host of the site may answer
	greeter  greeter
	sought   time.Time // when no host of the site was where one was last asked for
	moved    time.Time // of the latest move of the control connection to a better path
	refused  time.Time // with several paths: somebody refused

	laneDials int       // under the link's lock
	redialed  time.Time // under the link's lock: the latest attempt for the control connection
}

// supplier is the link of a near session, which makes lanes and gives them to flows.
type supplier interface {
	options() LinkOptions
	// poke has the link look at once at what is missing.
	poke()
	// want finds a lane for a flow, now or later, wantMore one more over a path. The caller holds f.mu.
	want(f *Flow)
	wantMore(f *Flow, p *wanPath)
	// sentAhead takes note that a flow's OPEN needs no lane any more.
	sentAhead(f *Flow)
	// moveOn takes a flow to the next session, if it may, followEnd one of whose session the far process
	// has said its last. The caller holds f.mu.
	moveOn(f *Flow) bool
	followEnd(f *Flow)
	// refresh makes a lane, so that both ends see each other's present certificates.
	refresh(s *session, made func(error))
	// leave has new flows go to another session.
	leave(s *session)
	// revoke ends the flows of a session whose host is none of the peers any more.
	revoke(s *session, err error)
	// place gives a lane to a flow that waits for one, or to the pool.
	place(s *session, l *lane)
	// laneFailed takes the news that a lane broke before the far relay's HELLO.
	laneFailed(s *session, err error)
}

// farSide is what only a far session has. Without another word it is under the session's lock.
type farSide struct {
	use      *peerUse
	key      NearSession // under the node's lock
	origin   origin
	boot     uint64                   // of the near relay's host; 0: not said
	left     func(*session)           // takes the news that the session has ended
	acceptor atomic.Pointer[Acceptor] // of the latest connection
	resume   atomic.Int64             // how long flows wait for a lane in nanoseconds, as the near end says; 0: not said
	stale    atomic.Bool              // see setStale
	twin     bool                     // another relay of the same origin has lived beside the near one
	beside   bool                     // and does now
}

// latest is the tunnel that took the latest connection.
func (fs *farSide) latest() Acceptor { return *fs.acceptor.Load() }

// waitsFor is how long flows wait for a lane.
func (fs *farSide) waitsFor() time.Duration {
	return cmp.Or(time.Duration(fs.resume.Load()), DefaultResume)
}

// owesFor is for how long a near relay may wait for news of a flow that has ended here: that gives the
// flow up as well, but may have lost the path later.
func (fs *farSide) owesFor() time.Duration { return 2 * fs.waitsFor() }

func newSession(n *process, peer string, id uint64, near bool) *session {
	now := time.Now()
	s := &session{relation: relation{node: n, near: near, peer: peer, id: id}, since: now}
	s.here = &n.strain
	s.pool.lanes, s.pool.renewed = map[*lane]struct{}{}, now
	s.registry.init(near)
	if near {
		s.nearSide = &nearSide{}
	} else {
		s.farSide, s.outcomes = &farSide{use: &peerUse{}}, &outcomes{}
	}
	return s
}

// goesOnFrom has a new session take what an older one of its link knows of outages and of the far
// tunnel. The caller holds the link's lock.
func (s *session) goesOnFrom(old *session) {
	old.mu.Lock()
	defer old.mu.Unlock()
	s.trouble.goesOnFrom(&old.trouble)
	if s.stood = old.stood; old.control() == nil && old.stood {
		s.since = old.since
	}
}

// stand makes ctl the control connection, in place of old.
func (s *session) stand(ctl *control) (old *control, oldWriter, writer chan struct{}, ok bool) {
	c := ctl.c
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return nil, nil, nil, false
	}
	old, oldWriter, writer = s.ctl.Swap(ctl), s.writer, make(chan struct{})
	s.writer = writer
	if old == nil {
		if s.stood {
			s.outage += time.Since(s.since)
		}
		s.since, s.stood = time.Now(), true
	} else if old.c.path != c.path {
		s.srtt.Store(0)
	}
	s.instance, s.release, s.remote = c.hello.Instance, c.hello.Release, addressOf(c.bulk)
	s.agree(c.both)
	if !s.knows(wire.FeatureTrouble) {
		s.trouble.goesOnFrom(&trouble{})
	}
	s.problem, s.text = "", ""
	if s.near {
		s.over = c.path
		s.proved.Store(&c.who)
		s.own.take(c.hello.Address, s.remote, c.listed)
		s.unmade.note(nil)
		s.missed.Store(false)
		s.refusals.clear()
	}
	return old, oldWriter, writer, true
}

func (s *session) controlLost(ctl *control, err error) {
	s.mu.Lock()
	current := s.ctl.CompareAndSwap(ctl, nil)
	if current {
		s.since = time.Now()
		s.problem, s.text = problemOf(err), errorText(err)
	}
	s.mu.Unlock()
	if !current {
		return
	}
	s.debug("control connection lost", err)
	s.blame(err)
	s.poke()
}

// poke has the link of a near session look at what is missing.
func (s *session) poke() {
	if s.near {
		s.link.poke()
	}
}

// upSince is for how long the control connection has stood; 0: it does not.
func (s *session) upSince(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.control() == nil {
		return 0
	}
	return now.Sub(s.since)
}

// join takes a lane whose HELLO names this session.
func (s *session) join(l *lane, pads bool) bool {
	if !s.enter(l, pads) {
		return false
	}
	s.node.tasks.Go(l.run)
	return true
}

// drain releases a lane on which something of the flow may be under way. It goes to the pool
// once the far relay has answered.
func (s *session) drain(f *Flow, l *lane) {
	l.beginDrain()
	s.node.tasks.Go(func() { _ = l.release(f, wire.FlagFinal, 0) })
}

// takeBack takes a lane that no flow has any more. The caller may hold a flow's lock.
func (s *session) takeBack(l *lane) {
	s.node.tasks.Go(func() { s.link.place(s, l) })
}

// padded takes the news that a lane's congestion window is open.
func (s *session) padded(l *lane) {
	if s.near && l.pads.CompareAndSwap(true, false) {
		s.link.place(s, l)
	}
}

// laneGreeted takes the news that the far relay's HELLO has come on a lane.
func (s *session) laneGreeted() { s.unmade.note(nil) }

// laneFailed takes the news that a lane broke before the far relay's HELLO.
func (s *session) laneFailed(err error) {
	s.mu.Lock()
	s.own.astray = s.own.astray || s.control() != nil
	s.mu.Unlock()
	s.link.laneFailed(s, err)
}

// forget drops a flow that is over.
func (s *session) forget(f *Flow) {
	if !s.near {
		s.bury(f.id, 0) // first: an OPEN that comes again finds the flow or its number
	}
	s.strike(f)
	s.node.flowsNow.Add(-1)
}

// rested reports that the session has had no flow for long enough that the other end
// has the last acknowledgements: it would wait for a lost one until resume.
func (s *session) rested() bool {
	long, empty := s.emptyFor()
	return empty && (s.control() == nil || long > s.patience(time.Second, 4))
}

// refusalOf is since when new connections of a session that stands are refused for a key or a certificate, and
// why; nil: they are not, as far as is known.
func refusalOf(s *session, now time.Time) (since time.Time, err error) {
	if since, err = s.validity.now(); err != nil || !s.near {
		return since, err
	}
	if since, err = s.unmade.now(); err != nil && refusesKeys(problemOf(err)) && now.Sub(since) > laneErrSettles {
		return since, err
	}
	return time.Time{}, nil
}

// abandoned reports that the session has neither flows nor a control connection, and since when.
func (s *session) abandoned() (since time.Time, yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since, s.control() == nil && s.flowCount() == 0
}

// owe notes the outcome of a far flow of which the near relay may not know.
func (s *session) owe(id uint64, c stream.Cause) {
	s.outcomes.add(id, c, s.owesFor())
	s.flush()
}

// refuse has the near relay get a REFUSED of a flow, also if its control connection is lost before
// that arrives.
func (s *session) refuse(id uint64, c stream.Cause) {
	s.bury(id, c.Code)
	s.owe(id, c)
}

// unmade is why no other lane could be made, or no control connection.
type unmade struct {
	mu    sync.Mutex
	err   error // nil: it could, or none is needed
	since time.Time
}

func (u *unmade) note(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if err != nil && u.err == nil {
		u.since = time.Now()
	}
	u.err = err
}

func (u *unmade) why() error {
	_, err := u.now()
	return err
}

func (u *unmade) now() (since time.Time, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.since, u.err
}

// origin is a near tunnel, as its far relay knows it.
type origin struct {
	peer, tunnel string // the tunnel of the far relay
	name         string // that the near one gives itself; empty: none
}

// trouble is why the far tunnel of a session takes no flows: its hops are down, say, or it is drained.
// Without it the near relay would count as usable while each of its clients is reset. The far relay says
// it at first on each control connection, and then each change; until it does, its last word holds.
type trouble struct {
	mu    sync.Mutex
	text  string    // empty: it takes flows
	since time.Time // it has had trouble, or none; zero: never
	was   string    // the last text that was not empty
	told  *control  // far relay: the connection over which the near one knows text
}

// troubleHolds is how long trouble holds after the far relay's word that it is over, so that one which
// changes its mind all the time makes no events.
const troubleHolds = time.Second

// now is the text at a moment, and since when there has been trouble, or none.
func (t *trouble) now(now time.Time) (text string, since time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.text == "" && t.was != "" && now.Sub(t.since) < troubleHolds {
		return t.was, t.since
	}
	return t.text, t.since
}

// take takes another text.
func (t *trouble) take(text string, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if (text == "") != (t.text == "") {
		t.since = now
	}
	if t.text = text; text != "" {
		t.was = text
	}
}

// setStale notes why the session is to take no new flows, which is a change of the far
// tunnel; empty: it may. A stale one keeps its flows on the lanes that they have. DRAIN makes
// the near relay begin another session.
func (s *session) setStale(why string) {
	if stale := why != ""; s.stale.Swap(stale) != stale && stale {
		s.tell(slog.LevelInfo, why, nil)
		s.message(wire.Message{Type: wire.MessageDrain})
	}
}

// whyLost is why a flow has had no lane for as long as it waits.
func (s *session) whyLost() stream.Cause {
	if s.near && s.control() == nil {
		if err := s.unmade.why(); errors.Is(err, unix.ECONNREFUSED) {
			return cause(flow.EndPeerRefused, fmt.Errorf("no lane for the time that a flow waits: %w", err))
		}
	}
	return cause(flow.EndWANLost, errors.New("no lane for the time that a flow waits"))
}

// whyDown is why a near flow has got no lane.
func (s *session) whyDown() stream.Cause {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.unmade.why()
	switch {
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return cause(flow.EndNoLocalPort, err)
	case s.problem != "":
		return cause(flow.EndPairDown, errors.New(string(s.problem)+": "+s.text))
	case err != nil:
		return cause(flow.EndPairDown, fmt.Errorf("no new lane: %w", err))
	}
	return cause(flow.EndPairDown, errors.New("no lane to the far relay"))
}

// goesOnFrom takes what another session knows.
func (t *trouble) goesOnFrom(old *trouble) {
	old.mu.Lock()
	text, since, was := old.text, old.since, old.was
	old.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text, t.since, t.was, t.told = text, since, was, nil
}

// tell has the near relay know what it does not yet.
func (t *trouble) tell(ctl *control, text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if text != t.text || t.told != ctl {
		t.text, t.told = text, ctl
		ctl.post(wire.Message{Type: wire.MessageTrouble, Text: text})
	}
}

// triedOwn takes the news of a lane's handshake at the own address.
func (s *session) triedOwn(at netip.AddrPort, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own.ended(at, err, time.Now())
}

// target is whose key is to answer a near session: its host's, as soon as it has one. If the tunnel does not
// mean that host any more, since the peer was renamed, its flows go on all the same.
func (s *session) target() string {
	if who := s.host(); who.means(s.peer) || who.name != "" && s.flowCount() > 0 {
		return who.name
	}
	return s.peer
}

package pair

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/carry/pair/wire"
	"longhaul/test/hostile"
	"longhaul/test/nettest"
)

// hostilePeer is a peer of the far node that means ill.
func (s *stand) hostilePeer() *hostile.Peer {
	keys := newKeyring(s.t)
	s.farKeys.mu.Lock()
	s.farKeys.trust("hostile", keys)
	s.farKeys.mu.Unlock()
	return hostile.NewPeer(addrOf(s.lanes), s.farKeys.public(), keys.cert)
}

// stranger knows only the public key of the far node.
func (s *stand) stranger() *hostile.Peer {
	return hostile.NewStranger(addrOf(s.lanes), s.farKeys.public())
}

// sessionsOf are the far node's sessions with a peer.
func sessionsOf(n *Node, peer string) (all []*session) {
	for _, s := range n.sessions() {
		if s.peer == peer {
			all = append(all, s)
		}
	}
	return all
}

// runAttack runs an attack by its name until the function that it returns is called.
func runAttack(t *testing.T, name string, a *hostile.Attacker) (stop func()) {
	t.Helper()
	k := attack(t, name)
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { _, _ = k.Run(ctx, a) })
	return func() {
		cancel()
		done.Wait()
	}
}

// TestAnswersAreBounded holds that who asks for answers and reads none is read no more.
func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"ping-flood", "gone-flood"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t)
			const messages = 1_000_000
			a := &hostile.Attacker{Peer: s.hostilePeer(), Count: messages}
			defer runAttack(t, name, a)()
			most, queued := 0, 0
			sent, since := int64(0), time.Now()
			nettest.Eventually(t, time.Minute, func() bool { // all have come, or the flood stands
				for _, one := range sessionsOf(s.far, "hostile") {
					if ctl := one.control(); ctl != nil {
						ctl.mu.Lock()
						queued = len(ctl.queue)
						most = max(most, queued)
						ctl.mu.Unlock()
					}
				}
				if now := a.Sent().Messages; now != sent {
					sent, since = now, time.Now()
				}
				return sent >= messages && queued == 0 || sent > 50_000 && time.Since(since) > time.Second
			}, func() string { return "the flood goes on" })
			if most > maxQueued+1<<10 {
				t.Errorf("%d bytes of answers are queued after %d messages", most, sent)
			}
		})
	}
}

// TestFlowMessagesInTurns holds that many flows' messages are written in parts of a bounded size,
// and that none is forgotten.
func TestFlowMessagesInTurns(t *testing.T) {
	s := &session{flows: map[uint64]*Flow{}, node: &Node{}, outcomes: &outcomes{}}
	const flows = 8000
	for id := range uint64(flows) {
		f := &Flow{s: s, id: id, known: true, opened: true, openedDue: true, target: strings.Repeat("x", 100), dirty: true}
		s.dirty = append(s.dirty, f)
	}
	seen := map[uint64]bool{}
	for len(seen) < flows {
		out := s.fill(nil)
		if len(out) == 0 || len(out) > maxFill+1<<10 {
			t.Fatalf("%d bytes in one part, after %d flows", len(out), len(seen))
		}
		for r, buf := bytes.NewReader(out), new([]byte); r.Len() > 0; {
			m, err := wire.ReadMessage(r, buf)
			nettest.Must(t, err)
			seen[m.Flow] = true
		}
	}
}

// TestRefusedFlowsAreDropped holds that a flow which the relay refuses is gone with its answer,
// also if the peer never answers that, and that a repeated OPEN gets the same reason.
func TestRefusedFlowsAreDropped(t *testing.T) {
	t.Parallel()
	s := newStand(t) // without a target: each dial is refused
	s.setTarget(netip.MustParseAddrPort(nettest.FreeAddress(t, "127.0.0.1")))
	peer := s.hostilePeer()
	session, err := peer.Begin(t.Context(), peer.Hello(), hostile.Dialing{})
	nettest.Must(t, err)
	defer session.Control.Close()
	const opens = 3000
	refused := func() wire.Message {
		for {
			m, err := session.Control.NextMessage()
			nettest.Must(t, err)
			if m.Type == wire.MessageRefused || m.Type == wire.MessageGone {
				return m
			}
		}
	}
	var first wire.Message
	for i := range opens {
		m := session.OpenAhead(nil)
		if i == 0 {
			first = m
		}
		nettest.Must(t, session.Control.Send(m))
		if got := refused(); got.Type != wire.MessageRefused || codes[got.Reason] != flow.EndTargetRefused {
			t.Fatalf("the answer is %+v", got)
		}
	}
	nettest.Eventually(t, time.Minute, func() bool { return s.far.Flows() == 0 }, func() string { return "refused flows stay" })
	nettest.Must(t, session.Control.Send(first))
	if got := refused(); got.Type != wire.MessageRefused || got.Flow != first.Flow || codes[got.Reason] != flow.EndTargetRefused {
		t.Errorf("a repeated OPEN gets %+v", got)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.opens) != opens {
		t.Errorf("%d dials for %d flows", len(s.opens), opens)
	}
}

// TestUndecidedOpensAreBounded holds that a session has a bounded number of OPENs which the relay
// has not decided on, and that those which it has admitted do not count.
func TestUndecidedOpensAreBounded(t *testing.T) {
	t.Parallel()
	for _, admits := range []bool{false, true} {
		d := &neverDecides{stand: &stand{admit: true}, admits: admits}
		s := newStand(t, func(s *stand, _ *Options, _ *LinkOptions) { s.acceptor = d })
		peer := s.hostilePeer()
		session, err := peer.Begin(t.Context(), peer.Hello(), hostile.Dialing{})
		nettest.Must(t, err)
		session.Control.Answer()
		const opens = 4 * maxAsking
		for range opens {
			nettest.Must(t, session.Control.Send(session.OpenAhead(nil)))
		}
		want := maxAsking + 1 // the reader has one more
		if admits {
			want = opens
		}
		begun := func() bool { return len(sessionsOf(s.far, "hostile")) > 0 }
		nettest.Eventually(t, time.Minute, begun, func() string { return "the far node has no session" })
		one := sessionsOf(s.far, "hostile")[0]
		nettest.Eventually(t, time.Minute, func() bool { return s.far.Flows() == want && (admits || len(one.asking) == maxAsking) },
			func() string { return "the far node has another number of flows" })
		session.Control.Close()
	}
}

// neverDecides is an acceptor whose dials take until they are given up.
type neverDecides struct {
	*stand
	admits bool // they are admitted at once
}

func (d *neverDecides) Dial(ctx context.Context, o Open) (Target, error) {
	if d.admits {
		o.Admitted()
	}
	<-ctx.Done()
	return Target{}, &Refusal{Reason: flow.EndTargetUnreached, Err: ctx.Err()}
}

func (d *neverDecides) Ended(*Flow, End) {}

// TestDropped holds how many flows that are over a session remembers, and why they were refused.
func TestDropped(t *testing.T) {
	var d dropped
	const n = 5 * maxBuried
	for id := range uint64(n) {
		d.add(id, byte(id%3))
		d.add(id, 0) // the end of the flow comes after its refusal
		if code, known := d.has(id); !known || code != byte(id%3) {
			t.Fatalf("flow %d: %d, %v", id, code, known)
		}
		if kept := len(d.now) + len(d.before); kept > 2*maxBuried {
			t.Fatalf("%d flows are remembered", kept)
		}
	}
	if _, known := d.has(n - maxBuried); !known {
		t.Error("a late flow is forgotten")
	}
}

// TestDrainingFarRelay holds that a far relay which drains each new session at once gets a bounded
// number of them.
func TestDrainingFarRelay(t *testing.T) {
	t.Parallel()
	keys := newKeyring(t)
	a := &hostile.Attacker{Far: hostile.NewFar(nettest.ListenTCP(t, "127.0.0.1:0"), keys.cert)}
	s := newStand(t, func(s *stand, _ *Options, lo *LinkOptions) {
		s.nearKeys.trust("draining", keys)
		lo.Peer = "draining"
		lo.Addresses = func(context.Context) ([]netip.AddrPort, error) { return []netip.AddrPort{addrOf(a.Far.Listener)}, nil }
	})
	defer runAttack(t, "far-drains", a)()
	most := 0
	nettest.Eventually(t, time.Minute, func() bool {
		most = max(most, len(s.link.sessions()))
		return a.Sent().Connections >= 3*maxOldSessions
	}, func() string { return fmt.Sprintf("only %d connections", a.Sent().Connections) })
	if most > maxOldSessions+1 {
		t.Errorf("%d sessions", most)
	}
}

// TestPeerChoosesNoHour holds that a peer's flows wait as long as it likes, up to a bound.
func TestPeerChoosesNoHour(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.serve(echo)
	for resume, want := range map[time.Duration]time.Duration{
		math.MaxUint32 * time.Millisecond: maxPeerResume, time.Minute: time.Minute,
	} {
		peer := s.hostilePeer()
		hello := peer.Hello()
		hello.Resume = resume
		session, err := peer.Begin(t.Context(), hello, hostile.Dialing{})
		nettest.Must(t, err)
		for _, one := range sessionsOf(s.far, "hostile") {
			if got, _ := one.rules(false); one.id == hello.Session && got != want {
				t.Errorf("a peer that asks for %v gets %v", resume, got)
			}
		}
		session.Control.Close()
	}
}

// TestSessionsOfOnePeer holds that a peer has a bounded number of sessions: one that has neither
// flows nor a control connection gives way, else the relay answers that it is busy.
func TestSessionsOfOnePeer(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.serve(echo)
	peer := s.hostilePeer()
	begin := func() (*hostile.Session, error) {
		return peer.Begin(t.Context(), peer.Hello(), hostile.Dialing{})
	}
	var all []*hostile.Session
	for range maxSessions {
		one, err := begin()
		nettest.Must(t, err)
		one.Control.Answer()
		all = append(all, one)
	}
	if _, err := begin(); err == nil || !strings.Contains(err.Error(), string(ProblemBusy)) {
		t.Errorf("one more session: %v", err)
	}
	all[0].Control.Close()
	nettest.Eventually(t, time.Minute, func() bool { _, err := begin(); return err == nil }, func() string { return "no session in place of an empty one" })
	if n := len(sessionsOf(s.far, "hostile")); n > maxSessions {
		t.Errorf("%d sessions", n)
	}
	client := s.dial() // of the other peer
	s.roundTrip(client, "an honest peer's")
	client.Close()
	for _, one := range all {
		one.Control.Close()
	}
}

// TestIdleLanesOfOnePeer holds that the lanes without a flow that a peer has longest are closed
// once it has too many.
func TestIdleLanesOfOnePeer(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.serve(echo)
	peer := s.hostilePeer()
	session, err := peer.Begin(t.Context(), peer.Hello(), hostile.Dialing{})
	nettest.Must(t, err)
	session.Control.Answer()
	defer session.Control.Close()
	lane := func() *hostile.Conn {
		l, err := session.Lane(t.Context(), hostile.Dialing{})
		nettest.Must(t, err)
		return l
	}
	busy, oldest := lane(), lane()
	nettest.Must(t, busy.Open(session.NextOpen(), []byte("hello")))
	got := make([]byte, wire.HeadSize+5)
	_, err = io.ReadFull(busy, got)
	nettest.Must(t, err)
	lanes := []*hostile.Conn{busy, oldest}
	for range maxIdleLanes + 10 {
		lanes = append(lanes, lane())
	}
	if _, err := io.Copy(io.Discard, onlyReader{oldest}); errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	idle := func() int { return int(sessionsOf(s.far, "hostile")[0].use.idle.Load()) }
	nettest.Eventually(t, time.Minute, func() bool { return idle() <= maxIdleLanes }, func() string { return "idle lanes stay" })
	nettest.Must(t, busy.Data(5, []byte("again")))
	if _, err = io.ReadFull(busy, got); err != nil || string(got[wire.HeadSize:]) != "again" {
		t.Errorf("the busy lane brings %q, %v", got, err)
	}
	for _, l := range lanes {
		l.Close()
	}
	nettest.Eventually(t, time.Minute, func() bool { return idle() == 0 }, func() string { return "idle lanes are counted that are gone" })
}

// TestStrangersLeaveRoom holds that a flood of prefaces costs its own source its handshakes and
// no other, and that who is given up learns that the relay is busy.
func TestStrangersLeaveRoom(t *testing.T) {
	s := newStand(t)
	s.serve(echo)
	stranger := s.stranger()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	from := hostile.Dialing{Source: netip.MustParseAddr("127.0.0.2")}
	from.First = stranger.Preface(preface.Control, 0)
	var conns []*hostile.Conn
	for range maxHandshakes + 100 {
		c, err := stranger.Connect(ctx, from)
		nettest.Must(t, err)
		conns = append(conns, c)
	}
	got, err := io.ReadAll(onlyReader{conns[0]})
	if !bytes.Equal(got, busyAlert) {
		t.Errorf("the first one gets %x, %v", got, err)
	}
	client := s.dial()
	s.roundTrip(client, "served meanwhile")
	client.Close()
	if n := s.far.serving.Load(); n > maxHandshakes+maxGivenUp {
		t.Errorf("%d handshakes", n)
	}
}

// TestHandshakesThatStop holds how many handshakes may be in the middle of TLS.
func TestHandshakesThatStop(t *testing.T) {
	t.Parallel()
	const most = 64
	s := newStand(t, func(_ *stand, o *Options, _ *LinkOptions) { o.MaxBegun = most })
	s.serve(echo)
	a := &hostile.Attacker{Peer: s.stranger(), Count: most + 100, Sources: []netip.Addr{netip.MustParseAddr("127.0.0.2")}}
	stop := runAttack(t, "hellos", a)
	defer stop()
	highest := 0
	nettest.Eventually(t, time.Minute, func() bool {
		highest = max(highest, s.far.begun.Taken())
		return a.Sent().Connections >= int64(most+100) && s.far.begun.Taken() >= most-10
	}, func() string { return fmt.Sprintf("%d have begun", s.far.begun.Taken()) })
	if highest > most {
		t.Errorf("%d handshakes have begun", highest)
	}
	client := s.dial()
	s.roundTrip(client, "served meanwhile")
	client.Close()
}

// TestBusyIsNamed holds what a near relay makes of the alert: no other cause.
func TestBusyIsNamed(t *testing.T) {
	t.Parallel()
	l := nettest.ListenTCP(t, "127.0.0.1:0")
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 4<<10))
			_, _ = c.Write(busyAlert)
			c.Close()
		}
	}()
	s := newStand(t, func(_ *stand, _ *Options, o *LinkOptions) {
		o.Addresses = func(context.Context) ([]netip.AddrPort, error) { return []netip.AddrPort{addrOf(l)}, nil }
	})
	nettest.Eventually(t, time.Minute, func() bool { return s.near.State().Sessions[0].Problem == ProblemBusy }, s.dump)
}

// TestLinesAreLimited holds that what a peer does wrong makes one line that names it and the rule.
func TestLinesAreLimited(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	s := newStand(t, func(s *stand, _ *Options, _ *LinkOptions) { s.log = slog.New(slog.NewTextHandler(&log, nil)) })
	peer := s.hostilePeer()
	for range 20 {
		session, err := peer.Begin(t.Context(), peer.Hello(), hostile.Dialing{})
		nettest.Must(t, err)
		_, err = session.Control.Write(bytes.Repeat([]byte{255}, 64))
		nettest.Must(t, err)
		_, _ = io.Copy(io.Discard, onlyReader{session.Control}) // until it is closed
		session.Control.Close()
	}
	strangers := s.stranger()
	for range 20 {
		c, err := strangers.Connect(t.Context(), hostile.Dialing{First: append(strangers.Preface(preface.Control, 0), "no TLS at all"...)})
		nettest.Must(t, err)
		_, _ = io.Copy(io.Discard, onlyReader{c})
		c.Close()
	}
	nettest.Eventually(t, time.Minute, func() bool {
		return log.count("peer breaks the pair protocol") > 0 && log.count("pair connection refused") > 0
	}, log.String)
	for message, want := range map[string]string{
		"peer breaks the pair protocol": "peer=hostile tunnel=down error=\"malformed pair protocol: message of type 255",
		"pair connection refused":       "problem=unpaired",
	} {
		if n := log.count(message); n > 2 || !strings.Contains(log.String(), want) {
			t.Errorf("%d lines of %q, of which one has %q: %v", n, message, want, strings.Contains(log.String(), want))
		}
	}
}

// lockedBuffer is a log that several goroutines write.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *lockedBuffer) count(s string) int { return strings.Count(l.String(), s) }

// cuts is an acceptor that loses the control connection of the near relay before it refuses.
type cuts struct {
	*stand
	far func() *Node
}

func (c *cuts) Dial(context.Context, Open) (Target, error) {
	for _, one := range sessionsOf(c.far(), "near") {
		if ctl := one.control(); ctl != nil {
			one.controlLost(ctl, io.EOF)
			ctl.close()
		}
	}
	return Target{}, &Refusal{Reason: flow.EndTargetRefused, Err: io.EOF}
}

func (c *cuts) Ended(*Flow, End) {}

// TestRefusalOfALostControlConnection holds that a refusal comes through although the control
// connection was lost just then, and the lane that brought the OPEN stands.
func TestRefusalOfALostControlConnection(t *testing.T) {
	t.Parallel()
	a := &cuts{stand: &stand{admit: true}}
	s := newStand(t, func(s *stand, _ *Options, _ *LinkOptions) {
		a.far, s.acceptor = s.farNode, a
	})
	s.awaitWarm(1)
	c := s.dial()
	defer c.Close()
	_, err := io.WriteString(c, "hello")
	nettest.Must(t, err)
	select {
	case e := <-s.nearEnds:
		if e.Reason != flow.EndTargetRefused {
			t.Errorf("the near relay ends it by %s", e.Reason)
		}
	case <-time.After(time.Minute):
		t.Fatalf("the client waits for ever: %s", s.dump())
	}
	nettest.Eventually(t, time.Minute, func() bool {
		all := sessionsOf(s.far, "near")
		return len(all[0].outcomes.codes()) == 0
	}, func() string { return "the near relay's answer is not taken" })
}

// admitsThenRefuses is an acceptor whose targets refuse.
type admitsThenRefuses struct{ *stand }

func (d admitsThenRefuses) Dial(_ context.Context, o Open) (Target, error) {
	o.Admitted()
	return Target{}, &Refusal{Reason: flow.EndTargetRefused, Err: errors.New(strings.Repeat("x", 250))}
}

func (d admitsThenRefuses) Ended(*Flow, End) {}

// TestRefusalsAreBounded holds what a session keeps of refusals that its peer does not read.
func TestRefusalsAreBounded(t *testing.T) {
	t.Parallel()
	const opens = 5 * maxBuried
	s := newStand(t, func(s *stand, _ *Options, _ *LinkOptions) {
		s.log, s.acceptor = slog.New(slog.DiscardHandler), admitsThenRefuses{&stand{admit: true}}
	})
	a := &hostile.Attacker{Peer: s.hostilePeer(), Count: opens}
	defer runAttack(t, "opens-unread", a)()
	var one *session
	nettest.Eventually(t, time.Minute, func() bool {
		if all := sessionsOf(s.far, "hostile"); len(all) > 0 {
			one = all[0]
		}
		return a.Sent().Messages >= opens && one != nil && one.flowsTotal.Load() > 2*maxBuried && s.far.Flows() == 0
	}, func() string { return fmt.Sprintf("%d flows, of %+v", s.far.Flows(), a.Sent()) })
	r := one.outcomes
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.flows) > maxBuried || len(r.due) > maxBuried || len(r.texts) > maxTexts {
		t.Errorf("%d refusals, of which %d are due, and %d texts", len(r.flows), len(r.due), len(r.texts))
	}
}

package pair_test

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
	"sync/atomic"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
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
			nettest.Eventually(t, patience, func() bool { // all have come, or the flood stands
				queued = s.far.Queued()
				most = max(most, queued)
				if now := a.Sent().Messages; now != sent {
					sent, since = now, time.Now()
				}
				return sent >= messages && queued == 0 || sent > 50_000 && time.Since(since) > time.Second
			}, func() string { return "the flood goes on" })
			if most > pair.MaxQueued+1<<10 {
				t.Errorf("%d bytes of answers are queued after %d messages", most, sent)
			}
		})
	}
}

// TestFlowMessagesInTurns holds that of many flows' messages, which come to more than are written at once,
// none is forgotten.
func TestFlowMessagesInTurns(t *testing.T) {
	t.Parallel()
	var targets local
	o := &opensTogether{local: &targets, all: make(chan struct{})}
	t.Cleanup(targets.close) // behind the nodes
	s := newStand(t, func(s *stand, _ *pair.Options, _ *pair.LinkOptions) { o.stand, s.acceptor = s, o })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	peer := s.hostilePeer()
	session, err := peer.Begin(ctx, peer.Hello(), hostile.Dialing{})
	nettest.Must(t, err)
	defer session.Control.Close()
	const flows = 1000 // 70 kB of OPENED
	for range flows {
		nettest.Must(t, session.Control.Send(session.OpenAhead(nil)))
	}
	nettest.Eventually(t, patience, func() bool { return o.count.Load() == flows }, s.dump)
	close(o.all)
	for opened := map[uint64]bool{}; len(opened) < flows; {
		m, err := session.Control.NextMessage()
		if err != nil {
			t.Fatalf("%v after %d flows", err, len(opened))
		}
		if m.Type == wire.MessageOpened {
			opened[m.Flow] = true
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
	const opens, targetRefused = 3000, 5 // docs/design/pairs-wire.md
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
		if got := refused(); got.Type != wire.MessageRefused || got.Reason != targetRefused {
			t.Fatalf("the answer is %+v", got)
		}
	}
	nettest.Eventually(t, patience, func() bool { return s.far.Flows() == 0 }, func() string { return "refused flows stay" })
	nettest.Must(t, session.Control.Send(first))
	if got := refused(); got.Type != wire.MessageRefused || got.Flow != first.Flow || got.Reason != targetRefused {
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
		s := newStand(t, func(s *stand, _ *pair.Options, _ *pair.LinkOptions) { s.acceptor = d })
		peer := s.hostilePeer()
		session, err := peer.Begin(t.Context(), peer.Hello(), hostile.Dialing{})
		nettest.Must(t, err)
		session.Control.Answer()
		const opens = 4 * pair.MaxAsking
		for range opens {
			nettest.Must(t, session.Control.Send(session.OpenAhead(nil)))
		}
		want := pair.MaxAsking + 1 // the reader has one more
		if admits {
			want = opens
		}
		nettest.Eventually(t, patience, func() bool { return s.far.Flows() == want }, func() string {
			return fmt.Sprintf("the far node has %d flows, want %d", s.far.Flows(), want)
		})
		other := s.hostilePeer()
		beside, err := other.Begin(t.Context(), other.Hello(), hostile.Dialing{}) // takes longer than a message
		nettest.Must(t, err)
		if n := s.far.Flows(); n != want {
			t.Errorf("the far node has %d flows after another handshake, want %d", n, want)
		}
		beside.Control.Close()
		session.Control.Close()
	}
}

// neverDecides is an acceptor whose dials take until they are given up.
type neverDecides struct {
	*stand
	admits bool // they are admitted at once
}

func (d *neverDecides) Dial(ctx context.Context, o flow.Open) (flow.Target, error) {
	if d.admits {
		o.Admitted(nil)
	}
	<-ctx.Done()
	return flow.Target{}, &flow.Refusal{Reason: flow.EndTargetUnreached, Err: ctx.Err()}
}

func (d *neverDecides) Ended(*pair.Flow, flow.End) {}

// TestDrainingFarRelay holds that a far relay which drains each new session at once gets a bounded
// number of them.
func TestDrainingFarRelay(t *testing.T) {
	t.Parallel()
	keys := newKeyring(t)
	a := &hostile.Attacker{Far: hostile.NewFar(nettest.ListenTCP(t, "127.0.0.1:0"), keys.cert)}
	s := newStand(t, func(s *stand, _ *pair.Options, lo *pair.LinkOptions) {
		s.nearKeys.trust("draining", keys)
		lo.Peer = "draining"
		lo.Addresses = func(context.Context) ([]netip.AddrPort, error) { return []netip.AddrPort{addrOf(a.Far.Listener)}, nil }
	})
	defer runAttack(t, "far-drains", a)()
	most := 0
	nettest.Eventually(t, patience, func() bool {
		most = max(most, len(s.near.State().Sessions))
		return a.Sent().Connections >= 3*pair.MaxOldSessions
	}, func() string { return fmt.Sprintf("only %d connections", a.Sent().Connections) })
	if most > pair.MaxOldSessions+1 {
		t.Errorf("%d sessions", most)
	}
}

// TestPeerChoosesNoHour holds that a peer's flows wait as long as it likes, up to a bound.
func TestPeerChoosesNoHour(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.serve(echo)
	for resume, want := range map[time.Duration]time.Duration{
		math.MaxUint32 * time.Millisecond: time.Hour, time.Minute: time.Minute,
	} {
		peer := s.hostilePeer()
		hello := peer.Hello()
		hello.Resume = resume
		session, err := peer.Begin(t.Context(), hello, hostile.Dialing{})
		nettest.Must(t, err)
		var got time.Duration
		nettest.Eventually(t, patience, func() bool { // the far relay makes the session once it has answered HELLO
			got = s.far.ResumeOf(hello.Session)
			return got != 0
		}, s.dump)
		if got != want {
			t.Errorf("a peer that asks for %v gets %v", resume, got)
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
	for range pair.MaxSessions {
		one, err := begin()
		nettest.Must(t, err)
		one.Control.Answer()
		all = append(all, one)
	}
	if _, err := begin(); err == nil || !strings.Contains(err.Error(), string(flow.PairBusy)) {
		t.Errorf("one more session: %v", err)
	}
	all[0].Control.Close()
	nettest.Eventually(t, patience, func() bool { _, err := begin(); return err == nil }, func() string { return "no session in place of an empty one" })
	if n := len(s.sessionsOf("hostile")); n > pair.MaxSessions {
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
	for range pair.MaxIdleLanes + 10 {
		lanes = append(lanes, lane())
	}
	if _, err := io.Copy(io.Discard, onlyReader{oldest}); errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	idle := func() int { return s.sessionsOf("hostile")[0].LanesWarm }
	nettest.Eventually(t, patience, func() bool { return idle() <= pair.MaxIdleLanes }, func() string { return "idle lanes stay" })
	nettest.Must(t, busy.Data(5, []byte("again")))
	if _, err = io.ReadFull(busy, got); err != nil || string(got[wire.HeadSize:]) != "again" {
		t.Errorf("the busy lane brings %q, %v", got, err)
	}
	for _, l := range lanes {
		l.Close()
	}
	nettest.Eventually(t, patience, func() bool { return idle() == 0 }, func() string { return "idle lanes are counted that are gone" })
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
	for range pair.MaxHandshakes + 100 {
		c, err := stranger.Connect(ctx, from)
		nettest.Must(t, err)
		conns = append(conns, c)
	}
	for i, c := range conns[:100] { // as many as there is no room for
		got, err := io.ReadAll(onlyReader{c})
		if !bytes.Equal(got, busyAlert) {
			t.Fatalf("connection %d gets %x, %v", i, got, err)
		}
	}
	client := s.dial()
	s.roundTrip(client, "served meanwhile")
	client.Close()
}

// TestHandshakesThatStop holds how many handshakes may be in the middle of TLS.
func TestHandshakesThatStop(t *testing.T) {
	t.Parallel()
	const most = 64
	s := newStand(t, func(_ *stand, o *pair.Options, _ *pair.LinkOptions) { o.MaxBegun = most })
	s.serve(echo)
	a := &hostile.Attacker{Peer: s.stranger(), Count: most + 100, Sources: []netip.Addr{netip.MustParseAddr("127.0.0.2")}}
	stop := runAttack(t, "hellos", a)
	defer stop()
	highest := 0
	nettest.Eventually(t, patience, func() bool {
		highest = max(highest, s.far.Begun())
		return a.Sent().Connections >= int64(most+100) && s.far.Begun() >= most-10
	}, func() string { return fmt.Sprintf("%d have begun", s.far.Begun()) })
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
	s := newStand(t, func(_ *stand, _ *pair.Options, o *pair.LinkOptions) {
		o.Addresses = func(context.Context) ([]netip.AddrPort, error) { return []netip.AddrPort{addrOf(l)}, nil }
	})
	nettest.Eventually(t, patience, func() bool { return s.near.State().Sessions[0].Problem == flow.PairBusy }, s.dump)
}

// TestLinesAreLimited holds that what a peer does wrong makes one line that names it and the rule.
func TestLinesAreLimited(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	s := newStand(t, func(s *stand, _ *pair.Options, _ *pair.LinkOptions) { s.log = slog.New(slog.NewTextHandler(&log, nil)) })
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
	nettest.Eventually(t, patience, func() bool {
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

// TestRefusalOfALostControlConnection holds that a refusal comes through although the control
// connection was lost just then, and the lane that brought the OPEN stands.
func TestRefusalOfALostControlConnection(t *testing.T) {
	t.Parallel()
	s := newStand(t, func(s *stand, _ *pair.Options, _ *pair.LinkOptions) { s.acceptor = newUpgradable(s) })
	s.awaitWarm(1)
	u := s.acceptor.(upgradable)
	refusal := make(chan error, 1)
	u.waits <- refusal
	c := s.dial()
	defer c.Close()
	_, err := io.WriteString(c, "hello")
	nettest.Must(t, err)
	nettest.Eventually(t, patience, func() bool { return u.asked.Load() > 0 }, s.dump)
	s.path.refuse(preface.Control, true)
	nettest.Eventually(t, patience, func() bool { return !s.far.State().Sessions[0].Up }, s.dump)
	refusal <- s.refuse(flow.EndTargetRefused, io.EOF)
	nettest.Eventually(t, patience, func() bool { return s.far.Flows() == 0 }, s.dump)
	s.path.refuse(preface.Control, false)
	s.ends(flow.EndTargetRefused)
	old, closes := s.succeed()
	closes()
	if owed := old.Owed(); len(owed) > 0 {
		t.Errorf("the near relay's answer is not taken: %+v", owed)
	}
}

// opensTogether is an acceptor whose targets have all accepted at the same moment.
type opensTogether struct {
	*stand
	local *local
	count atomic.Int64
	all   chan struct{}
}

func (o *opensTogether) Dial(_ context.Context, open flow.Open) (flow.Target, error) {
	open.Admitted(nil)
	o.count.Add(1)
	<-o.all
	o.mu.Lock()
	defer o.mu.Unlock()
	return flow.Target{FD: o.local.pair(o.t), To: netip.MustParseAddrPort("[2001:db8:ffff:ffff:ffff:ffff:ffff:ffff]:65535")}, nil
}

func (o *opensTogether) Ended(*pair.Flow, flow.End) {}

// busyAlert is the alert that says that a handshake was given up for another one (docs/design/pairs-wire.md).
var busyAlert = []byte{21, 3, 3, 0, 2, 2, 224}

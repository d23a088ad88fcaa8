package integrity

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"time"
)

// The bounds of an asker.
const (
	requestWithin = 90 * time.Second // between requests: the asker may be checking other legs
	maxSessions   = 8                // of one connection
	maxRequests   = 16               // of one session
)

// Identity identifies a participant in a check.
type Identity struct {
	Version  string
	Host     string
	Tunnel   string
	Instance string // unique among running relays
}

// Server answers checks on the connections of a tunnel.
type Server struct {
	Identity
	Keys  Keys
	Next  Next
	Guard *Guard

	// Dial connects to the tunnel's next hop after the flow's own connection
	// has ended.
	Dial func(ctx context.Context, to netip.AddrPort) (Conn, error)
}

// Flow is a connection that begins with a hello, with the connection to the
// next hop.
type Flow struct {
	Client  Conn
	Target  Conn // nil: the target did not accept
	Local   netip.AddrPort
	Peer    netip.AddrPort
	Source  netip.Addr     // source for bounds: an address or a network
	Forward string         // the chosen hop as configured
	Dialed  netip.AddrPort // zero: nothing was dialed
	Since   time.Time      // when the target accepted
	Reason  Reason         // cause of a missing target
	Detail  string

	Before   int64  // bytes sent to the client so far
	ToClient []byte // bytes to send to it first: a greeting of the target
	ToTarget []byte // bytes to send to the target first: a PROXY header

	halfOpen bool          // the target has answered, and its program sees no connection
	rtt      time.Duration // of that answer
	passed   bool          // bytes of a check have passed: the asker wants to know more of the target
	greeting int64         // bytes of the target
	end      func()        // ends the connection to the target that this check has made; nil: it has none
}

// Serve answers a check on a flow, and reports whether the flow continues as an
// ordinary one. Then it has read only the hello and the requests.
func (s *Server) Serve(ctx context.Context, f Flow) (goOn bool) {
	p := s.Guard.place(f.Source)
	defer p.leave()
	s.takeBack(&f)
	defer func() {
		if f.end != nil {
			f.end()
		}
	}()
	within := wait.hello
	for range maxSessions {
		_ = f.Client.SetDeadline(time.Now().Add(within))
		session := s.welcome(&f, p)
		if session == nil {
			return false
		}
		goOn, again := s.converse(ctx, session, &f, p)
		if !again {
			return goOn
		}
		within = requestWithin // the asker has proved to have the key
	}
	return false
}

// takeBack resets the connection to a target before its handshake is complete, if that is still
// possible: whether it accepts is known. A connection to a relay is completed at once.
func (s *Server) takeBack(f *Flow) {
	if f.Target == nil {
		return
	}
	if now := figuresOf(f.Target); s.Next == NextTarget && now.unacknowledged() {
		f.halfOpen, f.rtt = true, now.minRTT()
		f.Target.Close()
		f.Target = nil
		return
	}
	acknowledge(f.Target)
}

// connect makes a whole connection to a target that was asked half-open.
func (s *Server) connect(ctx context.Context, f *Flow) {
	dialing, cancel := context.WithTimeout(ctx, wait.connect)
	defer cancel()
	conn, err := s.Dial(dialing, f.Dialed)
	f.halfOpen = false
	if err != nil {
		f.Reason, f.Detail = ReasonOf(err), detail(err)
		return
	}
	f.Target, f.Since, f.end = conn, time.Now(), closeWith(ctx, conn)
	if len(f.ToTarget) > 0 {
		_ = conn.SetDeadline(f.Since.Add(wait.hello))
		_, _ = conn.Write(f.ToTarget) // a target that has gone is found by settle
		f.ToTarget = nil
	}
}

// deliver sends the first bytes to both sides.
func (f *Flow) deliver() bool {
	if len(f.ToTarget) > 0 && f.Target != nil {
		_ = f.Target.SetDeadline(time.Now().Add(wait.hello))
		if _, err := f.Target.Write(f.ToTarget); err != nil {
			f.Target, f.Reason = nil, troubleOf(err, Silent).Reason
		}
	}
	_ = f.Client.SetDeadline(time.Now().Add(wait.hello))
	if len(f.ToClient) > 0 {
		if _, err := f.Client.Write(f.ToClient); err != nil {
			return false
		}
		f.Before += int64(len(f.ToClient))
	}
	f.ToClient = nil
	if !f.halfOpen {
		f.ToTarget = nil
	}
	return true
}

// welcome reads a hello and replies. It returns nil if there is no hello to
// answer.
func (s *Server) welcome(f *Flow, p *place) *session {
	hello := make([]byte, HelloBytes)
	if _, err := io.ReadFull(f.Client, hello); err != nil {
		return nil
	}
	asker, key, damage, ok := s.Keys.openHello(hello)
	if !ok {
		return nil
	}
	mine := stampedNonce(s.Guard.memory.now())
	answer := reply{nonce: mine, hello: damage}
	switch admitted := s.Guard.memory.admit(asker); {
	case admitted == repeated:
		s.Guard.report("refused a repeated hello of a check: possibly a replay", f.Peer)
		return nil
	case admitted == skewed:
		s.Guard.report("refused a check: its clock and this host's differ by more than "+maxSkew.String(), f.Peer)
		answer.refuse = refuseClock
	case !p.take(admitted == undated):
		s.Guard.report("refused a check: too many wait to begin", f.Peer)
		if admitted == undated {
			return nil // such an asker does not know refusals
		}
		answer.refuse = refuseBusy
	case !f.deliver():
		return nil
	}
	answer.before = uint64(f.Before)
	f.greeting += f.Before
	if answer.refuse != noRefusal {
		_ = f.Client.SetWriteDeadline(time.Now().Add(wait.refuse))
	}
	if _, err := f.Client.Write(key.reply(asker, answer)); err != nil || answer.refuse != noRefusal {
		return nil
	}
	f.Before = 0
	return newSession(f.Client, key, asker, mine, true)
}

// converse executes the requests of a session. goOn means that the flow
// continues as an ordinary one, again that another hello follows.
func (s *Server) converse(ctx context.Context, session *session, f *Flow, p *place) (goOn, again bool) {
	within := wait.proof
	for range maxRequests {
		session.setDeadline(time.Now().Add(within))
		within = requestWithin
		k, length, err := session.readHead()
		switch {
		case err != nil:
		case !p.prove(): // a sealed frame proves the key
			_ = session.send(kindRefused, refusedError{"it answers too many checks at the same time"})
			return false, false
		case k == kindAgain && length == 0:
			return false, true
		case k == kindGoOn && length == 0 && s.Next == NextRelay && f.Target != nil:
			return session.send(kindGoing, nil) == nil, false
		case k == kindGoOn:
			err = session.send(kindRefused, refusedError{"this relay has no next relay"})
		default:
			err = s.request(ctx, session, f, k, length)
		}
		var altered *AlteredError
		if errors.As(err, &altered) {
			session.setDeadline(time.Now().Add(wait.answer))
			if session.send(kindAltered, altered) == nil {
				session.drain()
			}
		}
		if err != nil {
			return false, false
		}
	}
	return false, false
}

// request executes one request.
func (s *Server) request(ctx context.Context, session *session, f *Flow, k kind, length int) error {
	var o order
	switch k {
	case kindAsk:
		if length != 0 {
			return errProtocol
		}
		return session.send(kindAnswer, s.answer(ctx, f))
	case kindExchange, kindNext:
		if err := session.readBody(length, &o); err != nil {
			return err
		}
		if !o.valid() {
			return session.send(kindRefused, refusedError{"the order exceeds the bounds of an exchange"})
		}
		if k == kindExchange {
			f.passed = true
			return session.serveExchange(o)
		}
		if s.Next != NextRelay {
			return session.send(kindRefused, refusedError{"this relay has no next relay"})
		}
		l := s.next(ctx, f, o)
		session.setDeadline(time.Now().Add(wait.answer))
		return session.send(kindLeg, l)
	case kindBye:
		return io.EOF
	}
	return errProtocol
}

// answer describes this relay and its next hop. A health check asks once, before bytes have passed,
// and whether the target accepts is enough for it. Who asks again gets to know what the target does with
// a connection.
func (s *Server) answer(ctx context.Context, f *Flow) Answer {
	if f.halfOpen && f.passed && s.Dial != nil {
		s.connect(ctx, f)
	}
	a := Answer{
		Version: s.Version, Host: s.Host, Tunnel: s.Tunnel, Instance: s.Instance, Local: f.Local, Peer: f.Peer,
		Next: s.Next, Forward: f.Forward, Dialed: f.Dialed, Reason: f.Reason, Detail: clean(f.Detail),
	}
	if f.halfOpen {
		a.RTT = f.rtt
	}
	if f.Target == nil {
		return a
	}
	a.RTT = figuresOf(f.Target).minRTT()
	if s.Next == NextTarget {
		n, t := settle(ctx, f.Target, f.Since)
		if t != nil {
			a.Reason, a.Detail = t.Reason, t.Detail
		}
		f.greeting += n
		a.Greeting = f.greeting
	}
	return a
}

// settle waits a moment whether a target ends or resets the connection: a proxy
// often accepts for a target that is down. It counts and discards the bytes that come.
func settle(ctx context.Context, target Conn, since time.Time) (sent int64, t *trouble) {
	_ = target.SetReadDeadline(since.Add(wait.settled))
	if time.Since(since) >= wait.settled {
		_ = target.SetReadDeadline(time.Now().Add(time.Millisecond))
	}
	greeting := make([]byte, 4<<10)
	n, err := target.Read(greeting)
	if n > 0 || err == nil || ctx.Err() != nil {
		return int64(n), nil
	}
	if t := troubleOf(err, ""); t.Reason != "" {
		return 0, t
	}
	return 0, nil
}

// next checks the leg to the next relay.
func (s *Server) next(ctx context.Context, f *Flow, o order) *leg {
	l := &leg{Dialed: f.Dialed}
	if f.Target == nil {
		l.Trouble = &trouble{Reason: f.Reason, Detail: clean(f.Detail)}
	} else if session := look(f.Target, &s.Keys.First, s.Guard.memory, o, l); session != nil {
		if err := session.send(kindAgain, nil); err != nil {
			l.Trouble = troubleOf(err, Stalled)
		}
		return l
	}
	if l.cutOff() && s.Dial != nil {
		// A relay without a reachable next hop resets connections, unless they
		// begin with a hello at once.
		f.Target, f.Reason = nil, l.Trouble.Reason
		dialing, cancel := context.WithTimeout(ctx, wait.connect)
		conn, err := s.Dial(dialing, f.Dialed)
		cancel()
		if err != nil {
			l.Trouble = &trouble{Reason: ReasonOf(err), Detail: detail(err)}
			return l
		}
		defer closeWith(ctx, conn)()
		first := l.Trouble
		*l = leg{Dialed: f.Dialed}
		if session := look(conn, &s.Keys.First, s.Guard.memory, o, l); session != nil {
			_ = session.send(kindBye, nil)
			if l.Answer.Reason == "" {
				l.Trouble = first // it works now, but the first connection was cut
			}
		}
	}
	return l
}

package integrity

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// wait bounds the waits of a check. Tests on a busy machine wait longer.
var wait = waits{
	connect: 2 * time.Second, reply: 3 * time.Second, answer: 3 * time.Second, hello: 5 * time.Second,
	proof: 3 * time.Second, refuse: 10 * time.Millisecond,
	sent: 1300 * time.Millisecond, stalled: 2 * time.Second, exchange: 15 * time.Second, settled: 300 * time.Millisecond,
}

type waits struct {
	connect  time.Duration // to connect
	reply    time.Duration // the reply to a hello
	answer   time.Duration
	hello    time.Duration // of a server: the rest of a hello, and everything before the reply
	proof    time.Duration // of a server: the first request, which proves that the asker has the key
	refuse   time.Duration // of a server: to send a refusal
	sent     time.Duration // to send the bytes of an exchange; unsent ones are left out
	stalled  time.Duration // for the next byte of an exchange
	exchange time.Duration // for a whole exchange
	settled  time.Duration // for an end or a reset after a target has accepted
}

// leg is the time for another relay to check its next leg.
func (w waits) leg() time.Duration { return 2*w.exchange + w.reply + w.answer }

// Answer is a relay's description of itself and of its next hop.
type Answer struct {
	Version  string         `json:"version"`
	Host     string         `json:"host"`
	Tunnel   string         `json:"tunnel"`
	Instance string         `json:"instance"` // unique among running relays
	Local    netip.AddrPort `json:"local"`    // of the check's connection
	Peer     netip.AddrPort `json:"peer"`
	Next     Next           `json:"next"`
	Forward  string         `json:"forward"` // the chosen hop as configured
	Dialed   netip.AddrPort `json:"dialed"`  // zero: nothing was dialed
	RTT      time.Duration  `json:"rtt_ns"`  // to the next hop; 0: unknown
	// Greeting is the number of bytes that the target has sent.
	Greeting int64 `json:"greeting,omitempty"`
	// Reason is the cause if the next hop did not accept, otherwise empty.
	Reason Reason `json:"reason,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// bound sanitizes an answer.
func (a *Answer) bound() error {
	for _, s := range []*string{&a.Version, &a.Host, &a.Tunnel, &a.Instance, &a.Forward, &a.Detail, (*string)(&a.Reason)} {
		*s = clean(*s)
	}
	a.RTT, a.Greeting = max(a.RTT, 0), max(a.Greeting, 0)
	if a.Next != NextRelay && a.Next != NextTarget {
		return errProtocol
	}
	return nil
}

// leg is the result of checking a connection to a relay. A relay sends it to
// the relay that requested it.
type leg struct {
	Dialed     netip.AddrPort `json:"dialed"`
	Local      netip.AddrPort `json:"local"` // local address
	Connect    time.Duration  `json:"connect_ns"`
	RTT        time.Duration  `json:"rtt_ns"`
	AnswerTime time.Duration  `json:"answer_ns"`
	Ahead      *time.Duration `json:"ahead_ns,omitempty"` // of the relay's clock over the local one; nil: unknown
	Answer     *Answer        `json:"answer"`
	Passes     []pass         `json:"passes"`
	Trouble    *trouble       `json:"trouble"`
}

// pass is one exchange.
type pass struct {
	Up       received `json:"up"`
	Down     received `json:"down"`
	UpSent   sent     `json:"up_sent"`
	DownSent sent     `json:"down_sent"`
}

// trouble is a fault of a leg.
type trouble struct {
	Reason    Reason `json:"reason"`
	Detail    string `json:"detail,omitempty"`
	Direction string `json:"direction,omitempty"`
	Offset    int64  `json:"offset,omitempty"`
	Within    int    `json:"within,omitempty"` // 0: the offset is unknown
	Altered   int64  `json:"altered,omitempty"`
}

// The directions of a trouble.
const (
	upwards   = "up"
	downwards = "down"
	bothWays  = "both"
)

func (l *leg) bound() error {
	if len(l.Passes) > 2 {
		return errProtocol
	}
	l.Connect, l.RTT, l.AnswerTime = max(l.Connect, 0), max(l.RTT, 0), max(l.AnswerTime, 0)
	for i := range l.Passes {
		p := &l.Passes[i]
		if limit := (order{Bytes: MaxBytes}); !p.Up.valid(limit) || !p.Down.valid(limit) {
			return errProtocol
		}
	}
	if t := l.Trouble; t != nil {
		t.Reason, t.Detail, t.Direction = Reason(clean(string(t.Reason))), clean(t.Detail), clean(t.Direction)
	}
	if l.Answer != nil {
		return l.Answer.bound()
	}
	if l.Trouble == nil {
		return errProtocol
	}
	return nil
}

// greet sends a hello and waits for the reply, which sets the relay's clock.
func greet(conn Conn, key *Key, clock *relayClock) (*session, *trouble) {
	_ = conn.SetDeadline(time.Now().Add(wait.reply))
	mine := stampedNonce(clock.time())
	if _, err := conn.Write(key.hello(mine)); err != nil {
		return nil, troubleOf(err, Silent)
	}
	var got []byte
	b := make([]byte, 4<<10)
	for {
		n, err := conn.Read(b)
		got = append(got, b[:n]...)
		if r, d, start, ok := key.findReply(mine, got); ok {
			clock.shows(r.nonce)
			if r.refuse != noRefusal {
				return nil, r.trouble(clock)
			}
			s := newSession(conn, key, mine, r.nonce, false)
			s.in.offset += int64(start)
			switch {
			case len(got) > start+allReplyBytes || d.count > 0:
				return s, &trouble{Reason: Altered, Direction: downwards, Offset: int64(start + d.first), Within: 1, Altered: int64(max(d.count, 1))}
			case r.hello.count > 0:
				return s, &trouble{Reason: Altered, Direction: upwards, Offset: int64(r.hello.first), Within: 1, Altered: int64(r.hello.count)}
			}
			return s, nil
		}
		switch {
		case err != nil && len(got) > 0, len(got) > maxForeign+allReplyBytes:
			return nil, foreign(got)
		case err != nil:
			return nil, troubleOf(err, Silent)
		}
	}
}

// trouble converts a refusal to a fault.
func (r *reply) trouble(clock *relayClock) *trouble {
	switch {
	case r.refuse == refuseBusy:
		return &trouble{Reason: Busy}
	case r.refuse == refuseClock && clock.ahead != nil:
		return &trouble{Reason: Clock, Detail: "its clock is now " + Ahead(*clock.ahead, "the asker's")}
	}
	return &trouble{Reason: Failed, Detail: "it refuses the check with a code unknown to this version"}
}

// foreign is the fault of an answer that is not a reply.
func foreign(got []byte) *trouble {
	t := &trouble{Reason: Foreign, Detail: "it sent " + quote(got)}
	for i := 0; i+magicBytes <= len(got); i++ {
		if resembles(got[i:], replyMagic) {
			return &trouble{Reason: Altered, Direction: downwards, Offset: int64(i), Within: allReplyBytes}
		}
	}
	return t
}

// resembles reports whether at least 5 bytes equal a magic.
func resembles(b []byte, magic string) bool {
	same := 0
	for i := 0; i < len(magic) && i < len(b); i++ {
		if b[i] == magic[i] {
			same++
		}
	}
	return same >= 5
}

// Resembles reports whether the first bytes of a connection look like a hello
// under another key, or like an altered one.
func Resembles(first []byte) bool { return resembles(first, helloMagic) }

// quote quotes the beginning of foreign bytes.
func quote(b []byte) string {
	const limit = 40
	more := ""
	if len(b) > limit {
		b, more = b[:limit], "…"
	}
	return "\"" + clean(string(b)) + more + "\""
}

// ask requests a relay's Answer.
func (s *session) ask() (*Answer, error) {
	s.setDeadline(time.Now().Add(wait.answer))
	if err := s.send(kindAsk, nil); err != nil {
		return nil, err
	}
	a := &Answer{}
	if err := s.expect(kindAnswer, a); err != nil {
		return nil, err
	}
	return a, a.bound()
}

// next makes a relay check its next leg.
func (s *session) next(o order) (*leg, error) {
	s.setDeadline(time.Now().Add(wait.leg()))
	if err := s.send(kindNext, o); err != nil {
		return nil, err
	}
	l := &leg{}
	if err := s.expect(kindLeg, l); err != nil {
		return nil, err
	}
	return l, l.bound()
}

// goOn makes a relay treat the rest of the connection as an ordinary flow.
func (s *session) goOn() error {
	s.setDeadline(time.Now().Add(wait.answer))
	if err := s.send(kindGoOn, nil); err != nil {
		return err
	}
	return s.expect(kindGoing, nil)
}

// look checks a leg. The returned session is nil if there is none, or if it is
// no longer usable.
func look(conn Conn, key *Key, m *Memory, o order, l *leg) *session {
	l.Local = localAddr(conn)
	clock := m.clock(l.Dialed)
	s, t := greet(conn, key, clock)
	m.remember(l.Dialed, clock)
	l.Ahead = clock.ahead
	if s == nil {
		l.Trouble = t
		l.RTT = figuresOf(conn).minRTT()
		return nil
	}
	defer func() { l.RTT = s.figures().minRTT() }()
	asked := time.Now()
	answer, err := s.ask()
	l.AnswerTime = time.Since(asked)
	l.Answer = answer
	if t == nil && err != nil {
		t = troubleOf(err, Silent)
	}
	if t != nil {
		l.Trouble = t
		return nil
	}
	l.Trouble = l.exchange(s, o)
	if l.Trouble == nil && l.suspect() {
		// Determine whether the path loses segments, or only the full queue
		// did.
		if bps := l.Passes[0].goodput(); bps > 0 {
			l.Trouble = l.exchange(s, order{Bytes: min(calmBytes*o.Bytes, MaxBytes), PaceBps: int64(calmRate * bps)})
		}
	}
	if l.Trouble != nil {
		return nil
	}
	return s
}

// cutOff reports whether the connection ended before the relay answered.
func (l *leg) cutOff() bool {
	return l.Answer == nil && l.Trouble != nil && (l.Trouble.Reason == Reset || l.Trouble.Reason == Closed)
}

// exchange adds a pass to the leg.
func (l *leg) exchange(s *session, o order) *trouble {
	out, err := s.exchange(o)
	p, t := out.judge(err)
	l.Passes = append(l.Passes, p)
	return t
}

// judge returns the fault that an exchange shows, or nil.
func (o *outcome) judge(err error) (pass, *trouble) {
	p := pass{Up: o.up, Down: o.down, UpSent: o.upSent, DownSent: sent{-1, -1}}
	if o.downSent != nil {
		p.DownSent = *o.downSent
	}
	altered := func(r *received, direction string) *trouble {
		return &trouble{Reason: Altered, Direction: direction, Offset: r.First, Within: r.Within, Altered: r.Altered}
	}
	switch {
	case o.upKnown && o.up.Altered > 0:
		return p, altered(&o.up, upwards)
	case o.down.Altered > 0:
		return p, altered(&o.down, downwards)
	case o.upKnown && o.up.Stalled:
		return p, &trouble{Reason: Stalled, Direction: upwards, Offset: o.up.Bytes}
	case o.down.Stalled && o.down.Bytes == 0:
		return p, &trouble{Reason: Stalled} // possibly because the request did not arrive
	case o.down.Stalled:
		return p, &trouble{Reason: Stalled, Direction: downwards, Offset: o.down.Bytes}
	case err != nil:
		return p, troubleOf(err, Stalled)
	}
	return p, nil
}

// troubleOf maps an error to a fault of a leg; late is the reason for a
// timeout.
func troubleOf(err error, late Reason) *trouble {
	var here *AlteredError
	var there *peerAltered
	var refused *refusedError
	t := &trouble{Reason: Failed, Detail: detail(err)}
	switch {
	case errors.As(err, &here):
		return &trouble{Reason: Altered, Direction: downwards, Offset: here.Offset, Within: here.Within}
	case errors.As(err, &there):
		return &trouble{Reason: Altered, Direction: upwards, Offset: max(there.Offset, 0), Within: max(there.Within, 0)}
	case errors.As(err, &refused):
	case errors.Is(err, os.ErrDeadlineExceeded):
		t.Reason, t.Detail = late, ""
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		t.Reason, t.Detail = Closed, ""
	case errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		t.Reason, t.Detail = Reset, ""
	default:
		if reason := ReasonOf(err); reason != Failed {
			t.Reason = reason
		}
	}
	return t
}

// ReasonOf returns the reason of a failed connect.
func ReasonOf(err error) Reason {
	for reason, errnos := range map[Reason][]unix.Errno{
		Refused:     {unix.ECONNREFUSED},
		TimedOut:    {unix.ETIMEDOUT},
		Unreachable: {unix.EHOSTUNREACH, unix.ENETUNREACH, unix.ENETDOWN, unix.EACCES, unix.EPERM, unix.EINVAL, unix.EAFNOSUPPORT},
		NoLocalPort: {unix.EADDRNOTAVAIL, unix.EAGAIN},
		NoResources: {unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM},
		Reset:       {unix.ECONNRESET, unix.EPIPE},
	} {
		for _, errno := range errnos {
			if errors.Is(err, errno) {
				return reason
			}
		}
	}
	var name *net.DNSError
	switch {
	case errors.As(err, &name):
		return Unresolved
	case errors.Is(err, os.ErrDeadlineExceeded), os.IsTimeout(err):
		return TimedOut
	}
	return Failed
}

// detail is the system's text for an error; empty for timeouts.
func detail(err error) string {
	var errno unix.Errno
	switch {
	case errors.As(err, &errno):
		return errno.Error()
	case errors.Is(err, os.ErrDeadlineExceeded), os.IsTimeout(err):
		return ""
	}
	return clean(err.Error())
}

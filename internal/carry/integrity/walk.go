package integrity

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"
)

const (
	maxRelays = 16

	throughTime      = 500 * time.Millisecond // approximate duration of an exchange through relays
	throughTimeLossy = 100 * time.Millisecond // the same if a leg is lossy
)

// Walk configures a check of one hop of a tunnel.
type Walk struct {
	Self Identity // of the asking relay

	// Forward is the hop as configured.
	Forward string
	Next    Next
	Key     Key   // unused with [NextTarget]
	Bytes   int64 // exchanged in each direction
	Memory  *Memory

	// Dial connects to the hop, as a flow would. It returns the address of the
	// last attempt.
	Dial func(ctx context.Context) (Conn, netip.AddrPort, error)
}

// walker is a running walk.
type walker struct {
	Walk
	chain   Chain
	slowest float64       // rate of the slowest leg in bits per second; 0: unknown
	worst   float64       // share of lost segments on the worst leg
	seen    []string      // relays
	ahead   time.Duration // of the clock of the relay that checks the next leg
	one     bool          // stop at the first relay

	// clocks of relays that refused a forwarded hello, by instance.
	clocks map[string]time.Duration
}

// Run walks the chain. It ends soon after ctx does, with a broken chain.
func (w Walk) Run(ctx context.Context) Chain {
	k := &walker{Walk: w}
	k.run(ctx)
	if f := k.chain.Fault; f != nil && f.Reason == Failed && ctx.Err() != nil {
		k.fault(&trouble{Reason: Failed, Detail: "the check timed out"})
	}
	return k.chain
}

// run walks the chain. If a relay refuses a hello for its time, it starts
// again: the refusal has reported that relay's clock.
func (w *walker) run(ctx context.Context) {
	w.clocks = map[string]time.Duration{}
	for refused := 0; ; {
		w.chain = Chain{Forward: w.Forward, State: Whole, Hops: []Hop{}}
		w.slowest, w.worst, w.ahead = 0, 0, 0
		w.seen = []string{w.Self.Instance + "/" + w.Self.Tunnel}
		w.walk(ctx)
		f := w.chain.Fault
		if f == nil || f.Reason != Clock || f.Hop <= refused || ctx.Err() != nil {
			return
		}
		refused = f.Hop
	}
}

func (w *walker) walk(ctx context.Context) {
	conn, l, err := w.dial(ctx)
	if err != nil {
		h := Hop{Kind: KindUnknown, Address: l.Dialed, State: Broken}
		if w.Next == NextTarget {
			h.Kind = KindTarget
		}
		if !l.Dialed.IsValid() {
			h.Host = w.Forward
		}
		w.hop(h)
		w.fault(&trouble{Reason: ReasonOf(err), Detail: detail(err)})
		return
	}
	defer closeWith(ctx, conn)()

	if w.Next == NextTarget {
		h := w.hop(Hop{Kind: KindTarget, Address: l.Dialed, State: Whole, Connect: inSeconds(l.Connect), RTT: inSeconds(figuresOf(conn).minRTT())})
		if _, t := settle(ctx, conn, time.Now()); t != nil {
			h.State = Broken
			w.fault(t)
		}
		return
	}
	o := order{Bytes: w.Bytes}
	s := look(conn, &w.Key, w.Memory, o, l)
	if l.cutOff() {
		// If the relay's next hop ends connections at once, that end may have
		// overtaken the hello.
		if second, again, err := w.dial(ctx); err == nil {
			defer closeWith(ctx, second)()
			conn, l = second, again
			s = look(conn, &w.Key, w.Memory, o, l)
		}
	}
	if !w.leg(l) {
		return
	}
	if l.Ahead != nil {
		w.ahead = *l.Ahead
	}
	wrong := func(err error) {
		w.hop(Hop{Kind: KindUnknown, State: Broken})
		w.fault(troubleOf(err, Silent))
	}
	for {
		if a := l.Answer; a.Next == NextTarget && a.Reason == "" && !w.one {
			// By now bytes have passed the relay, and it connects to the target.
			if l.Answer, err = s.ask(); err != nil {
				wrong(err)
				return
			}
		}
		if w.end(l) || w.one {
			break
		}
		if l, err = s.next(o); err != nil {
			wrong(err)
			return
		}
		if !w.leg(l) {
			return
		}
		if l.Answer.Reason == "" {
			if s = w.through(conn, s, l, o); s == nil {
				return
			}
		}
	}
	_ = s.send(kindBye, nil)
}

// closeWith closes a connection when ctx ends, or when the returned function is
// called.
func closeWith(ctx context.Context, conn Conn) func() {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	return func() {
		stop()
		conn.Close()
	}
}

// dial connects to the first hop.
func (w *walker) dial(ctx context.Context) (Conn, *leg, error) {
	ctx, cancel := context.WithTimeout(ctx, wait.connect)
	defer cancel()
	begin := time.Now()
	conn, address, err := w.Dial(ctx)
	return conn, &leg{Dialed: address, Connect: time.Since(begin)}, err
}

// hop adds a hop.
func (w *walker) hop(h Hop) *Hop {
	w.chain.Hops = append(w.chain.Hops, h)
	return &w.chain.Hops[len(w.chain.Hops)-1]
}

// leg adds the relay at the end of a leg. It returns false if there is none or
// it has a fault.
func (w *walker) leg(l *leg) bool {
	a := l.Answer
	h := Hop{Kind: KindUnknown, Address: l.Dialed, State: Whole, Connect: inSeconds(l.Connect), RTT: inSeconds(l.RTT)}
	if a != nil {
		if a.Local.IsValid() && !same(a.Local, l.Dialed) {
			// The answering relay is not at the dialed address: something is in
			// between.
			w.hop(Hop{Kind: KindOther, Address: l.Dialed, State: Whole, Connect: h.Connect, RTT: h.RTT})
			h.Address, h.Connect, h.RTT = a.Local, nil, nil
		}
		h.Kind, h.Host, h.Tunnel, h.Version, h.Answer = KindRelay, a.Host, a.Tunnel, a.Version, inSeconds(l.AnswerTime)
	}
	if l.Ahead != nil {
		h.clockIs(w.ahead + *l.Ahead)
	}
	h.Up, h.Down = l.directions()
	if bps := l.goodput(); bps > 0 && (w.slowest == 0 || bps < w.slowest) {
		w.slowest = bps
	}
	if l.Trouble != nil {
		h.State = Broken
		w.hop(h)
		w.fault(l.Trouble)
		return false
	}
	if direction, share := l.loses(); direction != "" {
		h.State = Lossy
		w.hop(h)
		if share > w.worst {
			w.worst = share
			w.fault(&trouble{Reason: Losing, Direction: direction})
		}
	} else {
		w.hop(h)
	}
	self := a.Instance + "/" + a.Tunnel
	switch {
	case slices.Contains(w.seen, self):
		w.fault(&trouble{Reason: Loop})
		return false
	case len(w.seen) > maxRelays:
		w.fault(&trouble{Reason: TooLong})
		return false
	}
	w.seen = append(w.seen, self)
	return true
}

// same compares addresses in their form on the wire.
func same(a, b netip.AddrPort) bool {
	return a.Port() == b.Port() && a.Addr().Unmap().WithZone("") == b.Addr().Unmap().WithZone("")
}

// end adds the next hop of a leg's relay, if that is the end of the chain or
// unreachable.
func (w *walker) end(l *leg) bool {
	a := l.Answer
	if a.Next == NextRelay && a.Reason == "" {
		return false
	}
	h := Hop{Kind: KindTarget, Address: a.Dialed, State: Whole, RTT: inSeconds(a.RTT), Greeting: a.Greeting}
	if !a.Dialed.IsValid() {
		h.Host = a.Forward
	}
	if a.Next == NextRelay {
		h.Kind = KindUnknown
	}
	if a.Reason == "" {
		w.hop(h)
		return true
	}
	h.State = Broken
	w.hop(h)
	w.fault(&trouble{Reason: a.Reason, Detail: a.Detail})
	return true
}

// through continues to the latest relay by way of the previous one's data path,
// and exchanges bytes with it. It returns nil on a fault.
func (w *walker) through(conn Conn, s *session, l *leg, o order) *session {
	h := &w.chain.Hops[len(w.chain.Hops)-1]
	wrong := func(t *trouble) *session {
		h.State = Broken
		w.fault(t)
		w.chain.Fault.inside(&w.chain)
		return nil
	}
	if err := s.goOn(); err != nil {
		return wrong(troubleOf(err, Silent))
	}
	clock := &relayClock{now: w.Memory.now}
	if known, ok := w.clocks[l.Answer.Instance]; ok {
		clock.ahead = &known
	} else if l.Ahead != nil {
		ahead := w.ahead + *l.Ahead
		clock.ahead = &ahead
	}
	s, t := greet(conn, &w.Key, clock)
	if clock.ahead != nil {
		w.ahead, w.clocks[l.Answer.Instance] = *clock.ahead, *clock.ahead
		h.clockIs(w.ahead)
	}
	if t != nil {
		return wrong(t)
	}
	there, err := s.ask()
	if err == nil && there.Instance != l.Answer.Instance {
		err = errors.New("another relay answers now")
	}
	if err != nil {
		return wrong(troubleOf(err, Silent))
	}
	within := throughTime
	if w.worst > 0 {
		within = throughTimeLossy
	}
	out, err := s.exchange(order{Bytes: throughBytes(o.Bytes, w.slowest, within)})
	p, t := out.judge(err)
	h.Through = &Through{Up: throughDirection(p.Up), Down: throughDirection(p.Down)}
	if t != nil {
		return wrong(t)
	}
	return s
}

func throughDirection(r received) Direction {
	r.OutOfOrder = -1 // belongs to the last leg and is counted there
	return *direction([]received{r}, []sent{{-1, -1}})
}

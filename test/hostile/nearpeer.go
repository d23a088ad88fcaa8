package hostile

import (
	"context"
	"encoding/binary"
	"io"
	"math"
	"math/rand/v2"
	"net/netip"
	"time"

	"longhaul/internal/carry/pair/compress"
	"longhaul/internal/carry/pair/wire"
)

var peerAttacks = []Attack{
	{"ping-flood", NearPeer, "PINGs; nothing is read", pingFlood},
	{"gone-flood", NearPeer, "messages for unknown flows; nothing is read", goneFlood},
	{"opens", NearPeer, "400 000 OPENs; no REFUSED is answered", func(ctx context.Context, a *Attacker) error { return opens(ctx, a, true) }},
	{"opens-unread", NearPeer, "the same; no message is read", func(ctx context.Context, a *Attacker) error { return opens(ctx, a, false) }},
	{"held", NearPeer, "HELD of every second byte, then the lane closes", func(ctx context.Context, a *Attacker) error { return held(ctx, a, 15_000, true) }},
	{"held-many", NearPeer, "1.9 million spans in HELD", func(ctx context.Context, a *Attacker) error { return held(ctx, a, 15_000, false) }},
	{"resume-forever", NearPeer, "HELLO with 49 days, 88 flows, then no connection", resumeForever},
	{"sessions", NearPeer, "4000 sessions", sessions},
	{"idle-lanes", NearPeer, "4000 idle lanes", idleLanes},
	{"early", NearPeer, "DATA behind a hole on joined lanes, 40 flows", early},
	{"keys", NearPeer, "KEY with another key each", keys},
	{"key-taken", NearPeer, "KEY_TAKEN of keys that nobody announced", keyTaken},
	{"slow-read", NearPeer, "88 flows of a target that sends, read at 1 byte/s", slowRead},
	{"wake-flood", NearPeer, "WAKE with bytes, for flows without a lane", wakeFlood},
	{"records", NearPeer, "compressed records of zeros, then damaged ones", records},
	{"attach-churn", NearPeer, "ATTACH of 16 flows to new lanes, over and over", attachChurn},
	{"reset-text", NearPeer, "RESET with every reason and text for terminals", resetText},
	{"random", NearPeer, "random frames and messages", random},
}

// The targets' first bytes, by which the attacked relay's target knows what is asked of it.
const (
	TargetEcho  = 'e' // send back what comes
	TargetSends = 'c' // send for ever
	TargetReads = 's' // read, and send nothing
)

// smallBuffer is a receive buffer in bytes that fills at once when nobody reads.
const smallBuffer = 4 << 10

// pingFlood sends PINGs and reads none of the answers.
func pingFlood(ctx context.Context, a *Attacker) error {
	ping := wire.Message{Type: wire.MessagePing, Bytes: make([]byte, 8)}.Append(nil)
	return floodControl(ctx, a, Dialing{ReceiveBuffer: smallBuffer}, func(dst []byte) []byte { return append(dst, ping...) })
}

// floodControl floods control connections of one session after another.
func floodControl(ctx context.Context, a *Attacker, d Dialing, next func([]byte) []byte) error {
	return a.inSessions(ctx, manyMessages, d, func(s *Session, left *int) error {
		return s.Control.flood(ctx, left, next)
	})
}

// inSessions attacks in one session after another, until so many messages have gone; do counts them down.
// A session of a small receive buffer reads nothing.
func (a *Attacker) inSessions(ctx context.Context, messages int, d Dialing, do func(s *Session, left *int) error) error {
	left := a.count(messages)
	return again(ctx, manySessions, func(int) error {
		if left <= 0 {
			<-ctx.Done()
			return ctx.Err()
		}
		s, err := a.Peer.Begin(ctx, a.Peer.Hello(), d)
		if err != nil {
			return err
		}
		defer s.Control.Close()
		if d.ReceiveBuffer == 0 {
			s.Control.Answer()
		}
		return do(s, &left)
	})
}

// begin begins a session that answers what the relay asks.
func (a *Attacker) begin(ctx context.Context) (*Session, error) {
	s, err := a.Peer.Begin(ctx, a.Peer.Hello(), Dialing{})
	if err == nil {
		s.Control.Answer()
	}
	return s, err
}

// goneFlood asks for answers about flows that are unknown, and reads none.
func goneFlood(ctx context.Context, a *Attacker) error {
	r := rand.New(rand.NewPCG(a.Seed, 1))
	return floodControl(ctx, a, Dialing{ReceiveBuffer: smallBuffer}, func(dst []byte) []byte {
		return wire.Message{Type: wire.MessageAck, Flow: r.Uint64(), Offset: 1}.Append(dst)
	})
}

// opens opens flows on a lane and ahead of lanes, in turn.
func opens(ctx context.Context, a *Attacker, read bool) error {
	d := Dialing{ReceiveBuffer: smallBuffer}
	if read {
		d = Dialing{}
	}
	return a.inSessions(ctx, 400_000, d, func(s *Session, left *int) error {
		lane, err := s.Lane(ctx, Dialing{})
		if err != nil {
			return err
		}
		defer lane.Close()
		if read {
			lane.Discard()
		}
		var b []byte
		for *left > 0 && ctx.Err() == nil {
			if err := lane.block(&b, left, func(dst []byte) []byte { return s.NextOpen().Append(dst) }); err != nil {
				return err
			}
			if err := s.Control.block(&b, left, func(dst []byte) []byte { return s.OpenAhead([]byte{TargetEcho}).Append(dst) }); err != nil {
				return err
			}
		}
		<-ctx.Done()
		return ctx.Err()
	})
}

// Of a flow whose bytes HELD names: how many it must have got, and how long it waits for them.
const (
	heldBytes = 4 << 20
	heldQuiet = 300 * time.Millisecond
)

// held has a target send, and reports every second byte as held, so many messages for each
// flow. Either the lane closes then, which has the relay find out what to send again, or it
// stays.
func held(ctx context.Context, a *Attacker, messages int, closes bool) error {
	hold := crowd{most: holdAtOnce}
	defer hold.close()
	return again(ctx, a.count(88), func(int) error {
		s, err := a.begin(ctx)
		if err != nil {
			return err
		}
		hold.add(s.Control)
		lane, err := s.Lane(ctx, Dialing{})
		if err != nil {
			return err
		}
		if closes {
			defer lane.Close()
		} else {
			hold.add(lane)
		}
		o := s.NextOpen()
		if err := lane.Open(o, []byte{TargetSends}); err != nil {
			return err
		}
		got, err := lane.Receive(0, heldBytes, heldQuiet)
		if err != nil {
			return err
		}
		from := uint64(1)
		bound := min(messages, int(got/(2*wire.MaxSpans)))
		if err := s.Control.flood(ctx, &bound, func(dst []byte) []byte {
			m := wire.Message{Type: wire.MessageHeld, Flow: o.Flow}
			for range wire.MaxSpans {
				m.Spans = append(m.Spans, wire.Span{From: from, To: from + 1})
				from += 2
			}
			return m.Append(dst)
		}); err != nil {
			return err
		}
		if !closes {
			wait(ctx, pause)
		}
		return nil
	})
}

// resumeForever asks that flows be kept for 49 days, opens as many as one source may have, and
// leaves. They are said to come from this host, as those of others here do.
func resumeForever(ctx context.Context, a *Attacker) error {
	hello := a.Peer.Hello()
	hello.Resume = math.MaxUint32 * time.Millisecond
	err := again(ctx, a.count(3), func(int) error {
		hello.Session = randomID()
		s, err := a.Peer.Begin(ctx, hello, Dialing{})
		if err != nil {
			return err
		}
		defer s.Control.Close()
		s.client = netip.MustParseAddrPort("127.0.0.1:40000")
		const flows = 88
		for range flows {
			if err := s.Control.Send(s.OpenAhead([]byte{TargetEcho})); err != nil {
				return err
			}
		}
		_ = s.Control.tcp.SetReadDeadline(time.Now().Add(5 * time.Second))
		for answers := 0; answers < flows; {
			m, err := s.Control.NextMessage()
			if err != nil {
				return err
			}
			if m.Type == wire.MessageOpened || m.Type == wire.MessageRefused {
				answers++
			}
		}
		return nil
	})
	<-ctx.Done()
	return err
}

// sessions begins sessions and keeps them.
func sessions(ctx context.Context, a *Attacker) error {
	hold := crowd{most: holdAtOnce}
	defer hold.close()
	hello := a.Peer.Hello()
	err := again(ctx, a.count(holdAtOnce), func(int) error {
		hello.Session = randomID()
		s, err := a.Peer.Begin(ctx, hello, Dialing{})
		if err == nil {
			s.Control.Answer()
			hold.add(s.Control)
		}
		return err
	})
	<-ctx.Done()
	return err
}

// idleLanes opens lanes of one session that carry nothing.
func idleLanes(ctx context.Context, a *Attacker) error {
	hold := crowd{most: holdAtOnce}
	defer hold.close()
	s, err := a.begin(ctx)
	if err != nil {
		return err
	}
	defer s.Control.Close()
	s.hello.Features |= wire.FeaturePad // the relay sends padding, which nobody reads
	err = again(ctx, a.count(holdAtOnce), func(int) error {
		lane, err := s.Lane(ctx, Dialing{ReceiveBuffer: smallBuffer})
		if err == nil {
			hold.add(lane)
		}
		return err
	})
	<-ctx.Done()
	return err
}

// Of a flow that keeps bytes whose turn has not come: where the hole ends, and how far the
// bytes go.
const (
	hole     = 64 << 10
	earlyEnd = 65 << 20
)

// early fills the memory for bytes whose turn has not come, of 40 flows at a time.
func early(ctx context.Context, a *Attacker) error {
	hold := crowd{most: holdAtOnce}
	defer hold.close()
	block := make([]byte, 256<<10)
	err := again(ctx, a.count(40), func(int) error {
		s, err := a.Peer.Begin(ctx, a.Peer.Hello(), Dialing{})
		if err != nil {
			return err
		}
		hold.add(s.Control)
		main, err := s.Lane(ctx, Dialing{})
		if err != nil {
			return err
		}
		hold.add(main)
		o := s.NextOpen()
		if err := main.Open(o, []byte{TargetReads}); err != nil {
			return err
		}
		if m, err := s.Control.NextMessage(); err != nil || m.Type == wire.MessageRefused {
			return err
		}
		s.Control.Answer()
		joined, err := s.Lane(ctx, Dialing{})
		if err != nil {
			return err
		}
		hold.add(joined)
		if _, err := joined.Write(wire.AppendJoin(nil, o.Flow, 0)); err != nil {
			return err
		}
		if _, err := joined.Receive(wire.FrameAttach, math.MaxUint64, 2*time.Second); err != nil {
			return err
		}
		go func() { // one flow whose bytes find no memory holds up no other
			for offset := uint64(hole); offset < earlyEnd; offset += uint64(len(block)) {
				if joined.Data(offset, block) != nil {
					return
				}
			}
		}()
		return nil
	})
	<-ctx.Done()
	return err
}

// keys announces one key after another.
func keys(ctx context.Context, a *Attacker) error {
	r := rand.New(rand.NewPCG(a.Seed, 2))
	return floodControl(ctx, a, Dialing{}, func(dst []byte) []byte {
		return wire.Message{Type: wire.MessageKey, Bytes: randomKey(r)}.Append(dst)
	})
}

// keyTaken says that it has taken keys that nobody announced.
func keyTaken(ctx context.Context, a *Attacker) error {
	r := rand.New(rand.NewPCG(a.Seed, 3))
	return floodControl(ctx, a, Dialing{}, func(dst []byte) []byte {
		return wire.Message{Type: wire.MessageKeyTaken, Bytes: randomKey(r)}.Append(dst)
	})
}

func randomKey(r *rand.Rand) (key []byte) {
	for range 4 {
		key = binary.LittleEndian.AppendUint64(key, r.Uint64())
	}
	return key
}

// slowRead has targets send, and reads a byte of each lane in a second.
func slowRead(ctx context.Context, a *Attacker) error {
	hold := crowd{most: holdAtOnce}
	defer hold.close()
	s, err := a.begin(ctx)
	if err != nil {
		return err
	}
	defer s.Control.Close()
	err = again(ctx, a.count(88), func(int) error {
		lane, err := s.Lane(ctx, Dialing{ReceiveBuffer: smallBuffer})
		if err != nil {
			return err
		}
		hold.add(lane)
		return lane.Open(s.NextOpen(), []byte{TargetSends})
	})
	for ctx.Err() == nil {
		hold.each(func(lane *Conn) {
			_ = lane.tcp.SetReadDeadline(time.Now().Add(time.Millisecond))
			_, _ = lane.tcp.Read(make([]byte, 1)) // of TLS, which nobody will understand any more
		})
		wait(ctx, time.Second)
	}
	return err
}

// wakeFlood sends bytes of flows without a lane, in any order, and of unknown flows.
func wakeFlood(ctx context.Context, a *Attacker) error {
	r := rand.New(rand.NewPCG(a.Seed, 4))
	bytes := make([]byte, wire.MaxWake)
	return a.inSessions(ctx, manyMessages, Dialing{}, func(s *Session, left *int) error {
		const flows = 16
		for range flows {
			if err := s.Control.Send(s.OpenAhead([]byte{TargetReads})); err != nil {
				return err
			}
		}
		return s.Control.flood(ctx, left, func(dst []byte) []byte {
			return wire.Message{Type: wire.MessageWake, Flow: 1 + r.Uint64N(2*flows), Offset: r.Uint64N(1 << 20),
				Bytes: bytes[:r.IntN(len(bytes))]}.Append(dst)
		})
	})
}

// records sends records that grow most, and then one that is damaged.
func records(ctx context.Context, a *Attacker) error {
	zeros := compress.Append(nil, make([]byte, compress.MaxPlain))
	damaged := append([]byte{}, zeros...)
	damaged[len(damaged)-1] ^= 0xff
	s, err := a.begin(ctx)
	if err != nil {
		return err
	}
	defer s.Control.Close()
	return again(ctx, a.count(manySessions), func(int) error {
		lane, err := s.Lane(ctx, Dialing{})
		if err != nil {
			return err
		}
		defer lane.Close()
		o := s.NextOpen()
		if err := lane.Open(o, []byte{TargetReads}); err != nil {
			return err
		}
		const perFlow = 500
		offset := uint64(1)
		for range perFlow {
			if err := lane.frame(wire.FlagCompressed, offset, zeros); err != nil {
				return err
			}
			offset += compress.MaxPlain
		}
		if err := lane.frame(wire.FlagCompressed, offset, damaged); err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, onlyReader{lane}) // until the relay ends it
		return s.Control.Send(wire.Message{Type: wire.MessageReset, Flow: o.Flow, Text: err2text(err)})
	})
}

func err2text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// attachChurn gives flows new lanes all the time.
func attachChurn(ctx context.Context, a *Attacker) error {
	hold := crowd{most: 32}
	defer hold.close()
	s, err := a.begin(ctx)
	if err != nil {
		return err
	}
	defer s.Control.Close()
	const flows = 16
	for range flows {
		if err := s.Control.Send(s.OpenAhead([]byte{TargetSends})); err != nil {
			return err
		}
	}
	err = again(ctx, a.count(100_000), func(i int) error {
		lane, err := s.Lane(ctx, Dialing{})
		if err != nil {
			return err
		}
		hold.add(lane)
		a.Peer.tally.messages.Add(1)
		flow := uint64(1 + i%flows)
		if i/flows%2 == 0 {
			_, err = lane.Write(wire.AppendAttach(nil, flow, 0))
		} else {
			_, err = lane.Write(wire.AppendJoin(nil, flow, 0))
		}
		return err
	})
	<-ctx.Done()
	return err
}

// terminalText clears a screen, moves the cursor, and turns the direction of what follows.
const terminalText = "\x1b[2J\x1b[1;1H\u202egpj.exe\r\n\x00end=clean"

// resetText opens flows and resets them.
func resetText(ctx context.Context, a *Attacker) error {
	return a.inSessions(ctx, 200_000, Dialing{}, func(s *Session, left *int) error {
		const perSession = 2000 // opened at once, of which the relay takes some
		bound := min(*left, perSession)
		*left -= bound
		if err := s.Control.flood(ctx, &bound, func(dst []byte) []byte {
			o := s.OpenAhead([]byte{TargetEcho})
			reset := wire.Message{Type: wire.MessageReset, Flow: o.Flow, Reason: byte(o.Flow), Text: terminalText}
			return reset.Append(o.Append(dst))
		}); err != nil {
			return err
		}
		wait(ctx, 10*pause) // for the answers
		return nil
	})
}

// random sends noise, on a control connection and two lanes of each session.
func random(ctx context.Context, a *Attacker) error {
	left := a.count(1_000_000)
	err := again(ctx, manySessions, func(i int) error {
		if left <= 0 {
			<-ctx.Done()
			return ctx.Err()
		}
		return a.noiseSession(ctx, NewNoise(a.Seed+uint64(i)), &left)
	})
	return err
}

// noiseSession sends noise until one of its connections is ended.
func (a *Attacker) noiseSession(ctx context.Context, n *Noise, left *int) error {
	s, err := a.begin(ctx)
	if err != nil {
		return err
	}
	defer s.Control.Close()
	conns, next := []*Conn{s.Control}, []func([]byte) []byte{n.Message}
	for range 2 {
		lane, err := s.Lane(ctx, Dialing{})
		if err != nil {
			return err
		}
		defer lane.Close()
		lane.Discard()
		conns, next = append(conns, lane), append(next, n.Frame)
	}
	var b []byte
	for *left > 0 && ctx.Err() == nil {
		for i, c := range conns {
			if err := c.block(&b, left, next[i]); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

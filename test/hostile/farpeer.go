package hostile

import (
	"context"
	"math/rand/v2"
	"sync"

	"longhaul/internal/carry/pair/wire"
)

var farAttacks = []Attack{
	{"far-pings", FarPeer, "PINGs; nothing is read", func(ctx context.Context, a *Attacker) error {
		ping := wire.Message{Type: wire.MessagePing, Bytes: make([]byte, 8)}.Append(nil)
		return farFlood(ctx, a, func(dst []byte) []byte { return append(dst, ping...) })
	}},
	{"far-gone", FarPeer, "GONE, RESET, HELD and other messages for its flows", farGone},
	{"far-random", FarPeer, "random frames and messages", farRandom},
	{"far-refuses", FarPeer, "REFUSED for each OPEN", farRefuses},
	{"far-silent", FarPeer, "handshakes, and no HELLO", func(ctx context.Context, a *Attacker) error { return a.Far.serve(ctx, script{silent: true}) }},
	{"far-early", FarPeer, "DATA behind a hole on joined lanes", farEarly},
	{"far-keys", FarPeer, "KEY with another key each", func(ctx context.Context, a *Attacker) error {
		r := rand.New(rand.NewPCG(a.Seed, 6))
		return farFlood(ctx, a, func(dst []byte) []byte { return wire.Message{Type: wire.MessageKey, Bytes: randomKey(r)}.Append(dst) })
	}},
	{"far-drains", FarPeer, "DRAIN at once in each session", func(ctx context.Context, a *Attacker) error {
		return a.Far.serve(ctx, script{control: func(_ context.Context, _ *FarSession, c *Conn) error {
			if err := c.Send(wire.Message{Type: wire.MessageDrain}); err != nil {
				return err
			}
			return c.answer(func(wire.Message) error { return nil })
		}})
	}},
	{"far-hello", FarPeer, "HELLO with odd values, then the end", farHello},
}

// farFlood floods the control connections that come, and reads nothing of them. Lanes are read.
func farFlood(ctx context.Context, a *Attacker, next func([]byte) []byte) error {
	return a.Far.serve(ctx, script{control: func(ctx context.Context, _ *FarSession, c *Conn) error {
		left := a.count(manyMessages)
		return c.flood(ctx, &left, next)
	}})
}

// farGone sends every message that a far relay may send, for the flows that there are: near
// relays count them from 1.
func farGone(ctx context.Context, a *Attacker) error {
	r := rand.New(rand.NewPCG(a.Seed, 7))
	types := []wire.MessageType{wire.MessageGone, wire.MessageReset, wire.MessageRefused, wire.MessageHeld, wire.MessageLate,
		wire.MessageLimited, wire.MessageWake, wire.MessageOpened}
	var mu sync.Mutex
	return farFlood(ctx, a, func(dst []byte) []byte {
		mu.Lock()
		defer mu.Unlock()
		m := wire.Message{Type: types[r.IntN(len(types))], Flags: byte(r.IntN(4)), Flow: 1 + r.Uint64N(1000), Offset: r.Uint64N(1 << 20),
			Reason: byte(r.Uint32()), Text: terminalText}
		if m.Type == wire.MessageWake {
			m.Bytes = make([]byte, 100)
		}
		if m.Type == wire.MessageHeld {
			for range wire.MaxSpans {
				from := r.Uint64N(1 << 20)
				m.Spans = append(m.Spans, wire.Span{From: from, To: from + 1})
			}
		}
		return m.Append(dst)
	})
}

// farRandom sends noise on everything that comes.
func farRandom(ctx context.Context, a *Attacker) error {
	noisy := func(next func(*Noise) func([]byte) []byte) func(context.Context, *FarSession, *Conn) error {
		return func(ctx context.Context, _ *FarSession, c *Conn) error {
			c.Discard()
			left := a.count(1_000_000)
			return c.flood(ctx, &left, next(NewNoise(a.Seed^randomID())))
		}
	}
	return a.Far.serve(ctx, script{
		control: noisy(func(n *Noise) func([]byte) []byte { return n.Message }),
		lane:    noisy(func(n *Noise) func([]byte) []byte { return n.Frame }),
	})
}

// farRefuses refuses each flow at once.
func farRefuses(ctx context.Context, a *Attacker) error {
	refuse := func(s *FarSession, flow uint64) error {
		return s.send(wire.Message{Type: wire.MessageRefused, Flow: flow, Reason: byte(flow), Text: terminalText})
	}
	return a.Far.serve(ctx, script{
		control: func(_ context.Context, s *FarSession, c *Conn) error {
			return c.answer(func(m wire.Message) error {
				if m.Type != wire.MessageOpen {
					return nil
				}
				return refuse(s, m.Flow)
			})
		},
		lane: func(_ context.Context, s *FarSession, c *Conn) error {
			for {
				f, body, err := c.NextFrame()
				if err == nil && f.Type == wire.FrameOpen {
					var o wire.Open
					if o, err = wire.ParseOpen(body); err == nil {
						err = refuse(s, o.Flow)
					}
				}
				if err != nil {
					return err
				}
			}
		},
	})
}

// farEarly takes flows as a relay does, so that they get more lanes, and sends on these what
// comes behind a hole.
func farEarly(ctx context.Context, a *Attacker) error {
	block := make([]byte, 256<<10)
	withoutAhead := func(h wire.Hello) wire.Hello {
		h.Features &^= wire.FeatureAhead
		return h
	}
	return a.Far.serve(ctx, script{hello: withoutAhead, lane: func(ctx context.Context, s *FarSession, c *Conn) error {
		var flow uint64
		for {
			f, body, err := c.NextFrame()
			if err != nil {
				return err
			}
			switch f.Type {
			case wire.FrameOpen:
				o, err := wire.ParseOpen(body)
				if err != nil {
					return err
				}
				flow = o.Flow
				if err := s.send(wire.Message{Type: wire.MessageOpened, Flow: flow, Text: client.String()}); err != nil {
					return err
				}
			case wire.FrameData:
				if err := s.send(wire.Message{Type: wire.MessageAck, Flow: flow, Offset: f.Offset + uint64(f.Length)}); err != nil {
					return err
				}
			case wire.FrameAttach:
				flow = wire.ParseAttach(body)
				if f.Flags&wire.FlagJoin == 0 {
					if _, err := c.Write(wire.AppendAttach(nil, flow, 0)); err != nil {
						return err
					}
					continue
				}
				if _, err := c.Write(wire.AppendJoin(nil, flow, 0)); err != nil {
					return err
				}
				for offset := uint64(hole); offset < earlyEnd && ctx.Err() == nil; offset += uint64(len(block)) {
					if err := c.Data(offset, block); err != nil {
						return err
					}
				}
			}
		}
	}})
}

// farHello answers HELLO with one odd value after another, and ends most connections then.
func farHello(ctx context.Context, a *Attacker) error {
	odd := []func(*wire.Hello){
		func(h *wire.Hello) { h.Problem = "denied" },
		func(h *wire.Hello) { h.Problem = terminalText },
		func(h *wire.Hello) { h.Lowest, h.Highest = 200, 255 },
		func(h *wire.Hello) { h.Instance, h.Problem = randomID(), "draining" },
		func(h *wire.Hello) { h.Instance = 0 },
		func(h *wire.Hello) { h.Features = 0xff },
		func(h *wire.Hello) { h.Session = randomID() },
		func(h *wire.Hello) { h.Release = terminalText },
	}
	var mu sync.Mutex
	turn := 0
	end := func(context.Context, *FarSession, *Conn) error { return nil }
	return a.Far.serve(ctx, script{control: end, lane: end, hello: func(h wire.Hello) wire.Hello {
		mu.Lock()
		defer mu.Unlock()
		odd[turn%len(odd)](&h)
		turn++
		return h
	}})
}

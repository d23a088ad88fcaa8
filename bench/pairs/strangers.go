package main

import (
	"context"
	"crypto/tls"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"time"

	"longhaul/bench/kit"
	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/carry/pair/preface"
	"longhaul/lab"
)

// strangers connect to the far relay's port again and again, as those do who have no key.
// None of them may reach the target: it would count a flow that it does not know.
func (s *soaking) strangers(ctx context.Context, dice *rand.Rand) error {
	key, _, _, err := identity.New(s.w.keys("relay-b")).Key()
	if err != nil {
		return err
	}
	// It comes many times, as one that was recorded on the path.
	replayed := preface.Preface{Kind: preface.Lane}.Append(nil, key[:])
	return s.makeAll(ctx, dice, faults{
		{1, "strangers with garbage", false, s.strange(func(_ context.Context, c net.Conn) error {
			return write(c, garbage(dice, 1+dice.IntN(3000)))
		})},
		{1, "strangers with half a preface", false, s.strange(func(_ context.Context, c net.Conn) error {
			return write(c, replayed[:1+dice.IntN(len(replayed)-1)])
		})},
		{1, "strangers that say nothing", false, s.strange(func(context.Context, net.Conn) error { return nil })},
		{1, "strangers with a slow preface", false, s.strange(func(ctx context.Context, c net.Conn) error {
			for i := range replayed {
				if err := write(c, replayed[i:i+1]); err != nil || kit.Pause(ctx, 10*time.Millisecond) != nil {
					return err
				}
			}
			return nil
		})},
		{1, "strangers with a replayed preface", false, s.strange(func(_ context.Context, c net.Conn) error {
			return write(c, slices.Concat(replayed, garbage(dice, 1+dice.IntN(500))))
		})},
		{1, "strangers with a replayed preface and TLS", false, s.strange(func(ctx context.Context, c net.Conn) error {
			if err := write(c, replayed); err != nil {
				return err
			}
			hello := tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{preface.ALPN}}) //nolint:gosec // a stranger trusts anybody
			return hello.HandshakeContext(ctx)
		})},
	}, 500*time.Millisecond, 3*time.Second)
}

// strange connects a few times from the far side of the WAN, says something each time, and
// leaves when it is answered, or after a while.
func (s *soaking) strange(say func(context.Context, net.Conn) error) func(context.Context, *rand.Rand) error {
	return func(ctx context.Context, dice *rand.Rand) error {
		for range 5 {
			conn, err := s.w.Host("relay-a").DialTCP(ctx, netip.AddrPortFrom(lab.WANB, port), time.Second)
			if err != nil {
				return nil // the relay is dead, or the WAN is cut
			}
			_ = conn.SetDeadline(time.Now().Add(time.Second))
			if say(ctx, conn) == nil {
				_, _ = io.Copy(io.Discard, conn) // it is cut off
			}
			if dice.IntN(2) == 0 {
				_ = conn.SetLinger(0)
			}
			conn.Close()
		}
		return nil
	}
}

func garbage(dice *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(dice.Uint32())
	}
	b[0] |= 0x80 // no flow has such a number
	return b
}

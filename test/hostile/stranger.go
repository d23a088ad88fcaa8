package hostile

import (
	"context"
	"crypto/tls"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"longhaul/internal/carry/pair/preface"
)

var strangerAttacks = []Attack{
	{"joins", Stranger, "prefaces of joins, then silence", func(ctx context.Context, a *Attacker) error {
		return silentCrowd(ctx, a, func(int) []byte { return a.Peer.Preface(preface.Join, 0) })
	}},
	{"prefaces", Stranger, "prefaces of lanes and of control connections, then silence", func(ctx context.Context, a *Attacker) error {
		return silentCrowd(ctx, a, func(i int) []byte { return a.Peer.Preface([]preface.Kind{preface.Lane, preface.Control}[i%2], 0) })
	}},
	{"silent", Stranger, "connections that say nothing", func(ctx context.Context, a *Attacker) error {
		return silentCrowd(ctx, a, func(int) []byte { return nil })
	}},
	{"aborts", Stranger, "prefaces of all kinds, then a reset at once", aborts},
	{"garbage-tls", Stranger, "a preface, then half a ClientHello or random bytes", garbageTLS},
	{"hellos", Stranger, "a preface and a whole ClientHello, always the same, which costs the relay a signature", hellos},
	{"replay", Stranger, "one preface of a join, over and over", func(ctx context.Context, a *Attacker) error {
		seen := a.Peer.Preface(preface.Join, 0)
		return silentCrowd(ctx, a, func(int) []byte { return seen })
	}},
}

// strangersAtOnce is how many connections a stranger holds; the limit of open files has room
// for more.
const strangersAtOnce = 15_000

// silentCrowd makes connections that send their first bytes and then nothing.
func silentCrowd(ctx context.Context, a *Attacker, first func(i int) []byte) error {
	hold := crowd{most: strangersAtOnce}
	defer hold.close()
	err := again(ctx, a.count(2_000_000), func(i int) error {
		c, err := a.Peer.Connect(ctx, Dialing{Source: a.source(i), First: first(i)})
		if err == nil {
			a.Peer.tally.messages.Add(1)
			hold.watch(c)
		}
		return err
	})
	<-ctx.Done()
	return err
}

// aborts resets each connection behind its preface.
func aborts(ctx context.Context, a *Attacker) error {
	err := again(ctx, a.count(2_000_000), func(i int) error {
		kind := []preface.Kind{preface.Join, preface.Lane, preface.Control}[i%3]
		c, err := a.Peer.Connect(ctx, Dialing{Source: a.source(i), First: a.Peer.Preface(kind, 0)})
		if err == nil {
			a.Peer.tally.messages.Add(1)
			err = c.Close()
		}
		return err
	})
	<-ctx.Done()
	return err
}

// hellos has the relay answer handshakes that go no further.
func hellos(ctx context.Context, a *Attacker) error {
	hello := clientHello()
	return silentCrowd(ctx, a, func(int) []byte { return append(a.Peer.Preface(preface.Control, 0), hello...) })
}

// clientHello is the first flight of a handshake of the pair protocol.
func clientHello() []byte {
	var first recorder
	_ = tls.Client(&first, tlsOf(tls.Certificate{})).Handshake()
	return first.sent
}

// recorder keeps what is written to it, and ends then.
type recorder struct {
	net.Conn
	sent []byte
}

func (r *recorder) Write(b []byte) (int, error) {
	r.sent = append(r.sent, b...)
	return len(b), nil
}

func (*recorder) Read([]byte) (int, error)    { return 0, io.EOF }
func (*recorder) SetDeadline(time.Time) error { return nil }

// garbageTLS sends what is no handshake behind a preface.
func garbageTLS(ctx context.Context, a *Attacker) error {
	n := Noise{rand.New(rand.NewPCG(a.Seed, 5))}
	return silentCrowd(ctx, a, func(i int) []byte {
		first := a.Peer.Preface([]preface.Kind{preface.Lane, preface.Control, preface.Join}[i%3], 0)
		if i%2 == 0 {
			return append(first, n.bytes(1+n.r.IntN(2000))...)
		}
		half := append([]byte{22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}, n.bytes(32)...) // of RFC 8446, section 4.1.2
		return append(first, half...)
	})
}

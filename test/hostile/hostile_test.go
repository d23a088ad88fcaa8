package hostile

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/carry/pair/wire"
	"longhaul/test/nettest"
)

func newCertificate(t *testing.T) (tls.Certificate, ed25519.PublicKey) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	nettest.Must(t, err)
	template := x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, public, private)
	nettest.Must(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}, public
}

// pair is a peer and the far end that it connects to, which follows a script until the test
// ends.
func pair(t *testing.T, do script) (*Peer, *Far) {
	t.Helper()
	nettest.CheckLeaks(t)
	cert, public := newCertificate(t)
	far := NewFar(nettest.ListenTCP(t, "127.0.0.1:0"), cert)
	own, _ := newCertificate(t)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- far.serve(ctx, do) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	return NewPeer(netip.MustParseAddrPort(far.Listener.Addr().String()), public, own), far
}

// TestFloodArrives holds that a flood brings as many messages as it says, well formed.
func TestFloodArrives(t *testing.T) {
	var pings atomic.Int64
	p, _ := pair(t, script{control: func(_ context.Context, _ *FarSession, c *Conn) error {
		for {
			m, err := c.NextMessage()
			if err != nil {
				return err
			}
			if m.Type == wire.MessagePing {
				pings.Add(1)
			}
		}
	}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const count = 5000
	done := make(chan Sent, 1)
	go func() {
		sent, err := named(t, "ping-flood").Run(ctx, &Attacker{Peer: p, Count: count})
		if err != nil {
			t.Error(err)
		}
		done <- sent
	}()
	// The connection is reset once everything is written, so the last messages may be lost.
	nettest.Eventually(t, 20*time.Second, func() bool { return pings.Load() > count/2 && p.tally.messages.Load() == count },
		func() string { return "few PINGs have come" })
	cancel()
	if sent := <-done; sent.Messages != count || sent.Connections != 1 {
		t.Errorf("sent %+v", sent)
	}
	if got := pings.Load(); got > count {
		t.Errorf("%d PINGs", got)
	}
}

// TestLaneOpens holds that a lane names its process and carries a flow.
func TestLaneOpens(t *testing.T) {
	opened := make(chan wire.Open, 1)
	p, far := pair(t, script{lane: func(_ context.Context, _ *FarSession, c *Conn) error {
		_, body, err := c.NextFrame()
		if err != nil {
			return err
		}
		o, err := wire.ParseOpen(body)
		opened <- o
		if err == nil {
			err = c.Data(0, []byte("reply"))
		}
		if err == nil {
			err = discard(c)
		}
		return err
	}})
	s, err := p.Begin(t.Context(), p.Hello(), Dialing{ReceiveBuffer: smallBuffer})
	nettest.Must(t, err)
	defer s.Control.Close()
	if s.Control.Hello.Instance != far.instance {
		t.Errorf("instance %d, want %d", s.Control.Hello.Instance, far.instance)
	}
	lane, err := s.Lane(t.Context(), Dialing{Source: netip.MustParseAddr("127.0.0.9")})
	nettest.Must(t, err)
	defer lane.Close()
	if from := lane.tcp.LocalAddr().(*net.TCPAddr).IP.String(); from != "127.0.0.9" {
		t.Errorf("the lane comes from %s", from)
	}
	want := s.NextOpen()
	nettest.Must(t, lane.Open(want, []byte("x")))
	if got := <-opened; got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if n, err := lane.Receive(0, 5, 20*time.Second); n != 5 || err != nil {
		t.Errorf("position %d, %v", n, err)
	}
}

// TestPrefaceIsRecognized holds that a stranger's prefaces are those of a near relay, but for the
// one of a join, which needs an invitation.
func TestPrefaceIsRecognized(t *testing.T) {
	_, public := newCertificate(t)
	p := NewStranger(netip.MustParseAddrPort("127.0.0.1:1"), public)
	for _, kind := range []preface.Kind{preface.Lane, preface.Control, preface.Join} {
		first := p.Preface(kind, 7)
		got, verdict := preface.Recognize(first, public)
		want := preface.Yes
		if kind == preface.Join {
			want, got = preface.No, preface.Preface{Kind: kind, Instance: 7}
		}
		if verdict != want || got.Kind != kind || got.Instance != 7 || kindOf(first) != kind {
			t.Errorf("kind %d: %+v, %d, %d", kind, got, verdict, kindOf(first))
		}
	}
}

// TestNoiseIsOftenWellFormed holds that noise gets past the parsers, and that a seed repeats
// it.
func TestNoiseIsOftenWellFormed(t *testing.T) {
	const count = 2000
	n, again := NewNoise(3), NewNoise(3)
	parsed := map[string]int{}
	for range count {
		b := n.Message(nil)
		if !bytes.Equal(b, again.Message(nil)) {
			t.Fatal("the same seed makes other messages")
		}
		if _, err := wire.ReadMessage(bytes.NewReader(b), new([]byte)); err == nil {
			parsed["messages"]++
		}
		b = n.Frame(nil)
		if !bytes.Equal(b, again.Frame(nil)) {
			t.Fatal("the same seed makes other frames")
		}
		if len(b) < wire.HeadSize {
			continue
		}
		if f, err := wire.ParseFrame(b); err == nil && f.Length == len(b)-wire.HeadSize {
			parsed["frames"]++
		}
	}
	for what, n := range parsed {
		if n < count*99/100 {
			t.Errorf("%d of %d %s are well formed", n, count, what)
		}
	}
	if len(parsed) != 2 {
		t.Errorf("well formed are %v", parsed)
	}
}

// TestAttacksEndWithTheirContext holds that each attack ends when it is told to, whatever the
// other end does, and says so if there is none.
func TestAttacksEndWithTheirContext(t *testing.T) {
	cert, public := newCertificate(t)
	names := map[string]bool{}
	for _, k := range Attacks() {
		if names[k.Name] {
			t.Errorf("two attacks have the name %s", k.Name)
		}
		names[k.Name] = true
		t.Run(k.Name, func(t *testing.T) {
			var far *Far
			if k.Role == FarPeer {
				nettest.CheckLeaks(t)
				far = NewFar(nettest.ListenTCP(t, "127.0.0.1:0"), cert)
			}
			ctx, cancel := context.WithCancel(t.Context())
			if k.Role == FarPeer {
				time.AfterFunc(10*time.Millisecond, cancel)
				if _, err := k.Run(ctx, &Attacker{Far: far}); err == nil {
					t.Error("no near relay came, and no error")
				}
				return
			}
			p, _ := pair(t, script{})
			a := &Attacker{Peer: p, Count: 3}
			if k.Role == Stranger {
				a.Peer = NewStranger(p.Far, public)
			}
			done := make(chan error, 1)
			go func() {
				_, err := k.Run(ctx, a)
				done <- err
			}()
			nettest.Eventually(t, 20*time.Second, func() bool { return a.Sent().Connections > 0 }, func() string { return "no connection has come" })
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

func named(t *testing.T, name string) Attack {
	t.Helper()
	for _, k := range Attacks() {
		if k.Name == name {
			return k
		}
	}
	t.Fatalf("no attack %q", name)
	return Attack{}
}

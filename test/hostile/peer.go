// Package hostile speaks the pair protocol and keeps none of its bounds: it floods, says
// nothing, reads nothing, or sends what no relay would. Tests and bench/hostile hold a relay
// against it. It has the formats of the protocol, and nothing of a relay.
//
// A [Peer] connects to a far relay, with keys that the relay knows or as a stranger. A [Far]
// is what a near relay connects to. An [Attack] is one way to misuse either, bounded in count,
// and in time by its context.
package hostile

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/carry/pair/wire"
)

// handshakeTimeout bounds the connect and the handshake of a connection.
const handshakeTimeout = 10 * time.Second

// shortResume is how long the far relay is asked to keep flows whose lanes are gone, so that
// what an attack leaves behind can be told from what resumption keeps.
const shortResume = 2 * time.Second

// allFeatures are what a HELLO offers that keeps its lanes encrypted.
const allFeatures = wire.FeatureLanes | wire.FeatureAhead | wire.FeatureCompress | wire.FeatureHeld

// Peer connects to a far relay.
type Peer struct {
	Far netip.AddrPort
	Key ed25519.PublicKey // of the far relay
	TLS *tls.Config       // with the own certificate; nil: a stranger's

	instance uint64
	tally    tally
}

// NewPeer is a peer with a certificate whose key the far relay knows.
func NewPeer(far netip.AddrPort, key ed25519.PublicKey, own tls.Certificate) *Peer {
	return &Peer{Far: far, Key: key, TLS: tlsOf(own), instance: randomID()}
}

// NewStranger is who knows only the public key of the far relay.
func NewStranger(far netip.AddrPort, key ed25519.PublicKey) *Peer {
	return &Peer{Far: far, Key: key, instance: randomID()}
}

// PeerOf is a peer with the keys of a directory, in which the far relay has a name.
func PeerOf(far netip.AddrPort, dir, name string) (*Peer, error) {
	store := identity.New(dir)
	config, err := store.ClientTLS(name)
	if err != nil {
		return nil, err
	}
	return NewPeer(far, store.PeerKeys(name)[0], config.Certificates[0]), nil
}

// tlsOf is a configuration that demands nothing of the other end.
func tlsOf(own tls.Certificate) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{preface.ALPN}, Certificates: []tls.Certificate{own},
		ClientAuth: tls.RequireAnyClientCert, InsecureSkipVerify: true, SessionTicketsDisabled: true}
}

// Hello is the HELLO of a new session.
func (p *Peer) Hello() wire.Hello {
	return wire.Hello{Lowest: wire.LowestVersion, Highest: wire.HighestVersion, Instance: p.instance, Session: randomID(),
		Tunnel: "hostile", Release: "hostile", Features: allFeatures, Resume: shortResume}
}

// Dialing is how a connection begins.
type Dialing struct {
	Source        netip.Addr // zero: the kernel chooses
	ReceiveBuffer int        // SO_RCVBUF in bytes; 0: the kernel's
	First         []byte     // sent at once
}

// Connect opens a connection and sends its first bytes. It closes when ctx ends.
func (p *Peer) Connect(ctx context.Context, d Dialing) (*Conn, error) {
	nd := net.Dialer{Timeout: handshakeTimeout, Control: func(_, _ string, c syscall.RawConn) error {
		if d.ReceiveBuffer == 0 {
			return nil
		}
		var err error
		failed := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, d.ReceiveBuffer)
		})
		return errors.Join(failed, err)
	}}
	if d.Source.IsValid() {
		nd.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(d.Source, 0))
	}
	nd.SetMultipathTCP(false)
	tcp, err := nd.DialContext(ctx, "tcp", p.Far.String())
	if err != nil {
		p.tally.refused.Add(1)
		return nil, err
	}
	p.tally.connections.Add(1)
	c := newConn(ctx, tcp.(*net.TCPConn), &p.tally)
	if len(d.First) > 0 {
		if _, err := c.Write(d.First); err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}

// Preface is a new preface that the far relay recognizes.
func (p *Peer) Preface(kind preface.Kind, instance uint64) []byte {
	return preface.Preface{Kind: kind, Instance: instance}.Append(nil, p.Key)
}

// Greet opens a connection of a session, goes through the handshake and exchanges HELLO.
// instance is the far process that a lane is for.
func (p *Peer) Greet(ctx context.Context, kind preface.Kind, instance uint64, hello wire.Hello, d Dialing) (*Conn, error) {
	if p.TLS == nil {
		return nil, errors.New("a stranger has no certificate")
	}
	d.First = p.Preface(kind, instance)
	c, err := p.Connect(ctx, d)
	if err != nil {
		return nil, err
	}
	if err := c.handshake(tls.Client(c.tcp, p.TLS), func() (err error) {
		if _, err = c.Write(hello.Append(nil)); err == nil {
			c.Hello, err = wire.ReadHello(c)
		}
		if err == nil && c.Hello.Problem != "" {
			err = fmt.Errorf("the far relay answers %q", c.Hello.Problem)
		}
		return err
	}); err != nil {
		p.tally.refused.Add(1)
		c.Close()
		return nil, err
	}
	return c, nil
}

// Session is a relation to a far process.
type Session struct {
	Control *Conn
	peer    *Peer
	hello   wire.Hello
	opened  uint64 // the number of the latest flow
	client  netip.AddrPort
}

// Begin opens the control connection of a new session.
func (p *Peer) Begin(ctx context.Context, hello wire.Hello, d Dialing) (*Session, error) {
	c, err := p.Greet(ctx, preface.Control, 0, hello, d)
	if err != nil {
		return nil, err
	}
	return &Session{Control: c, peer: p, hello: hello, client: client}, nil
}

// Lane opens a lane.
func (s *Session) Lane(ctx context.Context, d Dialing) (*Conn, error) {
	return s.peer.Greet(ctx, preface.Lane, s.Control.Hello.Instance, s.hello, d)
}

// client is the address that flows are said to come from (RFC 5737).
var client = netip.MustParseAddrPort("192.0.2.1:40000")

// NextOpen is the OPEN of a new flow.
func (s *Session) NextOpen() wire.Open {
	s.opened++
	return wire.Open{Flow: s.opened, Deadline: 5 * time.Second, Client: s.client, Listen: s.peer.Far}
}

// OpenAhead makes the message that opens a new flow with its first bytes.
func (s *Session) OpenAhead(first []byte) wire.Message {
	o := s.NextOpen()
	return wire.Message{Type: wire.MessageOpen, Flow: o.Flow, Open: &o, Bytes: first}
}

func randomID() uint64 { return rand.Uint64() | 1 }

// Sent counts what an attack has sent.
type Sent struct {
	Connections int64 `json:"connections"`
	Refused     int64 `json:"refused"`  // attempts that brought no connection, or no HELLO
	Messages    int64 `json:"messages"` // and frames
	Bytes       int64 `json:"bytes"`    // before TLS
}

type tally struct{ connections, refused, messages, bytes atomic.Int64 }

func (t *tally) sent() Sent {
	return Sent{t.connections.Load(), t.refused.Load(), t.messages.Load(), t.bytes.Load()}
}

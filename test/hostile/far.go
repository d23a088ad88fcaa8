package hostile

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"sync"

	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/carry/pair/wire"
)

// Far is what a near relay connects to in place of a far relay: it has the keys that the near
// one expects.
type Far struct {
	Listener *net.TCPListener
	TLS      *tls.Config

	instance uint64
	tally    tally

	mu       sync.Mutex
	sessions map[uint64]*FarSession
}

// NewFar is a far end with a certificate whose key the near relay knows.
func NewFar(l *net.TCPListener, own tls.Certificate) *Far {
	return &Far{Listener: l, TLS: tlsOf(own), instance: randomID(), sessions: map[uint64]*FarSession{}}
}

// FarOf is a far end with the keys of a directory.
func FarOf(l *net.TCPListener, dir string) (*Far, error) {
	store := identity.New(dir)
	if _, _, _, err := store.Key(); err != nil {
		return nil, err
	}
	return NewFar(l, store.ServerTLS(nil).Certificates[0]), nil
}

// FarSession is what the connections of one near session have in common.
type FarSession struct {
	mu      sync.Mutex
	control *Conn
}

// send sends messages on the session's control connection, if there is one.
func (s *FarSession) send(messages ...wire.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.control == nil {
		return nil
	}
	return s.control.Send(messages...)
}

// script is what a far end does with the connections of near relays. Each function has its
// connection until it returns; nil: the connection is read to its end, and PINGs are answered.
type script struct {
	silent  bool // no HELLO is answered
	hello   func(wire.Hello) wire.Hello
	control func(ctx context.Context, s *FarSession, c *Conn) error
	lane    func(ctx context.Context, s *FarSession, c *Conn) error
}

// serve takes connections until ctx ends.
func (f *Far) serve(ctx context.Context, do script) error {
	stop := context.AfterFunc(ctx, func() { f.Listener.Close() })
	defer stop()
	var running sync.WaitGroup
	defer running.Wait()
	for {
		tcp, err := f.Listener.AcceptTCP()
		if err != nil {
			return ctx.Err()
		}
		f.tally.connections.Add(1)
		running.Go(func() {
			c := newConn(ctx, tcp, &f.tally)
			defer c.Close()
			_ = f.take(ctx, c, do)
		})
	}
}

// take goes through the handshake of a connection and follows the script.
func (f *Far) take(ctx context.Context, c *Conn, do script) error {
	first := make([]byte, preface.Size)
	if _, err := io.ReadFull(c, first); err != nil {
		return err
	}
	if err := c.handshake(tls.Server(c.tcp, f.TLS), func() (err error) {
		c.Hello, err = wire.ReadHello(c)
		return err
	}); err != nil {
		f.tally.refused.Add(1)
		return err
	}
	if do.silent {
		return discard(c)
	}
	answer := c.Hello
	answer.Instance, answer.Release = f.instance, "hostile"
	answer.Features &= allFeatures
	if do.hello != nil {
		answer = do.hello(answer)
	}
	if _, err := c.Write(answer.Append(nil)); err != nil || answer.Problem != "" {
		return err
	}
	s := f.session(c.Hello.Session)
	handle, isControl := do.lane, kindOf(first) == preface.Control
	if isControl {
		handle = do.control
		s.mu.Lock()
		s.control = c
		s.mu.Unlock()
	}
	if handle != nil {
		return handle(ctx, s, c)
	}
	if isControl {
		return c.answer(func(wire.Message) error { return nil })
	}
	return discard(c)
}

func (f *Far) session(number uint64) *FarSession {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sessions[number] == nil {
		f.sessions[number] = &FarSession{}
	}
	return f.sessions[number]
}

// kindOf is the kind in a preface. Whether its tag is right does not matter here.
func kindOf(first []byte) preface.Kind {
	const at = 9 // docs/design/pairs-wire.md
	return preface.Kind(first[at])
}

func discard(c *Conn) error {
	_, err := io.Copy(io.Discard, onlyReader{c})
	return err
}

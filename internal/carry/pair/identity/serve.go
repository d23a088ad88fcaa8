package identity

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"longhaul/internal/carry/pair/preface"
)

// ErrExpired is returned by ServeInvitation if nobody has joined in time.
var ErrExpired = errors.New("the invitation has expired")

// errJoined ends a [Store.ServeInvitation] that has served its purpose.
var errJoined = errors.New("the host has joined")

// ServeInvitation takes joins at a listener, which it closes, until the peer of this name
// has joined or [InvitationLife] is over. log gets what goes wrong with a connection;
// many goroutines call it.
func (s *Store) ServeInvitation(ctx context.Context, l net.Listener, name string, log func(remote net.Addr, err error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, InvitationLife, ErrExpired)
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	var connections sync.WaitGroup
	defer connections.Wait()
	defer end(nil)
	for {
		conn, err := l.Accept()
		if err != nil {
			return whyEnded(ctx, err)
		}
		connections.Go(func() {
			peer, err := s.serveConnection(ctx, conn)
			switch {
			case err != nil: // a host without an answer may join again
				log(conn.RemoteAddr(), err)
			case peer == name:
				end(errJoined)
			}
		})
	}
}

// whyEnded returns why a listener accepts no more; nil: the host has joined.
func whyEnded(ctx context.Context, err error) error {
	switch cause := context.Cause(ctx); cause {
	case errJoined:
		return nil
	case nil:
		return fmt.Errorf("take joins: %w", err)
	default:
		return cause
	}
}

// serveConnection serves a connection that may be a join.
func (s *Store) serveConnection(ctx context.Context, conn net.Conn) (peer string, err error) {
	return s.inPlace(ctx, conn, func(ctx context.Context) (string, error) {
		first, err := s.readPreface(conn)
		if err != nil {
			return "", err
		}
		return s.serveFirst(ctx, conn, first)
	})
}

// readPreface reads the preface of a join. It resets what is none.
func (s *Store) readPreface(conn net.Conn) ([]byte, error) {
	first := make([]byte, 0, prefaceSize)
	for {
		n, err := conn.Read(first[len(first):prefaceSize])
		first = first[:len(first)+n]
		p, verdict := s.Recognize(first)
		switch {
		case verdict == preface.Yes && p.Kind == preface.Join:
			return first, nil
		case verdict != preface.Maybe:
			reset(conn)
			return nil, errNoJoin
		case err != nil:
			return nil, err
		}
	}
}

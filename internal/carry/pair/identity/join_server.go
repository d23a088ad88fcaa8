package identity

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"longhaul/internal/sys/connsource"
)

// ServeJoin serves an accepted connection that begins with a preface of kind join, and
// closes it. first are the bytes that were read of it, from the preface on. It returns
// the name of the peer that has joined. ctx and [JoinTimeout] bound it; at most 64
// connections are served at a time.
func (s *Store) ServeJoin(ctx context.Context, conn net.Conn, first []byte) (peer string, err error) {
	return s.inPlace(ctx, conn, func(ctx context.Context) (string, error) { return s.serveFirst(ctx, conn, first) })
}

// inPlace serves a connection that may be a join, and closes it.
func (s *Store) inPlace(ctx context.Context, conn net.Conn, serve func(context.Context) (peer string, err error)) (peer string, err error) {
	defer conn.Close()
	place := s.places.Take(connsource.Of(conn), func() { reset(conn) })
	ctx, cancel := context.WithTimeoutCause(ctx, JoinTimeout, os.ErrDeadlineExceeded)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	peer, err = serve(ctx)
	if s.places.Leave(place) && err != nil {
		return peer, errCrowded
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	return peer, err
}

// serveFirst serves a connection of which first was read.
func (s *Store) serveFirst(ctx context.Context, conn net.Conn, first []byte) (peer string, err error) {
	if err := s.take(first); err != nil {
		reset(conn)
		return "", err
	}
	return s.serveJoin(ctx, &prefixed{conn, bytes.NewReader(first[prefaceSize:])})
}

// prefixed is a connection of which some bytes were read already.
type prefixed struct {
	net.Conn
	first *bytes.Reader
}

func (c *prefixed) Read(p []byte) (int, error) {
	if c.first.Len() > 0 {
		return c.first.Read(p)
	}
	return c.Conn.Read(p)
}

// serveJoin is the server's side of a connection of kind join, after the preface.
func (s *Store) serveJoin(ctx context.Context, conn net.Conn) (peer string, err error) {
	c, err := s.withKey()
	if err != nil {
		return "", err
	}
	anyKey := func(PublicKey) error { return nil } // the signature decides
	secure := tls.Server(conn, newConfig(&c.certificates[c.inUse()], anyKey))
	if err := secure.HandshakeContext(ctx); err != nil {
		return "", err
	}
	body, err := readMessage(secure)
	if err != nil {
		return "", err
	}
	state := secure.ConnectionState()
	peer, a, err := s.admit(&state, body, c.keys[c.inUse()].public())
	if err := writeMessage(secure, a.append(nil)); err != nil {
		return peer, err
	}
	// Closing with unread bytes would reset the connection, and lose the answer.
	_ = secure.CloseWrite()
	_, _ = io.Copy(io.Discard, io.LimitReader(secure, maxMessage))
	return peer, err
}

// admit decides on a join. If it succeeds, the client's host is a peer. own is the key
// of this host on that connection.
func (s *Store) admit(state *tls.ConnectionState, body []byte, own PublicKey) (peer string, a answer, err error) {
	r, err := parseRequest(body)
	if err != nil {
		a.outcome = unknown
		if errors.Is(err, errVersion) {
			a.outcome = newVersion
		}
		return "", a, fmt.Errorf("a join with a wrong message: %w", err)
	}
	client, err := keyOf(*state)
	if err != nil {
		return "", answer{outcome: unknown}, err
	}
	message, err := bound(state, client, own)
	if err != nil {
		return "", answer{outcome: failed}, err
	}
	proved := ed25519.VerifyWithOptions(r.verifier[:], message, r.signature[:], joinSignature) == nil
	if !proved || !slices.Contains(r.keys, client) {
		return "", answer{outcome: unknown}, errors.New("a join without the secret of an invitation")
	}
	a.outcome = failed // unless the change says better
	err = s.change(func(c *changing) error {
		peer, a = c.admit(&r, client, time.Now())
		if a.outcome != accepted {
			return fmt.Errorf("a join that is refused: %w", &refusedError{a.outcome})
		}
		return nil
	})
	if err != nil {
		if a.outcome == accepted { // it could not be written
			a = answer{outcome: failed}
		}
		return "", a, err
	}
	return peer, a, nil
}

// admit makes a peer of who has proved to have the secret of an invitation.
func (c *changing) admit(r *request, client PublicKey, now time.Time) (peer string, a answer) {
	k := c.invitations.find(r.verifier)
	switch {
	case k == nil:
		return "", answer{outcome: unknown}
	case !k.used.IsZero() && (k.used != client || !c.joined(k)):
		return "", answer{outcome: spent}
	case k.expired(now):
		return "", answer{outcome: late}
	}
	// A client whose answer was lost joins again.
	if _, err := c.pinJoined(k.name, r.keys, client); err != nil {
		var taken *TakenError
		if errors.As(err, &taken) && taken.Key.IsZero() {
			return "", answer{outcome: nameTaken}
		}
		return "", answer{outcome: keyTaken}
	}
	k.used = client
	return k.name, answer{accepted, c.keys.public()}
}

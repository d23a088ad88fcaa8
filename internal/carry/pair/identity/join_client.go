package identity

import (
	"context"
	"crypto/fips140"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"longhaul/internal/words/remedy"
)

// JoinTimeout bounds a join over one connection: for the client with the connect, for the
// server from accept on.
const JoinTimeout = 10 * time.Second

// Joined is the outcome of a join.
type Joined struct {
	Peer    string
	Key     PublicKey // of the peer, the newest
	Address string    // where it answered
	Added   bool      // it was no peer before
}

// Join uses an invitation: both hosts pin each other's keys. as is the name of the new
// peer here; empty: the one that it proposes. Nothing is stored unless the other host has
// accepted.
func (s *Store) Join(ctx context.Context, inv *Invitation, as string) (Joined, error) {
	if fips140.Enforced() { // crypto/ed25519 refuses Ed25519ctx, with which a join is signed
		return Joined{}, remedy.New(errors.New("a join does not work with GODEBUG=fips140=only"),
			"exchange the public keys with longhaul pair key and longhaul pair apply")
	}
	if as == "" {
		as = inv.Name
	}
	if err := CheckName(as); err != nil {
		return Joined{}, err
	}
	// The secret works once: find out first what would keep the peer from being pinned.
	if err := s.tryPin(Peer{Name: as, Keys: []PublicKey{inv.Key}}, inv.Key); err != nil {
		return Joined{}, err
	}
	var failures []error
	for _, address := range inv.Addresses {
		keys, err := s.joinAt(ctx, inv, address)
		if refused := (*refusedError)(nil); errors.As(err, &refused) {
			return Joined{}, refused.remedy(address)
		}
		if err != nil {
			failures = append(failures, explainJoin(address, err))
			continue
		}
		added, err := s.pinJoined(as, keys, inv.Key)
		return Joined{Peer: as, Key: keys[0], Address: address, Added: added}, err
	}
	if len(failures) == 1 {
		return Joined{}, failures[0]
	}
	return Joined{}, remedy.New(fmt.Errorf("no address of the invitation leads there: %w", joinLine(failures)), remedy.Of(failures[0]))
}

// tryPin makes this host's key, and reports why a peer with a key cannot be added.
func (s *Store) tryPin(p Peer, key PublicKey) error {
	if err := s.change(func(c *changing) error { c.needKey(); return nil }); err != nil {
		return err
	}
	return s.locked(func(d *directory, c *changing) error {
		if _, err := c.pin(p, key); err != nil {
			return err
		}
		return d.probe()
	})
}

// pinJoined pins a host that has pinned this one with all its keys, of which it has
// proved one.
func (s *Store) pinJoined(name string, keys []PublicKey, proved PublicKey) (added bool, err error) {
	err = s.change(func(c *changing) error {
		c.needKey()
		added, err = c.pinJoined(name, keys, proved)
		return err
	})
	return added && err == nil, err
}

// joinAt joins over a new connection. It returns the other host's keys, the newest first.
func (s *Store) joinAt(ctx context.Context, inv *Invitation, address string) ([]PublicKey, error) {
	c, err := s.withKey()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, JoinTimeout)
	defer cancel()
	var dialer net.Dialer
	dialer.SetMultipathTCP(false)
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	keys, err := join(ctx, conn, inv, c)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return nil, cause
	}
	return keys, err
}

// join is the client's side of a connection of kind join.
func join(ctx context.Context, conn net.Conn, inv *Invitation, c *content) ([]PublicKey, error) {
	if _, err := conn.Write(inv.preface()); err != nil {
		return nil, err
	}
	secure := tls.Client(conn, newConfig(&c.certificates[c.inUse()], func(key PublicKey) error {
		if key != inv.Key {
			return fmt.Errorf("%w: the other end has the key %s, not the invitation's", ErrKeyUnknown, key.Short())
		}
		return nil
	}))
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	state := secure.ConnectionState()
	message, err := bound(&state, c.keys[c.inUse()].public(), inv.Key)
	if err != nil {
		return nil, err
	}
	signer := inv.signer()
	signature, err := signer.Sign(nil, message, joinSignature)
	if err != nil {
		return nil, err
	}
	r := request{verifier: signer.public(), signature: [64]byte(signature), keys: c.keys.public()}
	if err := writeMessage(secure, r.append(nil)); err != nil {
		return nil, err
	}
	body, err := readMessage(secure)
	if err != nil {
		return nil, err
	}
	a, err := parseAnswer(body)
	switch {
	case err != nil:
		return nil, fmt.Errorf("it answers wrongly: %w", err)
	case a.outcome != accepted:
		return nil, &refusedError{a.outcome}
	case !slices.Contains(a.keys, inv.Key):
		return nil, errors.New("it answers wrongly: its key is not among its keys")
	}
	_ = secure.Close() // the other host has accepted, whatever happens to the connection now
	return a.keys, nil
}

// refusedError is a join that the other host has refused.
type refusedError struct{ outcome outcome }

func (e *refusedError) Error() string {
	switch e.outcome {
	case unknown:
		return "it does not know this invitation"
	case late:
		return fmt.Sprintf("the invitation has expired, after %d minutes", int(InvitationLife.Minutes()))
	case spent:
		return "the invitation has been used already"
	case nameTaken:
		return "it has another peer of the invitation's name by now"
	case keyTaken:
		return "it has this host's key already, under another name"
	case failed:
		return "it cannot store its peers"
	case newVersion:
		return "it is older, and does not understand this join"
	}
	return fmt.Sprintf("it refuses with the unknown code %d", e.outcome)
}

// remedy adds the address and what to do.
func (e *refusedError) remedy(address string) error {
	fix := "run longhaul pair invite there again, and join with the new line"
	switch e.outcome {
	case nameTaken:
		fix = "run longhaul pair list there; invite with another name"
	case keyTaken:
		fix = "run longhaul pair list there: this host is a peer already; or take it out with longhaul pair remove"
	case failed:
		fix = "its log, or what longhaul pair invite prints there, has the cause"
	case newVersion:
		fix = "bring both hosts to the same version of longhaul"
	}
	return remedy.New(fmt.Errorf("%s refuses: %w", address, e), fix)
}

// explainJoin makes a sentence of why an address cannot be joined.
func explainJoin(address string, err error) error {
	const wrongPlace = "let the invitation name an address where that relay listens with pair_from, or where longhaul pair invite --serve does"
	var record tls.RecordHeaderError
	var dns *net.DNSError
	var op *net.OpError
	switch {
	case errors.Is(err, ErrKeyUnknown):
		return remedy.New(fmt.Errorf("another host answers at %s: %w", address, err), wrongPlace)
	case errors.As(err, &record), errors.As(err, &op) && op.Op == remoteAlert:
		return remedy.New(fmt.Errorf("something else than a paired relay answers at %s", address), wrongPlace)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return remedy.New(fmt.Errorf("%s ends the connection: the invitation has expired or was used, or no relay of that host takes a join there", address),
			"run longhaul pair invite there again, with an address where its relay listens with pair_from, or with --serve; and join with the new line")
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return remedy.New(fmt.Errorf("no answer from %s within %d s", address, int(JoinTimeout.Seconds())),
			"check the address, and whether a firewall lets TCP connections through")
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("interrupted the join at %s", address)
	case errors.Is(err, syscall.ECONNREFUSED):
		return remedy.New(fmt.Errorf("nothing listens at %s", address),
			"start the relay there, or run longhaul pair invite with --serve ADDRESS:PORT")
	case errors.As(err, &dns):
		return remedy.New(fmt.Errorf("cannot look up the host of %s: %s", address, dns.Err), "check the invitation's address")
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		err = errno
	}
	return remedy.New(fmt.Errorf("join at %s: %w", address, err), "check the address, and the path to it")
}

// joinLine joins errors on one line.
func joinLine(errs []error) error {
	all := errs[0]
	for _, err := range errs[1:] {
		all = fmt.Errorf("%w; %w", all, err)
	}
	return all
}

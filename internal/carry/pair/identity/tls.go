package identity

import (
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"

	"longhaul/internal/carry/pair/preface"
)

// ErrKeyUnknown is returned by a handshake if the key of the other end is not the one
// that is pinned.
var ErrKeyUnknown = errors.New("unknown key")

// remoteAlert is the operation that crypto/tls names in the error of a received alert.
const remoteAlert = "remote error"

// alertBadCertificate is what crypto/tls sends when VerifyConnection fails (RFC 8446, 6.2).
const alertBadCertificate tls.AlertError = 42

// IsKeyUnknown reports whether an error of a TLS connection means that one end does not
// know the key of the other. A client learns that the server refuses its key with the
// first read after the handshake.
func IsKeyUnknown(err error) bool {
	var op *net.OpError
	refused := errors.As(err, &op) && op.Op == remoteAlert && op.Err.Error() == alertBadCertificate.Error()
	return refused || errors.Is(err, ErrKeyUnknown)
}

// newConfig is what all connections of the protocol share. check gets the key of the
// other end, which has proved that it has the private one.
func newConfig(own *tls.Certificate, check func(PublicKey) error) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, MaxVersion: tls.VersionTLS13,
		NextProtos:             []string{preface.ALPN},
		Certificates:           []tls.Certificate{*own},
		ClientAuth:             tls.RequireAnyClientCert,
		InsecureSkipVerify:     true, // there is no chain: VerifyConnection holds the key against the pinned one
		SessionTicketsDisabled: true,
		// Lanes carry bulk; small first records cost CPU.
		DynamicRecordSizingDisabled: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			key, err := keyOf(state)
			if err != nil {
				return err
			}
			return check(key)
		},
	}
}

// keyOf returns the key of the other end.
func keyOf(state tls.ConnectionState) (PublicKey, error) {
	if state.NegotiatedProtocol != preface.ALPN { // a client that offers none is accepted until here
		return PublicKey{}, fmt.Errorf("the other end does not speak %s", preface.ALPN)
	}
	if len(state.PeerCertificates) == 0 {
		return PublicKey{}, fmt.Errorf("%w: no certificate", ErrKeyUnknown)
	}
	key, ok := state.PeerCertificates[0].PublicKey.(ed25519.PublicKey)
	if !ok || len(key) != keyBytes {
		return PublicKey{}, fmt.Errorf("%w: the certificate has no Ed25519 key", ErrKeyUnknown)
	}
	return PublicKey(key), nil
}

// ServerTLS is the configuration for an accepted connection, whatever its preface. It demands a
// client's certificate and refuses one whose key belongs to no peer.
func (s *Store) ServerTLS([]byte) *tls.Config {
	c, err := s.withKey()
	if err != nil {
		return &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return nil, err }}
	}
	return newConfig(&c.certificates[c.inUse()], func(key PublicKey) error {
		c, err := s.load()
		if err != nil {
			return err
		}
		p := c.peers.ofKey(key)
		if p == nil {
			return fmt.Errorf("%w: no peer has the key %s", ErrKeyUnknown, key.Short())
		}
		s.saw(p, key)
		return nil
	})
}

// ClientTLS is the configuration for a connection to a peer, or to any host of a site. It refuses any
// other key than theirs, with an error that is [ErrKeyUnknown].
func (s *Store) ClientTLS(peer string) (*tls.Config, error) {
	c, err := s.withKey()
	if err != nil {
		return nil, err
	}
	if len(c.peers.meant(peer)) == 0 {
		return nil, &unknownPeer{peer, c.peers}
	}
	return newConfig(&c.certificates[c.inUse()], func(key PublicKey) error {
		c, err := s.load()
		if err != nil {
			return err
		}
		p := c.peers.ofKey(key)
		if p == nil || !IsOf(p.Name, peer) {
			return fmt.Errorf("%w: the other end has the key %s, not that of peer %s", ErrKeyUnknown, key.Short(), peer)
		}
		s.saw(p, key)
		return nil
	}), nil
}

// saw takes note of the key that a peer uses.
func (s *Store) saw(p *Peer, used PublicKey) {
	if len(p.Keys) == MaxKeys && p.Keys[0] == used {
		_ = s.settle(p.Name, used) // the next handshake tries again
	}
}

// Proved is the key of the other end's certificate.
func (s *Store) Proved(state tls.ConnectionState) (ed25519.PublicKey, error) {
	key, err := keyOf(state)
	if err != nil {
		return nil, err
	}
	return key[:], nil
}

// Admitted is the key of the other end of an accepted connection, which ServerTLS has checked.
func (s *Store) Admitted(_ []byte, state tls.ConnectionState) (ed25519.PublicKey, error) {
	return s.Proved(state)
}

// PeerOf names the peer that a key of a verified certificate belongs to.
func (s *Store) PeerOf(key ed25519.PublicKey) (name string, known bool) {
	c, err := s.load()
	if err != nil || len(key) != keyBytes {
		return "", false
	}
	p := c.peers.ofKey(PublicKey(key))
	if p == nil {
		return "", false
	}
	return p.Name, true
}

// PublicKeys are this host's keys that a preface may be made for, the one in use first.
// During a rotation there are two.
func (s *Store) PublicKeys() []ed25519.PublicKey {
	c, err := s.load()
	if err != nil {
		return nil
	}
	keys := bare(c.keys.public())
	slices.Reverse(keys)
	return keys
}

// Hosts names the peers that a name means: one, or the hosts of a site; none: the name is unknown.
func (s *Store) Hosts(name string) (hosts []string) {
	c, err := s.load()
	if err != nil {
		return nil
	}
	for _, p := range c.peers.meant(name) {
		hosts = append(hosts, p.Name)
	}
	return hosts
}

// PeerKeys are the keys of a peer, the one to make a preface for first; none: the peer is
// unknown. That is the newest: who announced a key recognises it from then on. The keys of a site
// are those of its hosts, host by host.
func (s *Store) PeerKeys(peer string) (keys []ed25519.PublicKey) {
	c, err := s.load()
	if err != nil {
		return nil
	}
	for _, p := range c.peers.meant(peer) {
		keys = append(keys, bare(p.Keys)...)
	}
	return keys
}

// PrefaceKey is the key of prefaces for a peer.
func (s *Store) PrefaceKey(peer string) (key preface.Key, known bool) {
	keys := s.PeerKeys(peer)
	if len(keys) == 0 {
		return preface.Key{}, false
	}
	return preface.HostKey(keys[0]), true
}

// bare returns keys in the type of the standard library.
func bare(keys []PublicKey) []ed25519.PublicKey {
	all := make([]ed25519.PublicKey, len(keys))
	for i, key := range keys {
		all[i] = slices.Clone(key[:])
	}
	return all
}

package pair

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/tls"
	"time"

	"longhaul/internal/carry/pair/preface"
)

// Identity knows this host's keys and its peers. The node asks it again for each
// connection and each second for each session: a change of the keys reaches
// sessions that stand. Methods are called from many goroutines. Its configurations
// are of TLS 1.3 with preface.ALPN and without session tickets.
type Identity interface {
	// Recognize decides what the first bytes of a connection are.
	Recognize(first []byte) (preface.Preface, preface.Verdict)
	// ServerTLS is the configuration for an accepted connection with this preface. It demands
	// a client's certificate and refuses one that belongs to no peer. ClientCAs, where it is
	// set, says that both ends prove names by certificates of an authority; RootCAs of
	// ClientTLS does the same.
	ServerTLS(first []byte) *tls.Config
	// ClientTLS is the configuration for a connection to a peer, or to any host of a site. It
	// refuses any other key than theirs: an error of that check is flow.PairKeyUnknown.
	ClientTLS(peer string) (*tls.Config, error)
	// Hosts names the peers that a name means: one, or the hosts of a site; none: it is unknown.
	Hosts(name string) []string
	// Proved is the key that stands for the other end of a connection that this host has made: that of its
	// certificate, or one that stands for the name in it.
	Proved(tls.ConnectionState) (ed25519.PublicKey, error)
	// Admitted is the same of an accepted connection with this preface. It checks a certificate of an
	// authority, which ServerTLS leaves to it; its error then is trust.ErrCertificate.
	Admitted(first []byte, state tls.ConnectionState) (ed25519.PublicKey, error)
	// PeerOf names the peer of a key that Proved or Admitted has returned.
	PeerOf(key ed25519.PublicKey) (name string, known bool)
	// PublicKeys are this host's own keys, the one in use first. During a rotation
	// there are two.
	PublicKeys() []ed25519.PublicKey
	// Successor is the key that rotations have put in place of one: that key itself, if none has.
	Successor(key ed25519.PublicKey) (ed25519.PublicKey, error)
	// PrefaceKey is the key of prefaces for a peer.
	PrefaceKey(peer string) (key preface.Key, known bool)
	// Ends are when this host's certificate ends, and the one that the host of a key showed last; zero: keys
	// are pinned, or it has shown none. Later the other end refuses a new connection, or this one does.
	Ends(key ed25519.PublicKey) (own, peers time.Time)
	// Shown is the SHA-256 of the certificates that this host shows to the host of a key; zero: keys are pinned.
	Shown(key ed25519.PublicKey) [sha256.Size]byte
	// Announced is the key that a rotation made and this peer has not taken yet;
	// nil: none. The node tells it to the peer over sessions that stand.
	Announced(peer string) ed25519.PublicKey
	// Taken reports that a peer has stored the announced key.
	Taken(peer string, key ed25519.PublicKey) error
	// Learn stores a key that a peer announced, beside the keys that it has.
	Learn(peer string, key ed25519.PublicKey) error
}

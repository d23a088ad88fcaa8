package pair

import (
	"crypto/ed25519"
	"crypto/tls"
)

// Identity knows this host's keys and its peers. The node asks it again for each
// connection and each second for each session: a change of the keys reaches
// sessions that stand. Methods are called from many goroutines. Its configurations
// are of TLS 1.3 with preface.ALPN and without session tickets.
type Identity interface {
	// ServerTLS is the configuration for an accepted connection. It demands a
	// client's certificate and refuses one whose key belongs to no peer.
	ServerTLS() *tls.Config
	// ClientTLS is the configuration for a connection to a peer, or to any host of a site. It
	// refuses any other key than theirs: an error of that check is flow.PairKeyUnknown.
	ClientTLS(peer string) (*tls.Config, error)
	// Hosts names the peers that a name means: one, or the hosts of a site; none: it is unknown.
	Hosts(name string) []string
	// PeerOf names the peer that a key of a verified certificate belongs to.
	PeerOf(key ed25519.PublicKey) (name string, known bool)
	// PublicKeys are this host's keys that a preface may be made for, the one in
	// use first. During a rotation there are two.
	PublicKeys() []ed25519.PublicKey
	// PeerKeys are the keys of a peer, the one to make a preface for first; none:
	// the peer is unknown.
	PeerKeys(peer string) []ed25519.PublicKey
	// Announced is the key that a rotation made and this peer has not taken yet;
	// nil: none. The node tells it to the peer over sessions that stand.
	Announced(peer string) ed25519.PublicKey
	// Taken reports that a peer has stored the announced key.
	Taken(peer string, key ed25519.PublicKey) error
	// Learn stores a key that a peer announced, beside the keys that it has.
	Learn(peer string, key ed25519.PublicKey) error
}

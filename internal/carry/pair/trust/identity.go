// Package trust has the peers of a host that prove their names by certificates of an authority, beside those
// whose keys are pinned. Files of certificates are written by others, such as cert-manager, Vault or
// spiffe-helper, and renewed while the relay runs: a new handshake uses the new ones, and sessions that stand go
// on. docs/design/pairs-wire.md has what that means for the protocol.
//
// Whoever has a valid certificate of an authority in ca with a name in names may open connections as that name's
// peer, and nobody else. The system's authorities do not count.
package trust

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/words/remedy"
)

// Identity is a store of pinned keys with a trust beside it. A name is that of a pinned peer or of a trusted
// one. It implements pair.Identity.
type Identity struct {
	*identity.Store
	now, next atomic.Pointer[Trust] // next: of a change that is prepared
}

// New returns an identity without a trust.
func New(store *identity.Store) *Identity { return &Identity{Store: store} }

// Prepare adds the peers of a trust until [Identity.Use], since tunnels begin before a change is committed.
func (i *Identity) Prepare(t *Trust) { i.next.Store(t) }

// Use puts a trust into force; nil: nobody is trusted by a certificate. What the one before has seen of
// certificates stays known.
func (i *Identity) Use(t *Trust) {
	if was := i.now.Swap(t); was != nil && t != nil && was != t {
		t.remember(was.Until())
	}
	i.next.Store(nil)
}

// Trust is the one in force; nil: none.
func (i *Identity) Trust() *Trust { return i.now.Load() }

// both are the trusts that there are.
func (i *Identity) both() []*Trust {
	return slices.DeleteFunc([]*Trust{i.now.Load(), i.next.Load()}, func(t *Trust) bool { return t == nil })
}

// trusting is the trust that has a peer, or hosts of a site; nil: the name is no trusted one.
func (i *Identity) trusting(peer string) (*Trust, []Name) {
	for _, t := range i.both() {
		if names := t.meant(peer); len(names) > 0 {
			return t, names
		}
	}
	return nil, nil
}

// Clash is the error of a trust with the name of a peer that is pinned here.
func (i *Identity) Clash(o *Options) error {
	peers, err := i.Peers()
	if err != nil {
		return err
	}
	for _, p := range peers {
		for _, n := range o.Names {
			if identity.SameSite(p.Name, n.Peer) {
				return remedy.New(fmt.Errorf("%s has the peer %s, whose key is pinned here as %s", n.SAN, n.Peer, p.Name),
					"remove it from names of pair_trust, give it another peer, or take the pinned one out with longhaul pair remove "+p.Name)
			}
		}
	}
	return nil
}

// Recognize decides what the first bytes of a connection are.
func (i *Identity) Recognize(first []byte) (preface.Preface, preface.Verdict) {
	p, verdict := i.Store.Recognize(first)
	for _, t := range i.both() {
		if verdict == preface.No {
			p, verdict = t.material().recognize(first)
		}
	}
	return p, verdict
}

// ServerTLS is the configuration for an accepted connection with this preface.
func (i *Identity) ServerTLS(first []byte) *tls.Config {
	for _, t := range i.both() {
		if _, verdict := t.material().recognize(first); verdict == preface.Yes {
			return t.serverTLS()
		}
	}
	return i.Store.ServerTLS(first)
}

// ClientTLS is the configuration for a connection to a peer, or to any host of a site.
func (i *Identity) ClientTLS(peer string) (*tls.Config, error) {
	if t, _ := i.trusting(peer); t != nil {
		return t.clientTLS(peer), nil
	}
	config, err := i.Store.ClientTLS(peer)
	return config, i.orTrusted(err)
}

// orTrusted adds the trusted peers to the error of a name that no peer has.
func (i *Identity) orTrusted(err error) error {
	t := i.now.Load()
	if t == nil || !errors.Is(err, identity.ErrNoPeer) {
		return err
	}
	const most = 8
	var names []string
	for _, n := range t.options.Names[:min(most, len(t.options.Names))] {
		names = append(names, n.Peer)
	}
	if more := len(t.options.Names) - most; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return fmt.Errorf("%w; pair_trust has %s", err, strings.Join(names, ", "))
}

// Proved is the key that stands for the other end of a handshake: its own, or that of its name.
func (i *Identity) Proved(state tls.ConnectionState) (ed25519.PublicKey, error) {
	// The configurations of the two kinds take no certificate of the other kind, but both pass here.
	key, err := i.Store.Proved(state)
	if err == nil {
		if _, pinned := i.Store.PeerOf(key); pinned {
			return key, nil
		}
	}
	chain := state.PeerCertificates
	if len(chain) == 0 {
		return nil, err
	}
	for _, t := range i.both() {
		// A pinned peer that is taken out in this moment may write any name into its own certificate.
		if _, err := t.material().verify(chain, x509.ExtKeyUsageAny, time.Now()); err != nil {
			continue
		}
		if n, err := t.named(chain[0]); err == nil {
			return keyOf(n.SAN), nil
		}
	}
	return key, err
}

// Admitted is the key that stands for the other end of an accepted connection with this preface. The error
// of a certificate that is refused is ErrCertificate.
func (i *Identity) Admitted(first []byte, state tls.ConnectionState) (ed25519.PublicKey, error) {
	for _, t := range i.both() {
		if _, verdict := t.material().recognize(first); verdict == preface.Yes {
			n, err := t.admit(state.PeerCertificates, x509.ExtKeyUsageClientAuth)
			if err != nil {
				return nil, err
			}
			return keyOf(n.SAN), nil
		}
	}
	return i.Store.Admitted(first, state)
}

// PeerOf names the peer of a key that [Identity.Proved] or [Identity.Admitted] has returned.
func (i *Identity) PeerOf(key ed25519.PublicKey) (name string, known bool) {
	if name, known = i.Store.PeerOf(key); known {
		return name, true
	}
	t, n := i.standing(key)
	return n.Peer, t != nil
}

// standing is the trust with the name that a key stands for; nil: it stands for none.
func (i *Identity) standing(key ed25519.PublicKey) (*Trust, Name) {
	if len(key) != sha256.Size {
		return nil, Name{}
	}
	for _, t := range i.both() {
		if n, known := t.peers[[sha256.Size]byte(key)]; known {
			return t, n
		}
	}
	return nil, Name{}
}

// Ends are when this host's certificate ends, and the one that the host of a key showed last.
func (i *Identity) Ends(key ed25519.PublicKey) (own, peers time.Time) {
	if t, n := i.standing(key); t != nil {
		return t.OwnUntil(), t.Until()[n.SAN]
	}
	return own, peers
}

// Shown is the SHA-256 of this host's certificate with those above it. Two that follow one another may end in
// the same second, as their authority does.
func (i *Identity) Shown(key ed25519.PublicKey) (sum [sha256.Size]byte) {
	if t, _ := i.standing(key); t != nil {
		return t.material().sum
	}
	return sum
}

// Hosts names the peers that a name means: one, or the hosts of a site; none: the name is unknown.
func (i *Identity) Hosts(name string) (hosts []string) {
	_, names := i.trusting(name)
	for _, n := range names {
		hosts = append(hosts, n.Peer)
	}
	if hosts != nil {
		return hosts
	}
	return i.Store.Hosts(name)
}

// PrefaceKey is the key of prefaces for a host.
func (i *Identity) PrefaceKey(host string) (key preface.Key, known bool) {
	if t, names := i.trusting(host); t != nil {
		return t.material().prefaceKey(names[0]), true
	}
	return i.Store.PrefaceKey(host)
}

// Known returns an error that names the peers if none has this name or is of this site.
func (i *Identity) Known(name string) error {
	if t, _ := i.trusting(name); t != nil {
		return nil
	}
	return i.orTrusted(i.Store.Known(name))
}

// Problem is why the files of keys or of certificates cannot be used, or nil.
func (i *Identity) Problem() error {
	if err := i.Store.Problem(); err != nil {
		return err
	}
	return i.now.Load().Problem()
}

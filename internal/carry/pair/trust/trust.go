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
	"sync"
	"time"

	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/sys/certchain"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/sorted"
)

// checkInterval is the time for which a process trusts what it has read.
const checkInterval = time.Second

// Options are the trust of a configuration.
type Options struct {
	Files
	Names []Name
}

// Equal reports whether two are one.
func (o *Options) Equal(other *Options) bool {
	return o.Files == other.Files && slices.Equal(o.Names, other.Names)
}

// Trust is the trust of a configuration with the files as of now. A nil one trusts nobody. Methods are safe
// for several goroutines.
type Trust struct {
	options Options
	peers   map[[sha256.Size]byte]Name // by the key that stands for a name

	mu      sync.Mutex
	now     *material
	marks   [3]mark
	checked time.Time
	problem error                // of the last reading
	until   map[string]time.Time // by SAN: the end of the certificate that was seen last
}

func newTrust(o Options) *Trust {
	t := &Trust{options: o, peers: map[[sha256.Size]byte]Name{}, until: map[string]time.Time{}}
	for _, n := range o.Names {
		t.peers[[sha256.Size]byte(keyOf(n.SAN))] = n
	}
	return t
}

// Load reads the files. The error is a [*remedy.Error].
func Load(o Options) (*Trust, error) {
	t := newTrust(o)
	t.marks, t.checked = o.marks(), time.Now()
	var err error
	t.now, err = o.read()
	if err != nil {
		return nil, err
	}
	return t, nil
}

// With is the trust with other names, and the files as they are now.
func (t *Trust) With(names []Name) *Trust {
	now := t.material()
	t.mu.Lock()
	defer t.mu.Unlock()
	other := newTrust(Options{t.options.Files, names})
	other.now, other.marks, other.checked, other.problem = now, t.marks, t.checked, t.problem
	return other
}

// remember takes what another trust has seen of certificates of names that this one has.
func (t *Trust) remember(seen map[string]time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range t.options.Names {
		if until := seen[n.SAN]; t.until[n.SAN].IsZero() && !until.IsZero() {
			t.until[n.SAN] = until
		}
	}
}

// keyOf is the key that stands for a name: the identity of a host in its sessions. It is the same for each
// of its certificates.
func keyOf(san string) ed25519.PublicKey {
	sum := sha256.Sum256([]byte("longhaul pair certificate name " + san))
	return sum[:]
}

// Options are the ones that it was loaded with.
func (t *Trust) Options() *Options { return &t.options }

// material is what the files say as of a second ago at most. Files that cannot be used leave the former one.
func (t *Trust) material() *material {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.checked) < checkInterval {
		return t.now
	}
	t.checked = time.Now()
	// What changes while it is read has other marks at the next look.
	marks := t.options.marks()
	if marks == t.marks && t.problem == nil {
		return t.now
	}
	t.marks = marks
	m, err := t.options.read()
	if t.problem = err; err == nil {
		t.now = m
	}
	return t.now
}

// Problem is why the files cannot be used, or why peers will refuse this host's certificate now; nil: neither.
func (t *Trust) Problem() error {
	if t == nil {
		return nil
	}
	m := t.material()
	t.mu.Lock()
	err := t.problem
	t.mu.Unlock()
	if err != nil {
		return fmt.Errorf("the former certificate stays in use: %w", err)
	}
	return m.problem(time.Now())
}

func (m *material) problem(now time.Time) error {
	text := expired(m.own.Leaf, now)
	if text == "" && now.After(m.until) {
		text = "an authority above it expired at " + m.until.UTC().Format(timeForm)
	}
	if text != "" {
		return remedy.New(fmt.Errorf("peers refuse this host's certificate of %s: %s", NameOf(m.own.Leaf), text),
			"renew it; the relay takes new files within a second")
	}
	return nil
}

// Warnings are what is wrong with the files but may be intended, or mended while the relay runs.
func (t *Trust) Warnings() (all []error) {
	m := t.material()
	if err := m.problem(time.Now()); err != nil {
		all = append(all, err)
	}
	if !m.trusted {
		all = append(all, remedy.New(fmt.Errorf("no authority in %s has issued the certificate in %s", t.options.CA, t.options.Cert),
			"name the file of its authority in ca, unless the peers have that in theirs"))
	}
	return all
}

// Own is this host's certificate.
func (t *Trust) Own() *x509.Certificate { return t.material().own.Leaf }

// OwnUntil is when this host's certificate ends, or the first of its authorities.
func (t *Trust) OwnUntil() time.Time { return t.material().until }

// Until is when the certificate that was last seen of a name ends, or the first of its authorities; zero: none
// was seen.
func (t *Trust) Until() map[string]time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make(map[string]time.Time, len(t.until))
	for san, until := range t.until {
		all[san] = until
	}
	return all
}

// meant are the names that a peer's name means: of one host, or of the hosts of a site.
func (t *Trust) meant(peer string) (all []Name) {
	for _, n := range t.options.Names {
		if identity.IsOf(n.Peer, peer) {
			all = append(all, n)
		}
	}
	sorted.By(all, func(a, b Name) int { return strings.Compare(a.Peer, b.Peer) })
	return all
}

// named is the peer whose name is in a certificate.
func (t *Trust) named(leaf *x509.Certificate) (found Name, err error) {
	if err := checkForm(leaf); err != nil {
		return Name{}, err
	}
	for _, san := range namesOf(leaf) {
		n, known := t.peers[[sha256.Size]byte(keyOf(san))]
		switch {
		case !known || n == found:
		case found != Name{}:
			return Name{}, fmt.Errorf("it has the names of two peers, %s and %s", found.Peer, n.Peer)
		default:
			found = n
		}
	}
	if found == (Name{}) {
		return found, errors.New("its name is not in names of pair_trust")
	}
	return found, nil
}

// prefaceKey is the key of prefaces for a host. Hosts of a site may share an address, so their names are in
// the key; who has one of another site's name gets the reason by TLS.
func (m *material) prefaceKey(n Name) preface.Key {
	san := ""
	if strings.Contains(n.Peer, "/") {
		san = n.SAN
	}
	return preface.AuthorityKey(m.issuer.RawSubjectPublicKeyInfo, san)
}

// config is what connections by certificates share.
func (m *material) config(verify func(chain []*x509.Certificate) error) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, MaxVersion: tls.VersionTLS13,
		NextProtos:             []string{preface.ALPN},
		Certificates:           []tls.Certificate{m.own},
		RootCAs:                m.pool,
		ClientCAs:              m.pool,
		SessionTicketsDisabled: true,
		// Lanes carry bulk; small first records cost CPU.
		DynamicRecordSizingDisabled: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			if state.NegotiatedProtocol != preface.ALPN {
				return fmt.Errorf("the other end does not speak %s", preface.ALPN)
			}
			if len(state.PeerCertificates) == 0 {
				return fmt.Errorf("%w: there is none", ErrCertificate)
			}
			return verify(state.PeerCertificates)
		},
	}
}

// admit finds the peer of whom a chain is. use is what the other end does with it.
func (t *Trust) admit(chain []*x509.Certificate, use x509.ExtKeyUsage) (Name, error) {
	now, leaf := time.Now(), chain[0]
	chains, err := t.material().verify(chain, use, now)
	var n Name
	if err == nil {
		n, err = t.named(leaf)
	}
	if err != nil {
		return Name{}, refuse(leaf, now, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.until[n.SAN] = certchain.Until(chains)
	return n, nil
}

// serverTLS is the configuration for an accepted connection. It takes any certificate: [Identity.Admitted]
// checks it behind the handshake. crypto/tls would check up to 100 signatures before it, of chains that a
// stranger has made.
func (t *Trust) serverTLS() *tls.Config {
	c := t.material().config(func([]*x509.Certificate) error { return nil })
	c.ClientAuth = tls.RequireAnyClientCert
	return c
}

// clientTLS is the configuration for a connection to a peer, or to any host of a site.
func (t *Trust) clientTLS(peer string) *tls.Config {
	c := t.material().config(func(chain []*x509.Certificate) error {
		n, err := t.admit(chain, x509.ExtKeyUsageServerAuth)
		if err == nil && !identity.IsOf(n.Peer, peer) {
			err = refuse(chain[0], time.Now(), fmt.Errorf("it is that of %s, not of %s", n.Peer, peer))
		}
		return err
	})
	c.InsecureSkipVerify = true // VerifyConnection does: crypto/tls asks for a DNS name
	// A client of crypto/tls hides a certificate of none of the server's authorities, and the server could
	// not say why it refuses.
	own := &c.Certificates[0]
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own, nil }
	return c
}

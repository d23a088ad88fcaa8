package trust_test

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/carry/pair/trust"
	"longhaul/test/nettest"
)

// authority issues certificates.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  crypto.Signer
	up   *authority // nil: self-signed
}

func newAuthority(t testing.TB, name string, up *authority) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	nettest.Must(t, err)
	a := &authority{t: t, key: key, up: up}
	a.cert = a.issue(&x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, key.Public(), up)
	return a
}

func (a *authority) issue(c *x509.Certificate, key crypto.PublicKey, by *authority) *x509.Certificate {
	c.SerialNumber = big.NewInt(time.Now().UnixNano())
	if c.NotBefore.IsZero() {
		c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	}
	parent, signer := c, a.key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key, signer)
	nettest.Must(a.t, err)
	issued, err := x509.ParseCertificate(der)
	nettest.Must(a.t, err)
	return issued
}

func svid(uris ...string) *x509.Certificate {
	c := &x509.Certificate{KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	for _, one := range uris {
		u, _ := url.Parse(one)
		c.URIs = append(c.URIs, u)
	}
	return c
}

func pemOf(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// host has the three files of a host.
type host struct {
	t   testing.TB
	dir string
}

func newHost(t testing.TB) host { return host{t, t.TempDir()} }

func (h host) files() trust.Files {
	return trust.Files{CA: h.at("ca.crt"), Cert: h.at("tls.crt"), Key: h.at("tls.key")}
}

func (h host) at(name string) string { return filepath.Join(h.dir, name) }

// write writes the files: as one that replaces them, since a reader may be there.
func (h host) write(name string, text []byte) {
	nettest.Must(h.t, os.WriteFile(h.at(name+".new"), text, 0o600))
	nettest.Must(h.t, os.Rename(h.at(name+".new"), h.at(name)))
}

func (h host) trusts(all ...*authority) host {
	var text []byte
	for _, a := range all {
		text = append(text, pemOf("CERTIFICATE", a.cert.Raw)...)
	}
	h.write("ca.crt", text)
	return h
}

// gets gives the host a certificate of an authority, with an ECDSA key.
func (h host) gets(a *authority, c *x509.Certificate) host {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	nettest.Must(h.t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	nettest.Must(h.t, err)
	return h.getsWith(a, c, key, pemOf("PRIVATE KEY", der))
}

func (h host) getsWith(a *authority, c *x509.Certificate, key crypto.Signer, text []byte) host {
	chain := pemOf("CERTIFICATE", a.issue(c, key.Public(), a).Raw)
	for up := a; up.up != nil; up = up.up {
		chain = append(chain, pemOf("CERTIFICATE", up.cert.Raw)...)
	}
	h.write("tls.crt", chain)
	h.write("tls.key", text)
	return h
}

func (h host) identity(names ...trust.Name) *trust.Identity {
	t, err := trust.Load(trust.Options{Files: h.files(), Names: names})
	nettest.Must(h.t, err)
	store := identity.New(h.at("keys"))
	_, _, _, err = store.Key()
	nettest.Must(h.t, err)
	i := trust.New(store)
	i.Use(t)
	return i
}

func name(t testing.TB, san, peer string) trust.Name {
	n, err := trust.ParseName(san, peer)
	nettest.Must(t, err)
	return n
}

// shake has a near and a far identity go through a handshake for a peer. Their errors are those of the two
// ends, the near one's with what it learns behind its handshake.
func shake(t testing.TB, near, far *trust.Identity, peer string, change func(*tls.Config)) (nearKey, farKey ed25519.PublicKey, nearErr, farErr error) {
	t.Helper()
	key, known := near.PrefaceKey(peer)
	if !known {
		t.Fatalf("no preface for %s", peer)
	}
	first := preface.Preface{Kind: preface.Lane}.AppendFor(nil, key)
	if _, verdict := far.Recognize(first); verdict != preface.Yes {
		t.Fatalf("the preface is not recognised: %v", verdict)
	}
	config, err := near.ClientTLS(peer)
	nettest.Must(t, err)
	if change != nil {
		change(config)
	}
	l := nettest.ListenTCP(t, "127.0.0.1:0")
	defer l.Close()
	dialed, err := net.Dial("tcp", l.Addr().String())
	nettest.Must(t, err)
	defer dialed.Close()
	accepted, err := l.Accept()
	nettest.Must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		server := tls.Server(accepted, far.ServerTLS(first))
		if farErr = server.Handshake(); farErr == nil {
			if farKey, farErr = far.Admitted(first, server.ConnectionState()); farErr == nil {
				_, _ = server.Write([]byte("x"))
			}
		}
		_ = accepted.Close()
	}()
	client := tls.Client(dialed, config)
	if nearErr = client.Handshake(); nearErr == nil {
		if _, nearErr = client.Read(make([]byte, 1)); nearErr == nil {
			nearKey, nearErr = near.Proved(client.ConnectionState())
		}
	}
	_ = dialed.Close()
	<-done
	return nearKey, farKey, nearErr, farErr
}

const (
	siteA = "spiffe://corp/site-a"
	siteB = "spiffe://corp/site-b"
)

// TestKeys holds that certificates of each algorithm and form of key pass, that of an intermediate authority as
// well, and that a renewal leaves the identity in sessions as it was.
func TestKeys(t *testing.T) {
	root := newAuthority(t, "root", nil)
	middle := newAuthority(t, "middle", root)
	far := newHost(t).trusts(root).gets(root, svid(siteB)).identity(name(t, siteA, ""))
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	nettest.Must(t, err)
	ecKey, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	nettest.Must(t, err)
	sec1, err := x509.MarshalECPrivateKey(ecKey)
	nettest.Must(t, err)
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	nettest.Must(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(edKey)
	nettest.Must(t, err)
	var before ed25519.PublicKey
	for kind, c := range map[string]struct {
		key  crypto.Signer
		text []byte
	}{
		"RSA in PKCS #1":     {rsaKey, pemOf("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(rsaKey))},
		"P-384 in SEC 1":     {ecKey, pemOf("EC PRIVATE KEY", sec1)},
		"Ed25519 in PKCS #8": {edKey, pemOf("PRIVATE KEY", pkcs8)},
	} {
		near := newHost(t).trusts(root).getsWith(middle, svid(siteA), c.key, c.text).identity(name(t, siteB, ""))
		nearKey, farKey, nearErr, farErr := shake(t, near, far, "site-b", nil)
		if nearErr != nil || farErr != nil {
			t.Errorf("%s: %v at the near end, %v at the far one", kind, nearErr, farErr)
			continue
		}
		if peer, known := near.PeerOf(nearKey); !known || peer != "site-b" {
			t.Errorf("%s: the far end is %q to the near one", kind, peer)
		}
		if peer, known := far.PeerOf(farKey); !known || peer != "site-a" {
			t.Errorf("%s: the near end is %q to the far one", kind, peer)
		}
		if before != nil && !before.Equal(farKey) {
			t.Errorf("%s: another identity", kind)
		}
		before = farKey
		if until := far.Trust().Until()[siteA]; until.IsZero() {
			t.Errorf("%s: the end of the near end's certificate is unknown", kind)
		}
	}
}

// TestRefused holds that a certificate with a fault is refused, and what the far end says.
func TestRefused(t *testing.T) {
	root, other := newAuthority(t, "root", nil), newAuthority(t, "other", nil)
	far := newHost(t).trusts(root).gets(root, svid(siteB)).identity(name(t, siteA, ""), name(t, "relay-c.example.net", "site-c"))
	with := func(change func(*x509.Certificate), uris ...string) *x509.Certificate {
		c := svid(uris...)
		change(c)
		return c
	}
	for kind, c := range map[string]struct {
		by    *authority
		leaf  *x509.Certificate
		tls   func(*tls.Config)
		far   string // empty: accepted
		alert string // at the near end; empty: the pair protocol says it
	}{
		"valid":               {by: root, leaf: svid(siteA)},
		"without limited use": {by: root, leaf: with(func(c *x509.Certificate) { c.ExtKeyUsage = nil }, siteA)},
		"a DNS name":          {by: root, leaf: with(func(c *x509.Certificate) { c.DNSNames = []string{"Relay-C.example.net"} })},
		"none": {by: root, leaf: svid(siteA), far: "client didn't provide a certificate", alert: "certificate required",
			tls: func(c *tls.Config) {
				c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &tls.Certificate{}, nil }
			}},
		"foreign": {by: other, leaf: svid(siteA), far: "no authority in the file ca of pair_trust has issued it"},
		"expired": {by: root, leaf: with(func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
		}, siteA), far: "it expired at "},
		"early": {by: root, leaf: with(func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
		}, siteA), far: "compare the clocks of both hosts"},
		"a server's alone": {by: root, leaf: with(func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[:1] }, siteA), far: "extended key usage"},
		"another name":     {by: root, leaf: svid("spiffe://corp/site-x"), far: "its name is not in names of pair_trust"},
		"a host of a site": {by: root, leaf: svid(siteA + "/a1"), far: "its name is not in names of pair_trust"},
		"another domain":   {by: root, leaf: svid("spiffe://other/site-a"), far: "its name is not in names of pair_trust"},
		"names of two":     {by: root, leaf: with(func(c *x509.Certificate) { c.DNSNames = []string{"relay-c.example.net"} }, siteA), far: "the names of two peers"},
		"a wildcard":       {by: root, leaf: with(func(c *x509.Certificate) { c.DNSNames = []string{"*.example.net"} }), far: "its name is not in names"},
		"TLS 1.2":          {by: root, leaf: svid(siteA), tls: func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 }, far: "unsupported versions", alert: "protocol version"},
	} {
		t.Run(kind, func(t *testing.T) {
			near := newHost(t).trusts(root).gets(c.by, c.leaf).identity(name(t, siteB, ""))
			_, _, nearErr, farErr := shake(t, near, far, "site-b", c.tls)
			if c.far == "" {
				if nearErr != nil || farErr != nil {
					t.Errorf("%v at the near end, %v at the far one", nearErr, farErr)
				}
				return
			}
			if farErr == nil || !strings.Contains(farErr.Error(), c.far) {
				t.Errorf("the far end says %v, want %q", farErr, c.far)
			}
			if nearErr == nil || !strings.Contains(nearErr.Error(), cmp.Or(c.alert, "EOF")) {
				t.Errorf("the near end gets %v, want %q", nearErr, c.alert)
			}
		})
	}
}

// TestForged holds that certificates whose form X.509-SVID forbids are refused, from a client that would use them.
func TestForged(t *testing.T) {
	root := newAuthority(t, "root", nil)
	far := newHost(t).trusts(root).gets(root, svid(siteB)).identity(name(t, siteA, ""))
	near := newHost(t).trusts(root).gets(root, svid(siteA)).identity(name(t, siteB, ""))
	for want, leaf := range map[string]*x509.Certificate{
		"it has 2 URIs, and one is allowed":       svid(siteA, "spiffe://corp/site-z"),
		"it is that of an authority":              {IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, URIs: svid(siteA).URIs},
		"its key usage does not allow signatures": {KeyUsage: x509.KeyUsageKeyEncipherment, URIs: svid(siteA).URIs},
	} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		nettest.Must(t, err)
		forged := &tls.Certificate{Certificate: [][]byte{root.issue(leaf, key.Public(), root).Raw}, PrivateKey: key}
		_, _, nearErr, farErr := shake(t, near, far, "site-b", func(c *tls.Config) {
			c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return forged, nil }
		})
		if farErr == nil || nearErr == nil || !strings.Contains(farErr.Error(), want) || !errors.Is(farErr, trust.ErrCertificate) {
			t.Errorf("%v at the near end, %v at the far one, want %q", nearErr, farErr, want)
		}
	}
}

// TestChains holds that a chain of certificates has a bound before a signature of it is checked, at both ends
// and in the own file: else a stranger with an authority's certificate could have each handshake check 100 of P-521.
func TestChains(t *testing.T) {
	root := newAuthority(t, "root", nil)
	above := func(names ...string) *authority {
		a := root
		for _, name := range names {
			a = newAuthority(t, name, a)
		}
		return a
	}
	for kind, c := range map[string]struct {
		by   *authority
		want string // empty: it passes
	}{
		"six certificates":     {above("a", "b", "c", "d", "e"), ""},
		"seven":                {above("a", "b", "c", "d", "e", "f"), "6 certificates come with it, and at most 5 are taken"},
		"two of a subject":     {above("a", "b", "a", "b"), ""},
		"three of a subject":   {above("a", "b", "a", "c", "a"), "more than 2 certificates of one subject come with it"},
		"the root comes along": {&authority{t: t, cert: root.cert, key: root.key, up: root}, ""},
	} {
		t.Run(kind, func(t *testing.T) {
			key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
			nettest.Must(t, err)
			chain := &tls.Certificate{Certificate: [][]byte{c.by.issue(svid(siteA), key.Public(), c.by).Raw}, PrivateKey: key}
			for a := c.by; a.up != nil; a = a.up {
				chain.Certificate = append(chain.Certificate, a.cert.Raw)
			}
			far := newHost(t).trusts(root).gets(root, svid(siteB)).identity(name(t, siteA, ""))
			near := newHost(t).trusts(root).gets(root, svid(siteA)).identity(name(t, siteB, ""))
			_, _, _, farErr := shake(t, near, far, "site-b", func(config *tls.Config) {
				config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return chain, nil }
			})
			config, err := far.ClientTLS("site-a")
			nettest.Must(t, err)
			state := tls.ConnectionState{NegotiatedProtocol: preface.ALPN}
			for _, der := range chain.Certificate {
				one, err := x509.ParseCertificate(der)
				nettest.Must(t, err)
				state.PeerCertificates = append(state.PeerCertificates, one)
			}
			nearErr := config.VerifyConnection(state)
			_, ownErr := trust.Load(trust.Options{Files: newHost(t).trusts(root).gets(c.by, svid(siteA)).files()})
			for where, err := range map[string]error{"the far end": farErr, "the near end": nearErr, "its own relay": ownErr} {
				if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
					t.Errorf("%s says %v, want %q", where, err, c.want)
				}
			}
		})
	}
}

// TestWrongServer holds that the near end refuses a far end of another name or authority.
func TestWrongServer(t *testing.T) {
	root, other := newAuthority(t, "root", nil), newAuthority(t, "other", nil)
	near := newHost(t).trusts(root).gets(root, svid(siteA)).identity(name(t, siteB, ""), name(t, "spiffe://corp/site-c", ""))
	for want, far := range map[string]host{
		"it is that of site-c, not of site-b":                     newHost(t).trusts(root).gets(root, svid("spiffe://corp/site-c")),
		"its name is not in names of pair_trust":                  newHost(t).trusts(root).gets(root, svid("spiffe://corp/site-x")),
		"no authority in the file ca of pair_trust has issued it": newHost(t).trusts(root).gets(other, svid(siteB)),
	} {
		_, _, nearErr, farErr := shake(t, near, far.identity(name(t, siteA, "")), "site-b", nil)
		if nearErr == nil || farErr == nil || !strings.Contains(nearErr.Error(), want) || !strings.Contains(farErr.Error(), "bad certificate") {
			t.Errorf("%v at the near end, %v at the far one, want %q", nearErr, farErr, want)
		}
	}
}

// TestPrefaces holds which host takes a preface: each with an authority in common, and of the hosts of a site
// only the one that is meant, since they may share an address.
func TestPrefaces(t *testing.T) {
	root, next, other := newAuthority(t, "root", nil), newAuthority(t, "next", nil), newAuthority(t, "other", nil)
	b1, b2, c := "spiffe://corp/site-b/b1", "spiffe://corp/site-b/b2", "spiffe://corp/site-c"
	near := newHost(t).trusts(next, root).gets(root, svid(siteA)).identity(name(t, b1, ""), name(t, b2, ""), name(t, c, ""))
	for _, test := range []struct {
		far  host
		peer string
		want preface.Verdict
	}{
		{newHost(t).trusts(root).gets(root, svid(b1)), "site-b/b1", preface.Yes},
		{newHost(t).trusts(root).gets(root, svid(b2)), "site-b/b1", preface.No},
		{newHost(t).trusts(root, next).gets(next, svid(c)), "site-c", preface.Yes},
		{newHost(t).trusts(root).gets(root, svid("spiffe://corp/site-x")), "site-c", preface.Yes}, // TLS has the reason
		{newHost(t).trusts(other).gets(other, svid(c)), "site-c", preface.No},
	} {
		key, known := near.PrefaceKey(test.peer)
		if !known {
			t.Fatalf("no preface for %s", test.peer)
		}
		far := test.far.identity(name(t, siteA, ""))
		if _, got := far.Recognize(preface.Preface{Kind: preface.Control}.AppendFor(nil, key)); got != test.want {
			t.Errorf("a preface for %s: %v, want %v", test.peer, got, test.want)
		}
	}
}

// TestPinnedCannotName holds that a pinned peer gets no other name by what it writes into its own certificate.
func TestPinnedCannotName(t *testing.T) {
	root := newAuthority(t, "root", nil)
	far := newHost(t).trusts(root).gets(root, svid(siteB)).identity(name(t, siteA, ""))
	public, private, err := ed25519.GenerateKey(rand.Reader)
	nettest.Must(t, err)
	leaf := svid(siteA)
	own := &authority{t: t, key: private}
	state := tls.ConnectionState{NegotiatedProtocol: preface.ALPN, PeerCertificates: []*x509.Certificate{own.issue(leaf, public, nil)}}
	key, err := far.Proved(state)
	nettest.Must(t, err)
	if peer, known := far.PeerOf(key); known {
		t.Errorf("a self-signed certificate is that of %s", peer)
	}
}

// TestFiles holds that files with a fault are named, and that the former ones stay in use until the next are whole.
func TestFiles(t *testing.T) {
	root := newAuthority(t, "root", nil)
	h := newHost(t).trusts(root).gets(root, svid(siteA))
	i := h.identity(name(t, siteB, ""))
	was := i.Trust().Own()
	chain, err := os.ReadFile(h.at("tls.crt"))
	nettest.Must(t, err)
	ca, err := os.ReadFile(h.at("ca.crt"))
	nettest.Must(t, err)
	many := make([]byte, 0, 17*len(ca))
	for range 17 {
		many = append(many, ca...)
	}
	for _, c := range []struct{ file, text, want string }{
		{"ca.crt", string(ca) + string(ca[:200]), "it is incomplete"},
		{"ca.crt", "", "it has no certificate in PEM"},
		{"ca.crt", string(chain), "which is no authority"},
		{"ca.crt", string(many), "has 17 authorities, and at most 16 are allowed"},
		{"ca.crt", strings.Repeat("#", 1<<20+1), "more than 1048576 bytes"},
		{"tls.key", "-----BEGIN PRIVATE KEY-----\n", "are not a certificate with its key"},
		{"tls.crt", string(chain) + "-----BEGIN CERTIFICATE-----\nMII", "it is incomplete"},
		{"tls.crt", string(ca), "are not a certificate with its key"},
	} {
		good, err := os.ReadFile(h.at(c.file))
		nettest.Must(t, err)
		h.write(c.file, []byte(c.text))
		if _, err := trust.Load(trust.Options{Files: h.files()}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.file, err, c.want)
		}
		nettest.Eventually(t, time.Minute, func() bool { return i.Problem() != nil && strings.Contains(i.Problem().Error(), c.want) }, func() string { return c.want })
		if !i.Trust().Own().Equal(was) {
			t.Errorf("%s: another certificate in use", c.file)
		}
		h.write(c.file, good)
		nettest.Eventually(t, time.Minute, func() bool { return i.Problem() == nil }, func() string { return "whole again" })
	}
	h.gets(root, svid(siteA))
	nettest.Eventually(t, time.Minute, func() bool { return !i.Trust().Own().Equal(was) && i.Problem() == nil }, func() string { return "renewed" })
}

// TestProjected holds that a renewal is found where a directory of symbolic links is replaced as a whole, as a
// kubelet does for a Secret of cert-manager.
func TestProjected(t *testing.T) {
	root := newAuthority(t, "root", nil)
	mount := t.TempDir()
	version := func(name string) host {
		nettest.Must(t, os.Mkdir(filepath.Join(mount, name), 0o755))
		return host{t, filepath.Join(mount, name)}.trusts(root).gets(root, svid(siteA))
	}
	version("..1")
	nettest.Must(t, os.Symlink("..1", filepath.Join(mount, "..data")))
	for _, file := range []string{"ca.crt", "tls.crt", "tls.key"} {
		nettest.Must(t, os.Symlink("..data/"+file, filepath.Join(mount, file)))
	}
	i := host{t, mount}.identity(name(t, siteB, ""))
	was := i.Trust().Own()
	version("..2")
	nettest.Must(t, os.Symlink("..2", filepath.Join(mount, "..next")))
	nettest.Must(t, os.Rename(filepath.Join(mount, "..next"), filepath.Join(mount, "..data")))
	nettest.Must(t, os.RemoveAll(filepath.Join(mount, "..1")))
	nettest.Eventually(t, time.Minute, func() bool { return !i.Trust().Own().Equal(was) }, func() string { return "renewed" })
	if err := i.Problem(); err != nil {
		t.Error(err)
	}
}

// TestEnds holds that the first certificate of a chain that ends is the end of it, for this host's and for its
// peers', that a reload keeps what was seen, and that two certificates with the same end are not taken for one.
func TestEnds(t *testing.T) {
	root := newAuthority(t, "root", nil)
	middle := newAuthority(t, "middle", root)
	soon := time.Now().Add(10 * time.Minute).Truncate(time.Second)
	again := *middle.cert
	again.NotAfter = soon
	middle.cert = middle.issue(&again, middle.key.Public(), root)
	far := newHost(t).trusts(root).gets(root, svid(siteB))
	farSide := far.identity(name(t, siteA, ""))
	nearHost := newHost(t).trusts(root).gets(middle, svid(siteA))
	near := nearHost.identity(name(t, siteB, ""))
	nearKey, farKey, nearErr, farErr := shake(t, near, farSide, "site-b", nil)
	if nearErr != nil || farErr != nil {
		t.Fatal(nearErr, farErr)
	}
	if own, peers := near.Ends(nearKey); !own.Equal(soon) || !peers.After(soon) {
		t.Errorf("to the near end, its own ends at %v, the other at %v; want %v and later", own, peers, soon)
	}
	if own, peers := farSide.Ends(farKey); !peers.Equal(soon) || !own.After(soon) {
		t.Errorf("to the far end, its own ends at %v, the other at %v; want later and %v", own, peers, soon)
	}
	next, err := trust.Load(trust.Options{Files: far.files(), Names: []trust.Name{name(t, siteA, ""), name(t, "spiffe://corp/site-c", "")}})
	nettest.Must(t, err)
	farSide.Use(next)
	if _, peers := farSide.Ends(farKey); !peers.Equal(soon) {
		t.Errorf("after a reload the other one ends at %v", peers)
	}
	if own, peers := farSide.Ends(make([]byte, 32)); !own.IsZero() || !peers.IsZero() {
		t.Errorf("a stranger's ends at %v and %v", own, peers)
	}
	if farSide.Shown(make([]byte, 32)) != [32]byte{} {
		t.Error("a certificate is shown to a stranger")
	}
	was := near.Shown(nearKey)
	nearHost.gets(middle, svid(siteA))
	nettest.Eventually(t, time.Minute, func() bool { return near.Shown(nearKey) != was }, func() string { return "renewed" })
	if own, _ := near.Ends(nearKey); !own.Equal(soon) {
		t.Errorf("the next one ends at %v, want %v", own, soon)
	}
}

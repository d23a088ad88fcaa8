package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"longhaul/test/nettest"
)

func TestHandshake(t *testing.T) {
	nettest.CheckLeaks(t)
	a, b := newPair(t)
	r := shake(t, clientTLS(t, a, "b"), b.ServerTLS(nil))
	if r.clientErr != nil || r.serverErr != nil {
		t.Fatalf("client %v, server %v", r.clientErr, r.serverErr)
	}
	for side, state := range map[string]tls.ConnectionState{"client": r.client, "server": r.server} {
		if state.Version != tls.VersionTLS13 || state.NegotiatedProtocol != "longhaul-pair/1" || state.CurveID != tls.X25519MLKEM768 || state.DidResume {
			t.Errorf("%s: version %x, protocol %q, curve %v, resumed %v", side, state.Version, state.NegotiatedProtocol, state.CurveID, state.DidResume)
		}
	}
	if r.server.ServerName != "" {
		t.Errorf("the client names its server %q in clear", r.server.ServerName)
	}
	key, err := keyOf(r.server)
	if name, known := b.PeerOf(key[:]); err != nil || name != "a" || !known {
		t.Errorf("the server sees %q, %v", name, err)
	}
}

// TestStrangers holds that a handshake succeeds only between two hosts that know each
// other, and what both ends see.
func TestStrangers(t *testing.T) {
	nettest.CheckLeaks(t)
	a, b := newPair(t)
	stranger := newStore(t)
	pin(t, stranger, "b", own(t, b))
	deceived := newStore(t)
	pin(t, deceived, "b", testKey(1).public())

	good := func() *tls.Config { return clientTLS(t, a, "b") }
	changed := func(change func(*tls.Config)) *tls.Config {
		c := good()
		change(c)
		return c
	}
	for _, test := range []struct {
		name            string
		client          *tls.Config
		client1, server string // parts of their errors
		unknown         bool   // both see an unknown key
	}{
		{"unknown client", clientTLS(t, stranger, "b"), "remote error: tls: bad certificate", "unknown key: no peer has the key", true},
		{"another server", clientTLS(t, deceived, "b"), "unknown key: the other end has the key " + own(t, b).Short() + ", not that of peer b",
			"remote error: tls: bad certificate", true},
		{"no certificate", changed(func(c *tls.Config) { c.Certificates = nil }), "remote error: tls: certificate required",
			"didn't provide a certificate", false},
		{"another kind of key", changed(func(c *tls.Config) { c.Certificates = []tls.Certificate{ecdsaCertificate(t)} }),
			"remote error: tls: bad certificate", "unknown key: the certificate has no Ed25519 key", true},
		{"the certificate of another with a key of its own", changed(func(c *tls.Config) { c.Certificates[0].PrivateKey = testKey(1).PrivateKey }),
			"remote error: tls: ", "invalid signature by the client certificate", false},
		{"TLS 1.2", changed(func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 }),
			"remote error: tls: protocol version not supported", "client offered only unsupported versions", false},
		{"another protocol", changed(func(c *tls.Config) { c.NextProtos = []string{"h2"} }), "remote error: tls: no application protocol",
			"client requested unsupported application protocols", false},
		{"no protocol", changed(func(c *tls.Config) { c.NextProtos, c.VerifyConnection = nil, nil }), "remote error: tls: bad certificate",
			"the other end does not speak longhaul-pair/1", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := shake(t, test.client, b.ServerTLS(nil))
			if r.clientErr == nil || !strings.Contains(r.clientErr.Error(), test.client1) {
				t.Errorf("client: %v, want %s", r.clientErr, test.client1)
			}
			if r.serverErr == nil || !strings.Contains(r.serverErr.Error(), test.server) {
				t.Errorf("server: %v, want %s", r.serverErr, test.server)
			}
			if test.unknown != (IsKeyUnknown(r.clientErr) && IsKeyUnknown(r.serverErr)) {
				t.Errorf("unknown key: %v, %v", r.clientErr, r.serverErr)
			}
		})
	}
	if IsKeyUnknown(io.EOF) || IsKeyUnknown(nil) {
		t.Error("any error is of an unknown key")
	}
}

func ecdsaCertificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	nettest.Must(t, err)
	template := x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: certificateBegins, NotAfter: certificateEnds}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	nettest.Must(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// TestChangesReachConfigurations holds that a configuration looks the peers up at each
// handshake.
func TestChangesReachConfigurations(t *testing.T) {
	a, b := newPair(t)
	server, client := b.ServerTLS(nil), clientTLS(t, a, "b")
	nettest.Must(t, b.Remove("a"))
	if r := shake(t, client, server); !IsKeyUnknown(r.serverErr) || !IsKeyUnknown(r.clientErr) {
		t.Errorf("a removed client: %v, %v", r.clientErr, r.serverErr)
	}
	pin(t, b, "a", own(t, a))
	nettest.Must(t, a.Remove("b"))
	if r := shake(t, client, server); !IsKeyUnknown(r.serverErr) || !IsKeyUnknown(r.clientErr) {
		t.Errorf("a removed server: %v, %v", r.clientErr, r.serverErr)
	}
	if _, err := a.ClientTLS("b"); !errors.Is(err, ErrNoPeer) {
		t.Errorf("the configuration for a removed peer: %v", err)
	}
}

func TestWithoutKey(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "none")
	s := New(dir)
	_, err := s.ClientTLS("b")
	checkMistake(t, err, "this host has no key for pairs in "+dir)
	a, _ := newPair(t)
	if r := shake(t, clientTLS(t, a, "b"), s.ServerTLS(nil)); !errors.Is(r.serverErr, errNoKey) {
		t.Errorf("a server without key: %v", r.serverErr)
	}
	if len(s.PublicKeys()) > 0 || s.Problem() != nil {
		t.Errorf("keys %v, problem %v", s.PublicKeys(), s.Problem())
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("reading makes the directory")
	}
}

// TestCertificateIsStable holds that a certificate depends on the key alone.
func TestCertificateIsStable(t *testing.T) {
	a, b := certificateOf(testKey(1)), certificateOf(testKey(1))
	if string(a.Certificate[0]) != string(b.Certificate[0]) {
		t.Error("two certificates of a key differ")
	}
	nettest.Must(t, a.Leaf.CheckSignature(a.Leaf.SignatureAlgorithm, a.Leaf.RawTBSCertificate, a.Leaf.Signature))
}

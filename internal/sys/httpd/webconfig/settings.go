// Package webconfig gives a server of package httpd what a web configuration file of
// Prometheus' exporter toolkit asks for: TLS, client certificates, users with passwords,
// headers, a limit of requests. Package config reads the file.
//
//	settings ──Open──▶ Guard ──TLS──────▶ each handshake, with the settings of its moment
//	    ▲                │────Handler──▶ each request: rate limit, headers, certificate, user
//	    └── read again ──┘ when one of its files has changed; after a mistake the last ones stay
//
// The format is described at https://prometheus.io/docs/prometheus/latest/configuration/https/.
package webconfig

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"longhaul/internal/sys/certchain"
	"longhaul/internal/sys/httpd"
	"longhaul/internal/words/remedy"
)

// Settings are what a web configuration file asks for, with the contents of the files that it names.
type Settings struct {
	Certificate *tls.Certificate // with Leaf; nil: no TLS
	ClientAuth  tls.ClientAuthType
	ClientCAs   *x509.CertPool
	ClientNames []string // one of them must be a name in the client's certificate; empty: any

	MinVersion, MaxVersion uint16 // of TLS
	CipherSuites           []uint16
	Curves                 []tls.CurveID

	HTTP2   bool
	Headers map[string]string // of each answer
	Users   map[string]string // bcrypt hashes of their passwords, by name; empty: anybody
	// Requests come at most once each Interval, after Burst at once; an Interval of 0 is no limit.
	Interval time.Duration
	Burst    int

	Files []string // that they were read from
	Named []string // of the files beside the web configuration, as it has them, absolute
}

// Default are the settings of a file that sets nothing.
func Default() *Settings {
	return &Settings{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS13, HTTP2: true}
}

// ReadPair returns a function that reads settings with the certificate and the key in two files,
// and the defaults.
func ReadPair(certFile, keyFile string) func() (*Settings, error) {
	return func() (*Settings, error) {
		s := Default()
		s.Files = []string{certFile, keyFile}
		var err error
		s.Certificate, err = ReadCertificate(certFile, keyFile)
		return s, err
	}
}

// ReadCertificate reads a certificate with its chain and its key (PEM). The error has a remedy.
func ReadCertificate(certFile, keyFile string) (*tls.Certificate, error) {
	var texts [2][]byte
	for i, path := range []string{certFile, keyFile} {
		var err error
		if texts[i], err = os.ReadFile(path); err != nil {
			return nil, Unreadable([]string{"certificate", "key"}[i], path, err)
		}
	}
	return ParseCertificate(texts[0], texts[1], certFile+" and "+keyFile)
}

// ParseCertificate is [ReadCertificate] for the content of two places.
func ParseCertificate(certPEM, keyPEM []byte, places string) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, remedy.New(fmt.Errorf("%s are not a certificate with its key: %s", places, strings.TrimPrefix(err.Error(), "tls: ")),
			"name the files in PEM form, the certificate with its chain")
	}
	return &pair, nil
}

// ParseAuthorities returns the certificates of a text in PEM form.
func ParseAuthorities(text []byte, place string) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, remedy.New(fmt.Errorf("%s has no certificate of an authority", place), "name a file in PEM form")
	}
	return pool, nil
}

// Unreadable returns an error with a remedy for a file that cannot be read.
func Unreadable(what, path string, err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		err = pathError.Err
	}
	fix := "check the path"
	if errors.Is(err, fs.ErrPermission) {
		fix = "give it to the relay's user (chown), or hand it over with LoadCredential= in the unit"
	}
	return remedy.New(fmt.Errorf("the %s file %s cannot be read: %w", what, path, err), fix)
}

// TLS reports whether the server speaks TLS.
func (s *Settings) TLS() bool { return s.Certificate != nil }

// Authenticates reports whether every reader has proved who it is: by a certificate, or as a user.
func (s *Settings) Authenticates() bool {
	return s.ClientAuth == tls.RequireAndVerifyClientCert || len(s.Users) > 0
}

// Validity is when the certificate and those above it in its file are valid; zero without TLS.
func (s *Settings) Validity() (from, until time.Time) {
	if !s.TLS() {
		return
	}
	var above []*x509.Certificate
	for _, der := range s.Certificate.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			above = append(above, c)
		}
	}
	return certchain.Validity(s.Certificate.Leaf, above)
}

// Names reports whether the certificate is valid for a host.
func (s *Settings) Names(host string) bool {
	return s.TLS() && s.Certificate.Leaf.VerifyHostname(host) == nil
}

// forHandshake is the configuration of one handshake, whose signature waits for its turn.
func (s *Settings) forHandshake(hello *tls.ClientHelloInfo, protocols []string) *tls.Config {
	own := *s.Certificate
	if key, ok := own.PrivateKey.(crypto.Signer); ok {
		own.PrivateKey = inTurn{key, signing, httpd.Gone(hello.Conn)}
	}
	c := &tls.Config{
		Certificates: []tls.Certificate{own}, ClientAuth: s.ClientAuth, ClientCAs: s.ClientCAs,
		MinVersion: s.MinVersion, MaxVersion: s.MaxVersion, CipherSuites: s.CipherSuites, CurvePreferences: s.Curves,
		NextProtos: protocols,
		// A resumed session would not show the client's certificate again, which may have ended since.
		SessionTicketsDisabled: s.ClientAuth != tls.NoClientCert,
	}
	if !s.HTTP2 {
		c.NextProtos = slices.DeleteFunc(slices.Clone(protocols), func(p string) bool { return p == http2 })
	}
	// crypto/tls would verify as many signatures as a stranger sends certificates.
	switch s.ClientAuth {
	case tls.VerifyClientCertIfGiven:
		c.ClientAuth = tls.RequestClientCert
	case tls.RequireAndVerifyClientCert:
		c.ClientAuth = tls.RequireAnyClientCert
	}
	if s.ClientAuth != tls.NoClientCert {
		c.VerifyConnection = func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) > maxChain {
				return fmt.Errorf("the client sends %d certificates, and at most %d are looked at", len(state.PeerCertificates), maxChain)
			}
			select {
			case signing <- struct{}{}:
				defer func() { <-signing }()
			case <-httpd.Gone(hello.Conn):
				return net.ErrClosed
			}
			return s.checkClient(&state)
		}
	}
	return c
}

// maxChain is how many certificates of a client are looked at: its own, and those up to its authority.
const maxChain = 10

// checkClient returns why the settings do not admit the client of a connection, whose handshake may have
// had others.
func (s *Settings) checkClient(t *tls.ConnectionState) error {
	var chain []*x509.Certificate
	if t != nil {
		chain = t.PeerCertificates
	}
	if len(chain) == 0 {
		if s.ClientAuth == tls.RequireAnyClientCert || s.ClientAuth == tls.RequireAndVerifyClientCert || len(s.ClientNames) > 0 {
			return errNoCertificate
		}
		return nil
	}
	if s.ClientAuth >= tls.VerifyClientCertIfGiven {
		o := x509.VerifyOptions{Roots: s.ClientCAs, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
		for _, c := range chain[1:] {
			o.Intermediates.AddCert(c)
		}
		if _, err := chain[0].Verify(o); err != nil {
			return err
		}
	}
	if len(s.ClientNames) > 0 {
		return s.checkNames(chain)
	}
	return nil
}

var errNoCertificate = errors.New("the client has no certificate")

// checkNames returns why a client's certificate, the first of its chain, has no name of ClientNames.
func (s *Settings) checkNames(chain []*x509.Certificate) error {
	if len(chain) == 0 {
		return errNoCertificate
	}
	names := slices.Concat(chain[0].DNSNames, chain[0].EmailAddresses)
	for _, ip := range chain[0].IPAddresses {
		names = append(names, ip.String())
	}
	for _, uri := range chain[0].URIs {
		names = append(names, uri.String())
	}
	if !slices.ContainsFunc(names, func(name string) bool { return slices.Contains(s.ClientNames, name) }) {
		return fmt.Errorf("the client's certificate has none of client_allowed_sans, but %q", names)
	}
	return nil
}

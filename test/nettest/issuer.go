package nettest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Issuer is an authority that issues certificates.
type Issuer struct {
	File string // its certificate, PEM
	key  *ecdsa.PrivateKey
	own  *x509.Certificate
}

// NewIssuer makes an authority, whose certificate is at dir/name.pem.
func NewIssuer(t testing.TB, dir, name string) *Issuer {
	t.Helper()
	i := &Issuer{File: filepath.Join(dir, name+".pem")}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	var err error
	i.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	Must(t, err)
	i.own = template
	text := i.sign(t, template, &i.key.PublicKey)
	i.own, err = x509.ParseCertificate(text)
	Must(t, err)
	writePEM(t, i.File, "CERTIFICATE", text)
	return i
}

func (i *Issuer) sign(t testing.TB, template *x509.Certificate, public *ecdsa.PublicKey) []byte {
	t.Helper()
	template.SerialNumber, template.NotBefore = big.NewInt(time.Now().UnixNano()), time.Now().Add(-2*time.Hour)
	text, err := x509.CreateCertificate(rand.Reader, template, i.own, public, i.key)
	Must(t, err)
	return text
}

// Issue issues a certificate that is valid until a time from now, for a name: localhost has its addresses,
// and one with :// is a URI. Its files are dir/file.pem and dir/file.key.
func (i *Issuer) Issue(t testing.TB, dir, file, name string, until time.Duration) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	Must(t, err)
	template := &x509.Certificate{Subject: pkix.Name{CommonName: file}, NotAfter: time.Now().Add(until),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	switch u, err := url.Parse(name); {
	case err == nil && u.Scheme != "":
		template.URIs = []*url.URL{u}
	default:
		template.DNSNames = []string{name}
	}
	if name == "localhost" {
		template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	Must(t, err)
	certFile, keyFile = filepath.Join(dir, file+".pem"), filepath.Join(dir, file+".key")
	writePEM(t, certFile, "CERTIFICATE", i.sign(t, template, &key.PublicKey))
	writePEM(t, keyFile, "PRIVATE KEY", private)
	return certFile, keyFile
}

func writePEM(t testing.TB, path, kind string, content []byte) {
	t.Helper()
	Must(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600))
}

package identity

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"time"
)

// The certificate of a key is valid at all times (RFC 5280, 4.1.2.5): clocks need not
// agree, and peers look at the key alone.
var (
	certificateBegins = time.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC)
	certificateEnds   = time.Date(9999, time.December, 31, 23, 59, 59, 0, time.UTC)
)

// certificateOf makes the self-signed certificate of a key. It is the same each time,
// as Ed25519 signatures have no randomness, and is kept in memory only.
func certificateOf(key privateKey) tls.Certificate {
	template := x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "longhaul pair"},
		NotBefore: certificateBegins, NotAfter: certificateEnds,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key.PrivateKey)
	if err != nil {
		panic("identity: " + err.Error()) // the template is a constant
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		panic("identity: " + err.Error())
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key.PrivateKey, Leaf: leaf}
}

// Package certchain says when a certificate stops to be of use: with the first of its chain that ends.
package certchain

import (
	"bytes"
	"crypto/x509"
	"time"
)

// Validity is the time for which a certificate and those above it are all valid. Others may stand among above,
// in any order: of each subject that an issuer names the one that ends last counts, as one is enough for a
// reader (RFC 5280, section 6.1). No signature is checked.
func Validity(leaf *x509.Certificate, above []*x509.Certificate) (from, until time.Time) {
	from, until = leaf.NotBefore, leaf.NotAfter
	for at, left := leaf, len(above); left > 0 && !bytes.Equal(at.RawIssuer, at.RawSubject); left-- {
		var next *x509.Certificate
		for _, c := range above {
			if bytes.Equal(c.RawSubject, at.RawIssuer) && (next == nil || c.NotAfter.After(next.NotAfter)) {
				next = c
			}
		}
		if next == nil {
			break
		}
		at = next
		if at.NotBefore.After(from) {
			from = at.NotBefore
		}
		if at.NotAfter.Before(until) {
			until = at.NotAfter
		}
	}
	return from, until
}

// Until is when the last of several chains ends.
func Until(chains [][]*x509.Certificate) (until time.Time) {
	for _, chain := range chains {
		if _, end := Validity(chain[0], chain[1:]); end.After(until) {
			until = end
		}
	}
	return until
}

package trust

import (
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	"longhaul/internal/words/display"
	"longhaul/internal/words/printable"
)

// ErrCertificate is in the error of a handshake in which the other end's certificate was refused.
var ErrCertificate = errors.New("certificate refused")

// refusal is why a certificate is refused, in words.
type refusal struct {
	text string
	err  error
}

func (r *refusal) Error() string { return r.text }

func (r *refusal) Unwrap() error { return r.err }

func (r *refusal) Is(target error) bool { return target == ErrCertificate }

// refuse says why the certificate of the other end is refused.
func refuse(leaf *x509.Certificate, now time.Time, err error) error {
	return &refusal{fmt.Sprintf("the certificate of %s is refused: %s", NameOf(leaf), reason(err, now)), err}
}

// Foreign reports that a certificate was refused since no authority in ca has issued it.
func Foreign(err error) bool { return errors.As(err, new(x509.UnknownAuthorityError)) }

// Expired reports that a certificate was refused for the time: it is over, or has not begun.
func Expired(err error) bool {
	var invalid x509.CertificateInvalidError
	return errors.As(err, &invalid) && invalid.Reason == x509.Expired
}

// reason is why a certificate is not valid.
func reason(err error, now time.Time) string {
	var invalid x509.CertificateInvalidError
	switch {
	case Foreign(err):
		return "no authority in the file ca of pair_trust has issued it"
	case errors.As(err, &invalid) && Expired(err):
		text := expired(invalid.Cert, now) + ", and here it is " + now.UTC().Format(timeForm)
		if now.Before(invalid.Cert.NotBefore) {
			text += "; compare the clocks of both hosts"
		}
		return text
	case errors.As(err, &invalid) && invalid.Reason == x509.IncompatibleUsage:
		return "its extended key usage does not allow this end of TLS; SPIFFE wants server and client authentication"
	}
	return plain(err)
}

const timeForm = "2006-01-02 15:04:05 MST"

// expired says that a certificate is not valid now; empty: it is.
func expired(c *x509.Certificate, now time.Time) string {
	switch {
	case now.Before(c.NotBefore):
		return "it is not valid before " + c.NotBefore.UTC().Format(timeForm)
	case now.After(c.NotAfter):
		return "it expired at " + c.NotAfter.UTC().Format(timeForm)
	}
	return ""
}

// plain is the text of an error without the package that it is from.
func plain(err error) string {
	text := strings.TrimPrefix(err.Error(), "tls: ")
	return printable.String(strings.TrimPrefix(text, "x509: "))
}

func plainError(err error) error { return errors.New(plain(err)) }

// maxShownName is how many characters of a name are shown: a stranger may have made it.
const maxShownName = 256

// NameOf is how a certificate is named in messages: its URI, a DNS name, or its subject.
func NameOf(c *x509.Certificate) string {
	if names := namesOf(c); len(names) > 0 {
		return display.Shorten(printable.String(names[0]), maxShownName)
	}
	if subject := c.Subject.String(); subject != "" {
		return display.Shorten(printable.String(subject), maxShownName)
	}
	return "a host without a name"
}

// namesOf lists the names of a certificate that a peer may have.
func namesOf(c *x509.Certificate) (names []string) {
	for _, u := range c.URIs {
		names = append(names, u.String())
	}
	for _, name := range c.DNSNames {
		names = append(names, strings.ToLower(name))
	}
	return names
}

// checkForm refuses certificates that X.509-SVID does not allow for a workload (sections 2, 4 and 5.2).
func checkForm(c *x509.Certificate) error {
	switch {
	case c.IsCA || c.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0:
		return errors.New("it is that of an authority")
	case c.KeyUsage != 0 && c.KeyUsage&x509.KeyUsageDigitalSignature == 0:
		return errors.New("its key usage does not allow signatures")
	case len(c.URIs) > 1:
		return fmt.Errorf("it has %d URIs, and one is allowed", len(c.URIs))
	case len(namesOf(c)) == 0:
		return errors.New("it has neither a URI nor a DNS name")
	}
	return nil
}

// Bounds of a chain. The search for an authority checks each certificate against all of the subject that has
// issued it, and strangers may make chains in which that is most of the work that x509 allows: 100 signatures.
const (
	maxChain     = 6 // certificates
	maxOfSubject = 2 // of the authorities in it: one with another above it, such as the former one
)

// checkChain refuses chains beyond the bounds.
func checkChain(chain []*x509.Certificate) error {
	if n := len(chain); n > maxChain {
		return fmt.Errorf("%d certificates come with it, and at most %d are taken", n-1, maxChain-1)
	}
	of := map[string]int{}
	for _, c := range chain[1:] {
		if of[string(c.RawSubject)]++; of[string(c.RawSubject)] > maxOfSubject {
			return fmt.Errorf("more than %d certificates of one subject come with it", maxOfSubject)
		}
	}
	return nil
}

// verify finds a chain from the certificate of the other end to an authority. The host's own authorities do
// not count.
func (m *material) verify(chain []*x509.Certificate, use x509.ExtKeyUsage, now time.Time) ([][]*x509.Certificate, error) {
	if err := checkChain(chain); err != nil {
		return nil, err
	}
	return chain[0].Verify(x509.VerifyOptions{Roots: m.pool, Intermediates: poolOf(chain[1:]), CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{use}})
}

package trust

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"

	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/sys/certchain"
	"longhaul/internal/words/remedy"
)

// Bounds of the files.
const (
	maxFile        = 1 << 20 // bytes
	maxAuthorities = 16      // a preface is held against each
	maxOwnNames    = 8       // likewise
)

// Files are the paths of three PEM files. Others renew them while the relay runs.
type Files struct {
	CA   string // the authorities that are trusted, several while one replaces another
	Cert string // this host's certificate, then those up to its authority
	Key  string // ECDSA, Ed25519 or RSA; PKCS #8, PKCS #1 or SEC 1
}

// material is what the files say.
type material struct {
	own         tls.Certificate
	until       time.Time         // when own ends, or an authority above it
	sum         [sha256.Size]byte // of own, those above it and their authority
	authorities []*x509.Certificate
	pool        *x509.CertPool
	issuer      *x509.Certificate // of authorities: this host's, or the first one
	trusted     bool              // issuer is this host's
	recognized  []preface.Key
}

// mark tells a file from its replacement.
type mark struct {
	inode, size, changedUnixNs int64
}

// marks looks at the files. A missing one has the zero mark.
func (f Files) marks() (all [3]mark) {
	for i, path := range []string{f.CA, f.Cert, f.Key} {
		if info, err := os.Stat(path); err == nil {
			st := info.Sys().(*syscall.Stat_t)
			all[i] = mark{int64(st.Ino), st.Size, st.Ctim.Nano()}
		}
	}
	return all
}

// read reads the files. The error is a [*remedy.Error].
func (f Files) read() (*material, error) {
	text, err := readFile("ca", f.CA)
	if err != nil {
		return nil, err
	}
	m := &material{pool: x509.NewCertPool()}
	if m.authorities, err = certificates(text); err != nil {
		return nil, remedy.New(fmt.Errorf("the file %s of pair_trust cannot be used: %w", f.CA, err),
			"name a PEM file with the certificates of the authorities, and nothing else")
	}
	if n := len(m.authorities); n > maxAuthorities {
		return nil, remedy.New(fmt.Errorf("the file %s has %d authorities, and at most %d are allowed", f.CA, n, maxAuthorities),
			"leave those that issue the certificates of peers")
	}
	for _, c := range m.authorities {
		if !c.BasicConstraintsValid || !c.IsCA {
			return nil, remedy.New(fmt.Errorf("the file %s has the certificate of %s, which is no authority", f.CA, NameOf(c)),
				"name the file of the authorities, such as ca.crt or svid_bundle.pem")
		}
		m.pool.AddCert(c)
	}
	if err := m.readOwn(f); err != nil {
		return nil, err
	}
	return m, nil
}

// readOwn reads this host's certificate with its key.
func (m *material) readOwn(f Files) error {
	chain, err := readFile("cert", f.Cert)
	if err != nil {
		return err
	}
	key, err := readFile("key", f.Key)
	if err != nil {
		return err
	}
	all, err := certificates(chain)
	if err != nil {
		return remedy.New(fmt.Errorf("the file %s of pair_trust cannot be used: %w", f.Cert, err),
			"name a PEM file with this host's certificate and those up to its authority")
	}
	if m.own, err = tls.X509KeyPair(chain, key); err != nil {
		return remedy.New(fmt.Errorf("%s and %s are not a certificate with its key: %s", f.Cert, f.Key, plain(err)),
			"have both files written anew; the key may be PKCS #8, PKCS #1 or SEC 1 in PEM, without a password")
	}
	leaf := all[0]
	if err := checkForm(leaf); err != nil {
		return remedy.New(fmt.Errorf("no peer would take the certificate of %s in %s: %w", NameOf(leaf), f.Cert, err),
			"issue one for this host: X.509-SVID, or with one DNS name")
	}
	if err := checkChain(all); err != nil {
		return remedy.New(fmt.Errorf("no peer would take the certificate of %s in %s: %w", NameOf(leaf), f.Cert, err),
			"leave those between it and its authority")
	}
	m.own.Leaf = leaf
	m.issuer = m.authorities[0]
	// Whether it is valid now is asked later: a relay that starts with an old one waits for the next.
	for _, a := range m.authorities {
		begin := a.NotBefore // of the time at which all of them are valid, if there is one
		for _, c := range all {
			if c.NotBefore.After(begin) {
				begin = c.NotBefore
			}
		}
		_, err := leaf.Verify(x509.VerifyOptions{Roots: poolOf([]*x509.Certificate{a}), Intermediates: poolOf(all[1:]),
			CurrentTime: begin, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
		if err == nil {
			m.issuer, m.trusted = a, true
			break
		}
	}
	above := all[1:]
	if m.trusted {
		above = append(slices.Clone(above), m.issuer)
	}
	_, m.until = certchain.Validity(leaf, above)
	m.sum = sumOf(leaf, above)
	for _, a := range m.authorities {
		m.recognized = append(m.recognized, preface.AuthorityKey(a.RawSubjectPublicKeyInfo, ""))
		for i, name := range namesOf(leaf) {
			if i < maxOwnNames {
				m.recognized = append(m.recognized, preface.AuthorityKey(a.RawSubjectPublicKeyInfo, name))
			}
		}
	}
	return nil
}

// recognize decides whether first bytes are a preface that a peer with one of the authorities made.
func (m *material) recognize(first []byte) (preface.Preface, preface.Verdict) {
	k := preface.Keys{Hosts: m.recognized}
	return k.Recognize(first)
}

// certificates reads the certificates of a PEM text. A text that is cut off is refused, since the file may
// be in the middle of its renewal.
func certificates(text []byte) (all []*x509.Certificate, err error) {
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, plainError(err)
		}
		all = append(all, c)
	}
	switch {
	case bytes.Contains(text, []byte("-----BEGIN")):
		return nil, errors.New("it is incomplete")
	case len(all) == 0:
		return nil, errors.New("it has no certificate in PEM")
	}
	return all, nil
}

func readFile(what, path string) ([]byte, error) {
	text, err := readRegular(path)
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("it has more than %d bytes", maxFile)
	}
	if err == nil {
		return text, nil
	}
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		err = pathError.Err
	}
	fix := "check the path"
	if errors.Is(err, fs.ErrPermission) {
		fix = "let the relay's user read it, as by a group; a service needs SupplementaryGroups= of that in its unit"
	}
	return nil, remedy.New(fmt.Errorf("the file %s (%s of pair_trust) cannot be read: %w", path, what, err), fix)
}

func readRegular(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, cmp.Or(err, errors.New("it is not a regular file"))
	}
	return io.ReadAll(io.LimitReader(f, maxFile+1))
}

func sumOf(leaf *x509.Certificate, above []*x509.Certificate) [sha256.Size]byte {
	raw := slices.Clone(leaf.Raw) // each one begins with its length (DER)
	for _, c := range above {
		raw = append(raw, c.Raw...)
	}
	return sha256.Sum256(raw)
}

func poolOf(all []*x509.Certificate) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, c := range all {
		pool.AddCert(c)
	}
	return pool
}

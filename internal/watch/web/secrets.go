package web

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"longhaul/internal/sys/httpd"
	"longhaul/internal/words/remedy"
)

const (
	maxTokenFile = 4096
	minToken     = 20 // characters

	// credentials is the folder in which systemd puts the files of
	// LoadCredential=. An access control list admits the service's user; it
	// shows as the group's bits.
	credentials = "/run/credentials/"
)

// ReadToken reads the token, the only line of a file. The error is a
// [*remedy.Error].
func ReadToken(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", unreadable("token", path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", unreadable("token", path, err)
	}
	others := fs.FileMode(0o077)
	if strings.HasPrefix(path, credentials) {
		others = 0o007
	}
	switch {
	case !info.Mode().IsRegular():
		return "", remedy.New(errors.New("the token file "+path+" is not a regular file"),
			"name the file with the token")
	case info.Mode()&others != 0:
		return "", remedy.New(fmt.Errorf("the token file %s is open to others (mode %#o)", path, info.Mode().Perm()),
			"run chmod 600 "+path+"; if others could read it meanwhile, make a new token")

	}
	text, err := io.ReadAll(io.LimitReader(f, maxTokenFile+1))
	if err != nil {
		return "", unreadable("token", path, err)
	}
	token := strings.TrimSpace(string(text))
	const fix = "make one with: openssl rand -hex 32"
	switch {
	case len(text) > maxTokenFile || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return "", remedy.New(errors.New("the token file "+path+" has more than one word of ASCII"), fix)
	case len(token) < minToken:
		return "", remedy.New(fmt.Errorf("the token in %s has fewer than %d characters, which can be guessed", path, minToken), fix)
	}
	return token, nil
}

func unreadable(what, path string, err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		err = pathError.Err
	}
	fix := "check the path"
	switch {
	case errors.Is(err, fs.ErrNotExist) && what == "token":
		fix = "make one with: (umask 077; openssl rand -hex 32 > " + path + ")"
	case errors.Is(err, fs.ErrPermission):
		fix = "give it to the relay's user (chown), or hand it over with LoadCredential= in the unit"
	}
	return remedy.New(fmt.Errorf("the %s file %s cannot be read: %w", what, path, err), fix)
}

// recheckInterval is the time between checks of a certificate's files for
// changes.
const recheckInterval = 10 * time.Second

// Certificate is a TLS certificate in two files. After a change of the files,
// as by a renewal, new connections use the new certificate.
type Certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	mu     sync.Mutex
	now    *tls.Certificate
	leaf   *x509.Certificate
	stamp  [2]fileStamp
	looked time.Time
}

type fileStamp struct {
	modified time.Time
	size     int64
}

// LoadCertificate reads a certificate with its chain and its key (PEM). The
// error is a [*remedy.Error].
func LoadCertificate(certFile, keyFile string, log *slog.Logger) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile, log: log, looked: time.Now()}
	c.stamp = c.stamps()
	return c, c.load()
}

func (c *Certificate) load() error {
	for what, path := range map[string]string{"certificate": c.certFile, "key": c.keyFile} {
		f, err := os.Open(path)
		if err != nil {
			return unreadable(what, path, err)
		}
		f.Close()
	}
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return remedy.New(fmt.Errorf("%s and %s are not a certificate with its key: %s",
			c.certFile, c.keyFile, strings.TrimPrefix(err.Error(), "tls: ")),
			"name the files in PEM form, the certificate with its chain")

	}
	c.now, c.leaf = &pair, pair.Leaf
	return nil
}

func (c *Certificate) stamps() (s [2]fileStamp) {
	for i, path := range []string{c.certFile, c.keyFile} {
		if info, err := os.Stat(path); err == nil {
			s[i] = fileStamp{info.ModTime(), info.Size()}
		}
	}
	return s
}

// Current is the certificate in the files, or the previous one while the files
// are invalid.
func (c *Certificate) Current() *tls.Certificate {
	now, _ := c.current()
	return now
}

// For is Current for one handshake, whose signature waits for its turn.
func (c *Certificate) For(hello *tls.ClientHelloInfo) *tls.Certificate {
	now := *c.Current()
	if key, ok := now.PrivateKey.(crypto.Signer); ok {
		now.PrivateKey = inTurn{key, signing, httpd.Gone(hello.Conn)}
	}
	return &now
}

func (c *Certificate) current() (*tls.Certificate, *x509.Certificate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) >= recheckInterval {
		c.looked = time.Now()
		if s := c.stamps(); s != c.stamp {
			c.stamp = s
			if err := c.load(); err != nil {
				c.log.Warn("the dashboard's certificate has changed and cannot be used, the one before stays", "error", remedy.Line(err))
			} else {
				c.log.Info("the dashboard's certificate has changed", "until", c.leaf.NotAfter)
			}
		}
	}
	return c.now, c.leaf
}

// TLS is the configuration of a server with this certificate.
func (c *Certificate) TLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			return c.For(hello), nil
		},
	}
}

// Until is the end of the certificate.
func (c *Certificate) Until() time.Time {
	_, leaf := c.current()
	return leaf.NotAfter
}

// Names reports whether the certificate is valid for a host.
func (c *Certificate) Names(host string) bool {
	_, leaf := c.current()
	return leaf.VerifyHostname(host) == nil
}

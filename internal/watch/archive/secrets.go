package archive

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"io"
	"os"

	"longhaul/internal/words/remedy"
)

// maxPassword bounds a password or a token, in bytes.
const maxPassword = 4096

// Password reads the first line of the target's password file; it is empty without a file.
func (t *Target) Password() (string, error) {
	if t.PasswordFile == "" {
		return "", nil
	}
	f, err := os.Open(t.PasswordFile)
	if err != nil {
		return "", remedy.New(fmt.Errorf("cannot read the password of %s: %w", t.Place.name(), err), "make the file, readable for longhaul's user alone")
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxPassword+1))
	if err != nil {
		return "", remedy.New(fmt.Errorf("cannot read the password of %s: %w", t.Place.name(), err), "name a file with the password on its first line")
	}
	line, _, _ := bytes.Cut(content, []byte("\n"))
	if line = bytes.TrimRight(line, "\r"); len(line) == 0 || len(line) > maxPassword {
		return "", remedy.New(fmt.Errorf("no password in %s", t.PasswordFile), "write it on the first line of the file, as text")
	}
	return string(line), nil
}

// Authorities reads those that a server's certificate is held against; nil: the system's.
func (t *Target) Authorities() (*x509.CertPool, error) {
	if t.CA == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(t.CA)
	if err != nil {
		return nil, remedy.New(fmt.Errorf("read the authorities of the sink: %w", err), "name a file that the relay's user can read")
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, remedy.New(fmt.Errorf("no certificate in %s", t.CA), "name a file with certificates in PEM")
	}
	return pool, nil
}

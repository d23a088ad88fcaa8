package integrity

import (
	"bytes"
	"crypto/fips140"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"longhaul/internal/words/remedy"
)

const (
	secretBytes = 32
	keyPrefix   = "longhaul-check-1:"
	maxKeyFile  = 4096
)

// Key is the shared secret of the relays of a chain. A relay answers checks
// only under it.
type Key struct {
	secret [secretBytes]byte
	auth   [secretBytes]byte // of hellos and their replies
}

// Keys are the keys of a key file. A relay asks with the first and answers
// under both, so that keys can be changed while checks go on.
type Keys struct {
	First  Key
	Second Key // zero: none
}

// String keeps the secret out of logs.
func (Key) String() string { return "(secret)" }

// GoString does the same for %#v.
func (Key) GoString() string { return "(secret)" }

// IsZero reports whether the key is unset.
func (k Key) IsZero() bool { return k == Key{} }

// NewKey makes a key.
func NewKey() Key {
	var secret [secretBytes]byte
	_, _ = rand.Read(secret[:]) // never fails
	return keyOf(secret)
}

func keyOf(secret [secretBytes]byte) Key {
	k := Key{secret: secret}
	copy(k.auth[:], k.derive(nil, "hello", secretBytes))
	return k
}

// derive makes a key for one purpose (HKDF with SHA-256, RFC 5869).
func (k *Key) derive(salt []byte, purpose string, n int) []byte {
	derived, err := hkdf.Key(sha256.New, k.secret[:], salt, "longhaul check 1 "+purpose, n)
	if err != nil {
		panic("integrity: " + err.Error()) // only for excessive lengths
	}
	return derived
}

// Create writes the key to a new file that only its owner can read. It makes a missing
// directory, for the owner only.
func (k Key) Create(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("make the directory of the key: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case errors.Is(err, fs.ErrExist):
		return remedy.New(errors.New(path+" exists"),
			"choose another name; docs/check.md describes the change of a key that relays use")
	case err != nil:
		return err
	}
	_, err = fmt.Fprintf(f, "# Key of longhaul's checks. Every relay of a chain has the same; nobody else may read it.\n%s%s\n",
		keyPrefix, base64.RawURLEncoding.EncodeToString(k.secret[:]))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		_ = os.Remove(path)
		return err
	}
	return nil
}

// credentialsDir is the folder in which systemd puts the files of LoadCredential=.
// An access control list admits the service's user; it shows as the group's
// bits.
const credentialsDir = "/run/credentials/"

// LoadKeys reads a key file. The error is a [*remedy.Error].
func LoadKeys(path string) (Keys, error) {
	if fips140.Enforced() { // crypto/cipher refuses AES-GCM with nonces that count, as session.go has them
		return Keys{}, remedy.New(errors.New("integrity checks do not work with GODEBUG=fips140=only"),
			"leave check out of the configuration, or run longhaul with GODEBUG=fips140=on")
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Keys{}, remedy.New(errors.New("there is no key file "+path), "make one with longhaul check --new-key "+path+", and copy it to every relay of the chain")
	}
	if err != nil {
		return Keys{}, unreadable(path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Keys{}, unreadable(path, err)
	}
	others := fs.FileMode(0o077)
	if strings.HasPrefix(path, credentialsDir) {
		others = 0o007
	}
	switch {
	case !info.Mode().IsRegular():
		return Keys{}, remedy.New(errors.New("the key file "+path+" is not a regular file"),
			"name the file with the key")
	case info.Mode()&others != 0:
		return Keys{}, remedy.New(fmt.Errorf("the key file %s is open to others (mode %#o)", path, info.Mode().Perm()),
			"run chmod 600 "+path+"; if others could read it meanwhile, make a new key for all relays")
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err != nil {
		return Keys{}, unreadable(path, err)
	}
	keys, err := parseKeys(text)
	if err != nil {
		return Keys{}, remedy.New(errors.New("invalid key file "+path+": "+err.Error()),
			"make one with longhaul check --new-key FILE; docs/check.md describes the change of a key")
	}
	return keys, nil
}

func unreadable(path string, err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		err = pathError.Err
	}
	fix := "check the path"
	if errors.Is(err, fs.ErrPermission) {
		fix = "give it to the relay's user (chown), or hand it over with LoadCredential= in the unit"
	}
	return remedy.New(fmt.Errorf("the key file %s cannot be read: %w", path, err), fix)
}

// parseKeys parses the output of Create, once or twice: one key per line; other
// lines are comments.
func parseKeys(text []byte) (keys Keys, err error) {
	if len(text) > maxKeyFile {
		return Keys{}, fmt.Errorf("it has more than %d bytes", maxKeyFile)
	}
	for line := range bytes.Lines(text) {
		word := strings.TrimSpace(string(line))
		if word == "" || strings.HasPrefix(word, "#") {
			continue
		}
		encoded, ok := strings.CutPrefix(word, keyPrefix)
		secret, err := base64.RawURLEncoding.DecodeString(encoded)
		switch {
		case !ok:
			return Keys{}, errors.New("a line begins with neither " + keyPrefix + " nor #")
		case err != nil || len(secret) != secretBytes:
			return Keys{}, fmt.Errorf("the text after %s is not %d bytes in base64url", keyPrefix, secretBytes)
		}
		key := keyOf([secretBytes]byte(secret))
		switch {
		case keys.First.IsZero():
			keys.First = key
		case !keys.Second.IsZero():
			return Keys{}, errors.New("it has more than two keys")
		case key == keys.First:
			return Keys{}, errors.New("it has the same key twice")
		default:
			keys.Second = key
		}
	}
	if keys.First.IsZero() {
		return Keys{}, fmt.Errorf("no line begins with %s", keyPrefix)
	}
	return keys, nil
}

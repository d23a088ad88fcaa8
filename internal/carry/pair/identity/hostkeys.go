package identity

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"strings"
)

const (
	privatePrefix = "longhaul-pair-private-1:"
	keyFileHead   = "# Keys of this host's relays, the newest first. Nobody else may read them; longhaul pair rotate changes them.\n"
)

// MaxKeys is the number of keys that a host may have at a time: two during a rotation.
const MaxKeys = 2

// privateKey is a key of this host.
type privateKey struct{ ed25519.PrivateKey }

// String keeps the key out of logs.
func (privateKey) String() string { return "(secret)" }

// GoString does the same for %#v.
func (privateKey) GoString() string { return "(secret)" }

// newPrivateKey makes a key.
func newPrivateKey() privateKey {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		panic("identity: " + err.Error()) // the kernel's random numbers never fail
	}
	return privateKey{key}
}

func (k privateKey) public() PublicKey { return PublicKey(k.PrivateKey.Public().(ed25519.PublicKey)) }

// hostKeys are the keys of this host, the newest first: none, one, or two during a
// rotation.
type hostKeys []privateKey

func (k hostKeys) public() []PublicKey {
	all := make([]PublicKey, len(k))
	for i, key := range k {
		all[i] = key.public()
	}
	return all
}

// format is the text that parseHostKeys reads.
func (k hostKeys) format() []byte {
	var b bytes.Buffer
	b.WriteString(keyFileHead)
	for _, key := range k {
		b.WriteString(encode(privatePrefix, key.Seed()) + "\n")
	}
	return b.Bytes()
}

// parseHostKeys reads the file of this host's keys. An error names the line and no part
// of a key.
func parseHostKeys(text []byte) (keys hostKeys, err error) {
	err = eachLine(text, func(line string) error {
		seed, err := decodeKey(privatePrefix, line)
		if err != nil {
			return err
		}
		key := privateKey{ed25519.NewKeyFromSeed(seed[:])}
		switch {
		case len(keys) == MaxKeys:
			return errors.New("the file has more than two keys")
		case len(keys) > 0 && keys[0].public() == key.public():
			return errors.New("the file has the same key twice")
		}
		keys = append(keys, key)
		return nil
	})
	if err == nil && len(keys) == 0 {
		err = fmt.Errorf("no line begins with %s", privatePrefix)
	}
	if err != nil {
		return nil, err
	}
	return keys, nil
}

// eachLine calls parse for each line that is neither empty nor a comment. It adds the
// line's number to an error.
func eachLine(text []byte, parse func(line string) error) error {
	number := 0
	for line := range bytes.Lines(text) {
		number++
		word := strings.TrimSpace(string(line))
		if word == "" || strings.HasPrefix(word, "#") {
			continue
		}
		if err := parse(word); err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
	}
	return nil
}

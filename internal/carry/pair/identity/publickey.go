// Package identity has the keys of paired relays: those of this host and of its peers on
// disk, the certificates and TLS configurations made of them, invitations, and the
// rotation of keys. docs/design/pairs-wire.md has the protocol.
//
// Whoever is pinned here under a name may open connections as that peer, and nobody else.
// Names and dates in certificates do not count.
package identity

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"longhaul/internal/words/remedy"
)

// keyBytes is the length of public keys and of the seeds of private ones (RFC 8032).
const keyBytes = ed25519.PublicKeySize

// KeyPrefix begins the text of a public key.
const KeyPrefix = "longhaul-pair-key-1:"

// anyKeyPrefix begins the text of a key of any release.
const anyKeyPrefix = "longhaul-pair-key-"

// formOf returns the number of the form of a text PREFIX NUMBER:REST, or 0. Numbers have at most four digits.
func formOf(prefix, text string) int {
	rest, ok := strings.CutPrefix(text, prefix)
	number, _, colon := strings.Cut(rest, ":")
	form, err := strconv.ParseUint(number, 10, 16)
	if !ok || !colon || err != nil || len(number) > 4 || number[0] == '0' {
		return 0
	}
	return int(form)
}

// PublicKey is the Ed25519 public key of a host.
type PublicKey [keyBytes]byte

// IsZero reports whether there is no key.
func (k PublicKey) IsZero() bool { return k == PublicKey{} }

// String is the key in the form that ParsePublicKey reads.
func (k PublicKey) String() string { return encode(KeyPrefix, k[:]) }

// Short is the beginning of the key's text after the prefix, for tables and logs.
func (k PublicKey) Short() string { return k.String()[len(KeyPrefix):][:12] }

// MarshalText writes the key as String.
func (k PublicKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads the key as ParsePublicKey.
func (k *PublicKey) UnmarshalText(text []byte) (err error) {
	*k, err = ParsePublicKey(string(text))
	return err
}

// ParsePublicKey reads what longhaul pair key prints. The error is a [*remedy.Error].
func ParsePublicKey(text string) (PublicKey, error) {
	key, err := decodeKey(KeyPrefix, text)
	if err == nil && key == (PublicKey{}) {
		err = errors.New("it is zero")
	}
	if formOf(anyKeyPrefix, text) > 1 { // a release with other keys
		return PublicKey{}, remedy.New(errors.New("invalid key: it is of a newer release of longhaul"), "bring both hosts to the same version of longhaul")
	}
	if err != nil {
		return PublicKey{}, remedy.New(fmt.Errorf("invalid key: %w", err),
			"copy the whole line that longhaul pair key prints at the other site")
	}
	return key, nil
}

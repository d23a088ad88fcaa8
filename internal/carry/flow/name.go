package flow

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// Name names a flow in every relay that carries it: a UUID (RFC 9562). The first relay makes it, or takes
// it from the PROXY header of a proxy before it. The zero name means that a flow has none.
type Name [16]byte

// NewName returns a random name, of UUID's version 4.
func NewName() Name {
	var n Name
	_, _ = rand.Read(n[:]) // never fails
	return n.of(4)
}

// NameOf returns the name that a proxy's identifier of a connection stands for: the UUID of 16 bytes, of
// their 32 hexadecimal digits or of UUID's usual form, or else one of version 8 with the identifier's
// SHA-256 (RFC 9562, section 5.8), the same wherever it is seen. An empty one gives no name.
func NameOf(id []byte) Name {
	switch n, err := ParseName(string(id)); {
	case len(id) == 0:
		return Name{}
	case len(id) == len(n):
		return Name(id)
	case err == nil:
		return n
	}
	sum := sha256.Sum256(id)
	return Name(sum[:16]).of(8)
}

// ParseName parses the text of a name, with hyphens or without. The zero name is none.
func ParseName(s string) (Name, error) {
	digits := s
	if len(s) == 36 && s[8] == '-' && s[13] == '-' && s[18] == '-' && s[23] == '-' {
		digits = s[:8] + s[9:13] + s[14:18] + s[19:23] + s[24:]
	}
	b, err := hex.DecodeString(digits)
	if err != nil || len(b) != len(Name{}) {
		return Name{}, fmt.Errorf("%q is no name of a flow: a name has 32 hexadecimal digits, such as %s", strings.ToValidUTF8(s, "?"), Name{0x5f, 0x3a})
	}
	if n := Name(b); !n.IsZero() {
		return n, nil
	}
	return Name{}, fmt.Errorf("%q is no name of a flow: it stands for a missing one", s)
}

// of makes the name a UUID of a version.
func (n Name) of(version byte) Name {
	n[6] = n[6]&0x0f | version<<4
	n[8] = n[8]&0x3f | 0x80
	return n
}

// IsZero reports that it is no name.
func (n Name) IsZero() bool { return n == Name{} }

// String is the name as UUIDs are written. The zero name has an empty text.
func (n Name) String() string {
	if n.IsZero() {
		return ""
	}
	b := make([]byte, 36)
	hex.Encode(b, n[:4])
	hex.Encode(b[9:], n[4:6])
	hex.Encode(b[14:], n[6:8])
	hex.Encode(b[19:], n[8:10])
	hex.Encode(b[24:], n[10:])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b)
}

// MarshalText writes String.
func (n Name) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (n *Name) UnmarshalText(b []byte) (err error) {
	if len(b) == 0 {
		*n = Name{}
		return nil
	}
	*n, err = ParseName(string(b))
	return err
}

// MaxVia is the most relays that a flow may pass behind one another.
const MaxVia = 8

// Via is the relays that a flow has passed, the first one first: 8 bytes for each, of the digest of its
// public key. A flow that comes to one of them again goes round in a circle. It has MaxVia relays at most.
type Via string

// RelayID is a relay in a Via.
type RelayID [8]byte

// Has reports whether the flow has passed a relay.
func (v Via) Has(id RelayID) bool {
	for i := 0; i+len(id) <= len(v); i += len(id) {
		if string(id[:]) == string(v[i:i+len(id)]) {
			return true
		}
	}
	return false
}

// First is the relay that the client came to; zero: it is not known.
func (v Via) First() (id RelayID) {
	copy(id[:], v)
	return id
}

// Len is the number of relays.
func (v Via) Len() int { return len(v) / len(RelayID{}) }

// Add returns the relays with one more behind them.
func (v Via) Add(id RelayID) Via { return v + Via(id[:]) }

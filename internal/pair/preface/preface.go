// Package preface makes and recognises the 48 bytes in front of TLS that name a
// connection as one of the pair protocol.
package preface

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
)

// ALPN is the name of the protocol in the TLS handshake that follows (RFC 7301).
const ALPN = "longhaul-pair/1"

// Size is the length of a preface in bytes.
const Size = 48

// Version is the one version of the preface.
const Version = 1

const (
	magic     = "\x00lhpair\n"
	versionAt = 8
	kindAt    = 9
	instAt    = 16
	nonceAt   = 24
	tagAt     = 32
)

// Kind is what a connection is for.
type Kind byte

// The kinds.
const (
	Lane    Kind = 1
	Control Kind = 2
	Join    Kind = 3
)

// Preface is a recognised preface.
type Preface struct {
	Kind     Kind
	Instance uint64 // of the far process that is meant; 0: any
}

// Verdict is what first bytes are.
type Verdict int

// The verdicts.
const (
	No    Verdict = iota // an ordinary client's
	Maybe                // more bytes decide
	Yes
)

// Append appends a preface for the far relay with this public key.
func (p Preface) Append(dst []byte, far ed25519.PublicKey) []byte {
	var b [Size]byte
	copy(b[:], magic)
	b[versionAt], b[kindAt] = Version, byte(p.Kind)
	binary.BigEndian.PutUint64(b[instAt:], p.Instance)
	_, _ = rand.Read(b[nonceAt:tagAt]) // never fails (crypto/rand)
	copy(b[tagAt:], tag(b[:tagAt], far))
	return append(dst, b[:]...)
}

// Recognize decides what the first bytes of a connection are, for a host with these
// keys. What does not know one of the keys is No.
func Recognize(first []byte, keys ...ed25519.PublicKey) (Preface, Verdict) {
	n := min(len(first), len(magic))
	if string(first[:n]) != magic[:n] {
		return Preface{}, No
	}
	if len(first) < Size {
		return Preface{}, Maybe
	}
	for _, key := range keys {
		if hmac.Equal(first[tagAt:Size], tag(first[:tagAt], key)) {
			return parse(first[:tagAt])
		}
	}
	return Preface{}, No
}

func parse(b []byte) (Preface, Verdict) {
	p := Preface{Kind: Kind(b[kindAt]), Instance: binary.BigEndian.Uint64(b[instAt:])}
	if b[versionAt] != Version || p.Kind < Lane || p.Kind > Join {
		return Preface{}, No
	}
	return p, Yes
}

func tag(b []byte, far ed25519.PublicKey) []byte {
	key := sha256.Sum256(bytes.Join([][]byte{[]byte("longhaul pair preface"), far}, nil))
	mac := hmac.New(sha256.New, key[:])
	mac.Write(b)
	return mac.Sum(nil)[:Size-tagAt]
}

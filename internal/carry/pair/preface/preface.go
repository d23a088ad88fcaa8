// Package preface makes and recognises the 48 bytes in front of TLS that name a
// connection as one of the pair protocol.
package preface

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"slices"
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
	Join    Kind = 3 // an answer to an invitation
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

// Key is what the tag of a preface is made with. Whoever does not know it cannot make
// the preface.
type Key [sha256.Size]byte

// HostKey is the key of prefaces for the host with this public key.
func HostKey(far ed25519.PublicKey) Key { return keyOf("longhaul pair preface", far) }

// JoinKey is the key of the prefaces of kind [Join] that answer an invitation. verifier is
// the public key that the invitation's secret gives, so the host's public key is not
// enough to begin a join.
func JoinKey(verifier ed25519.PublicKey) Key { return keyOf("longhaul pair join preface", verifier) }

// AuthorityKey is the key of prefaces for hosts with certificates of an authority, whose public key
// (SubjectPublicKeyInfo, RFC 5280, section 4.1) this is; or for one of them, by its name.
func AuthorityKey(public []byte, name string) Key {
	sum := sha256.Sum256(public)
	return keyOf("longhaul pair authority preface", append(sum[:], name...))
}

func keyOf(what string, public []byte) Key {
	return sha256.Sum256(slices.Concat([]byte(what), public))
}

// Append appends a preface for the far relay with this public key.
func (p Preface) Append(dst []byte, far ed25519.PublicKey) []byte {
	return p.AppendFor(dst, HostKey(far))
}

// AppendFor appends a preface with a tag of this key.
func (p Preface) AppendFor(dst []byte, key Key) []byte {
	var b [Size]byte
	copy(b[:], magic)
	b[versionAt], b[kindAt] = Version, byte(p.Kind)
	binary.BigEndian.PutUint64(b[instAt:], p.Instance)
	_, _ = rand.Read(b[nonceAt:tagAt]) // never fails (crypto/rand)
	copy(b[tagAt:], key.tag(b[:tagAt]))
	return append(dst, b[:]...)
}

// Keys are the keys whose prefaces a host recognises.
type Keys struct {
	Hosts []Key // of lanes and control connections: of this host's public keys
	Joins []Key // of joins: of the invitations that can be used
}

// of returns the keys of a kind.
func (k *Keys) of(kind Kind) []Key {
	switch kind {
	case Lane, Control:
		return k.Hosts
	case Join:
		return k.Joins
	}
	return nil
}

// Recognize decides what the first bytes of a connection are, for a host with these
// public keys and no invitation.
func Recognize(first []byte, public ...ed25519.PublicKey) (Preface, Verdict) {
	var k Keys
	for _, key := range public {
		k.Hosts = append(k.Hosts, HostKey(key))
	}
	return k.Recognize(first)
}

// Recognize decides what the first bytes of a connection are. What does not know a key of
// its kind is No, and each kind is No for a host without a key for it.
func (k *Keys) Recognize(first []byte) (Preface, Verdict) {
	n := min(len(first), len(magic))
	if string(first[:n]) != magic[:n] {
		return Preface{}, No
	}
	if len(first) <= kindAt {
		return Preface{}, Maybe
	}
	kind := Kind(first[kindAt])
	keys := k.of(kind)
	if first[versionAt] != Version || len(keys) == 0 {
		return Preface{}, No
	}
	if len(first) < Size {
		return Preface{}, Maybe
	}
	for i := range keys {
		if hmac.Equal(first[tagAt:Size], keys[i].tag(first[:tagAt])) {
			return Preface{Kind: kind, Instance: binary.BigEndian.Uint64(first[instAt:])}, Yes
		}
	}
	return Preface{}, No
}

// Tag is the part of a preface that no other one has.
type Tag [Size - tagAt]byte

// TagOf returns the tag of a whole preface.
func TagOf(first []byte) Tag { return Tag(first[tagAt:Size]) }

func (k *Key) tag(b []byte) []byte {
	mac := hmac.New(sha256.New, k[:])
	mac.Write(b)
	return mac.Sum(nil)[:Size-tagAt]
}

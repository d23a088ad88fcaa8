package integrity

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"time"
)

// A hello opens a check, and a reply answers it:
//
//	hello  magic 8 | nonce 16 | tag 16
//	reply  magic 8 | nonce 16 | bytes before it 8 | first altered 2 | altered 2 | tag 16
//
// Both nonces contain the time; see [stampedNonce]. A refusal is a reply with
// another tag, and its code in place of the first altered byte.
//
// Each is sent in three copies. One valid copy, or the majority of each byte,
// is enough to read it. So a middlebox that alters a byte is detected by the
// ends, instead of making one end look foreign to the other.
const (
	helloMagic = "\xf1lhcheck"
	replyMagic = "\xf1lhreply"
	magicBytes = 8
	nonceBytes = 16
	tagBytes   = 16
	copies     = 3
	helloBytes = magicBytes + nonceBytes + tagBytes
	replyBytes = magicBytes + nonceBytes + 8 + 2 + 2 + tagBytes

	// HelloBytes is the length of a hello with all its copies.
	HelloBytes = copies * helloBytes

	allReplyBytes = copies * replyBytes

	// maxForeign bounds the bytes of a target's greeting before a reply.
	maxForeign = 256 << 10
)

// A nonce is a stamp and 8 random bytes; a stamp is a mark and the seconds
// since 1970. Programs without stamps use 16 random bytes, and treat a stamp as
// such.
type nonce [nonceBytes]byte

const (
	stampMark  = "\xf1\x00lh"
	stampBytes = len(stampMark) + 4
)

func stampedNonce(now time.Time) (n nonce) {
	_, _ = rand.Read(n[:]) // never fails
	copy(n[:], stampMark)
	binary.BigEndian.PutUint32(n[len(stampMark):], uint32(now.Unix()))
	return n
}

// stamp returns the second at which a nonce was made, by its maker's clock.
func (n nonce) stamp() (second int64, ok bool) {
	return int64(binary.BigEndian.Uint32(n[len(stampMark):])), string(n[:len(stampMark)]) == stampMark
}

// damage is the number of altered bytes in a message, and the first of them.
type damage struct {
	first, count int
}

// Recognition classifies the first bytes of a connection.
type Recognition uint8

// The classes of first bytes.
const (
	NoHello    Recognition = iota
	MaybeHello             // with more bytes
	IsHello
)

// Recognize reports whether a connection begins with a hello under one of the
// keys. It needs at most [HelloBytes].
func (k *Keys) Recognize(first []byte) Recognition {
	if len(first) < HelloBytes {
		n := min(len(first), magicBytes)
		if string(first[:n]) == helloMagic[:n] {
			return MaybeHello
		}
		return NoHello
	}
	if _, _, _, ok := k.openHello(first[:HelloBytes]); ok {
		return IsHello
	}
	return NoHello
}

func (k *Key) hello(n nonce) []byte {
	b := append([]byte(helloMagic), n[:]...)
	return bytes.Repeat(append(b, k.tag(tagHello, n, b)...), copies)
}

// openHello reads a hello of HelloBytes, and returns the key that it matches.
func (k *Keys) openHello(b []byte) (n nonce, key *Key, d damage, ok bool) {
	whole, ok := repair(b, helloBytes, helloMagic, func(one []byte) bool {
		body := one[:helloBytes-tagBytes]
		for _, key = range []*Key{&k.First, &k.Second} {
			if !key.IsZero() && hmac.Equal(one[len(body):], key.tag(tagHello, nonce(body[magicBytes:]), body)) {
				return true
			}
		}
		return false
	})
	if !ok {
		return n, nil, d, false
	}
	return nonce(whole[magicBytes:]), key, compare(b, bytes.Repeat(whole, copies)), true
}

// reply is a relay's answer to a hello.
type reply struct {
	nonce  nonce
	before uint64 // bytes sent on the connection before: the target's greeting
	hello  damage // of the received hello
	refuse refusal
}

// refusal is the reason why a relay does not answer an authentic hello.
type refusal uint16

const (
	noRefusal   refusal = iota
	refuseClock         // its stamp is too far from the relay's clock
	refuseBusy          // no place is free
)

// The kinds of tags.
const (
	tagHello   = "hello"
	tagReply   = "reply"
	tagRefusal = "refusal"
)

func (k *Key) reply(to nonce, r reply) []byte {
	kind := tagReply
	if r.refuse != noRefusal {
		kind, r.hello = tagRefusal, damage{first: int(r.refuse)}
	}
	b := append([]byte(replyMagic), r.nonce[:]...)
	b = binary.BigEndian.AppendUint64(b, r.before)
	b = binary.BigEndian.AppendUint16(b, uint16(r.hello.first))
	b = binary.BigEndian.AppendUint16(b, uint16(r.hello.count))
	return bytes.Repeat(append(b, k.tag(kind, to, b)...), copies)
}

// findReply searches the received bytes for the reply to a hello. start is its
// offset.
func (k *Key) findReply(to nonce, b []byte) (r reply, d damage, start int, ok bool) {
	is := func(kind string, one []byte) bool {
		body := one[:replyBytes-tagBytes]
		return hmac.Equal(one[len(body):], k.tag(kind, to, body))
	}
	valid := func(one []byte) bool { return is(tagReply, one) || is(tagRefusal, one) }
	var whole []byte
	for at := 0; ; at++ {
		next := bytes.Index(b[at:], []byte(replyMagic))
		if next < 0 || at+next+replyBytes > len(b) {
			break
		}
		at += next
		if one := b[at : at+replyBytes]; valid(one) {
			whole = one
			break
		}
	}
	if whole == nil && len(b) >= allReplyBytes {
		whole, ok = repair(b[:allReplyBytes], replyBytes, replyMagic, valid)
		if !ok {
			return r, d, 0, false
		}
	}
	if whole == nil {
		return r, d, 0, false
	}
	body := whole[magicBytes:]
	r.nonce = nonce(body)
	r.before = binary.BigEndian.Uint64(body[nonceBytes:])
	r.hello.first = int(binary.BigEndian.Uint16(body[nonceBytes+8:]))
	r.hello.count = int(binary.BigEndian.Uint16(body[nonceBytes+10:]))
	if is(tagRefusal, whole) {
		r.refuse, r.hello = refusal(r.hello.first), damage{}
	}
	if r.before > maxForeign || uint64(len(b)) < r.before+allReplyBytes {
		return r, d, 0, false // not complete yet
	}
	start = int(r.before)
	return r, compare(b[start:start+allReplyBytes], bytes.Repeat(whole, copies)), start, true
}

// tag authenticates a message of a kind that belongs to a hello.
func (k *Key) tag(kind string, to nonce, message []byte) []byte {
	m := hmac.New(sha256.New, k.auth[:])
	m.Write([]byte(kind))
	m.Write(to[:])
	m.Write(message)
	return m.Sum(nil)[:tagBytes]
}

// repair recovers a message from three copies: a valid copy, or the bitwise
// majority.
func repair(b []byte, size int, magic string, valid func([]byte) bool) ([]byte, bool) {
	for at := 0; at < len(b); at += size {
		if one := b[at : at+size]; string(one[:len(magic)]) == magic && valid(one) {
			return one, true
		}
	}
	majority := make([]byte, size)
	for i := range majority {
		x, y, z := b[i], b[i+size], b[i+2*size]
		majority[i] = x&y | y&z | x&z
	}
	return majority, string(majority[:len(magic)]) == magic && valid(majority)
}

// compare counts the differing bytes of two texts of equal length.
func compare(got, want []byte) (d damage) {
	if bytes.Equal(got, want) {
		return d
	}
	for i := range got {
		if got[i] != want[i] {
			if d.count == 0 {
				d.first = i
			}
			d.count++
		}
	}
	return d
}

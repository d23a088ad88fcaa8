package identity

import (
	"crypto/ed25519"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// A connection of kind join has one message each way, after the handshake, in which the
// client knows the server's key and the server no key of the client's. A message is its
// length (2 bytes), then:
//
//	client: version (1), verifier (32), signature (64), keys of the client
//	server: version (1), outcome (1), keys of the server, if it has accepted
//
// Keys are their number (1), then 32 bytes each, the newest first. The client signs with
// the key that the secret gives: the channel binding (RFC 9266), its own key, the
// server's. The exported value does not depend on the client's certificate (RFC 8446,
// 7.1), so the client's key stands beside it.

const (
	joinVersion = 1
	joinContext = "longhaul pair join 1" // of the signature (Ed25519ctx, RFC 8032)
	maxMessage  = 1024
)

// outcome is the server's answer to a join.
type outcome byte

const (
	accepted   outcome = 0
	unknown    outcome = 1 // no such invitation here, or a wrong signature
	late       outcome = 2
	spent      outcome = 3
	nameTaken  outcome = 4
	keyTaken   outcome = 5
	failed     outcome = 6 // the server cannot store the peer
	newVersion outcome = 7 // of the client's message
)

// request is the client's message.
type request struct {
	verifier  PublicKey
	signature [ed25519.SignatureSize]byte
	keys      []PublicKey // the newest first
}

func (r *request) append(b []byte) []byte {
	b = append(append(append(b, joinVersion), r.verifier[:]...), r.signature[:]...)
	return appendKeys(b, r.keys)
}

// errVersion is returned for a message of another version.
var errVersion = errors.New("another version of the join")

func parseRequest(b []byte) (r request, err error) {
	if len(b) > 0 && b[0] != joinVersion {
		return r, errVersion
	}
	const fixed = 1 + keyBytes + ed25519.SignatureSize
	if len(b) < fixed {
		return r, io.ErrUnexpectedEOF
	}
	r.verifier = PublicKey(b[1 : 1+keyBytes])
	r.signature = [ed25519.SignatureSize]byte(b[1+keyBytes : fixed])
	r.keys, err = parseKeys(b[fixed:])
	if err == nil && len(r.keys) == 0 {
		err = io.ErrUnexpectedEOF
	}
	return r, err
}

// answer is the server's message.
type answer struct {
	outcome outcome
	keys    []PublicKey // the newest first; none unless accepted
}

func (a *answer) append(b []byte) []byte {
	return appendKeys(append(b, joinVersion, byte(a.outcome)), a.keys)
}

func parseAnswer(b []byte) (a answer, err error) {
	switch {
	case len(b) > 0 && b[0] != joinVersion:
		return a, errVersion
	case len(b) < 2:
		return a, io.ErrUnexpectedEOF
	}
	a.outcome = outcome(b[1])
	a.keys, err = parseKeys(b[2:])
	if err == nil && (a.outcome == accepted) != (len(a.keys) > 0) {
		err = fmt.Errorf("%d keys with the outcome %d", len(a.keys), a.outcome)
	}
	return a, err
}

func appendKeys(b []byte, keys []PublicKey) []byte {
	b = append(b, byte(len(keys)))
	for _, key := range keys {
		b = append(b, key[:]...)
	}
	return b
}

func parseKeys(b []byte) (keys []PublicKey, err error) {
	if len(b) == 0 {
		return nil, io.ErrUnexpectedEOF
	}
	n := int(b[0])
	if b = b[1:]; n > MaxKeys || len(b) != n*keyBytes {
		return nil, fmt.Errorf("%d keys in %d bytes", n, len(b))
	}
	for one := range slices.Chunk(b, keyBytes) {
		key := PublicKey(one)
		if key.IsZero() || slices.Contains(keys, key) {
			return nil, errors.New("an invalid list of keys")
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// readMessage reads a message without its length.
func readMessage(r io.Reader) ([]byte, error) {
	var head [2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint16(head[:])
	if n > maxMessage {
		return nil, fmt.Errorf("a message of %d bytes", n)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return b, err
}

// writeMessage writes a message with its length.
func writeMessage(w io.Writer, body []byte) error {
	b := binary.BigEndian.AppendUint16(nil, uint16(len(body)))
	_, err := w.Write(append(b, body...))
	return err
}

// bound is what the client of a join signs: the connection and both keys.
func bound(state *tls.ConnectionState, client, server PublicKey) ([]byte, error) {
	binding, err := state.ExportKeyingMaterial("EXPORTER-Channel-Binding", nil, 32)
	if err != nil {
		return nil, err
	}
	return slices.Concat(binding, client[:], server[:]), nil
}

var joinSignature = &ed25519.Options{Context: joinContext}

package integrity

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Conn is a TCP connection: a *net.TCPConn, or an *os.File of a socket. With a
// SyscallConn, the kernel's figures are available.
type Conn interface {
	io.ReadWriteCloser
	SetDeadline(time.Time) error
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
}

// A frame is a sealed head of four bytes, its kind and the length of the rest,
// followed by the rest. The rest is sealed (AES-256-GCM), except for the
// pattern, which both ends know. The separate seal of the head prevents an
// altered length, which would make the reader wait for bytes that never come.
const (
	headBytes  = 4
	sealBytes  = 16
	sealedHead = headBytes + sealBytes
	maxMessage = 64 << 10
)

type kind byte

const (
	kindAsk      kind = iota + 1 // requests an Answer
	kindAnswer                   // Answer
	kindExchange                 // order: both ends send the pattern
	kindPattern                  // part of the pattern
	kindEnd                      // end of the pattern
	kindReceived                 // received: the result
	kindSent                     // sent: the kernel's counts
	kindNext                     // order: check the next relay
	kindLeg                      // leg: the result
	kindGoOn                     // continue as an ordinary flow
	kindGoing                    // accepted; applies to the next byte
	kindAgain                    // end this session, a new hello follows
	kindRefused                  // refusedError
	kindAltered                  // AlteredError about the peer's bytes
	kindBye
)

// AlteredError reports altered bytes in a session.
type AlteredError struct {
	// Offset is the place of the altered bytes, counted from the hello or its
	// reply; Within is its precision.
	Offset int64 `json:"offset"`
	Within int   `json:"within"`
}

func (e *AlteredError) Error() string {
	return fmt.Sprintf("bytes are altered, at %d to %d of the connection", e.Offset, e.Offset+int64(e.Within)-1)
}

// refusedError is the other end's refusal of a request.
type refusedError struct {
	Why string `json:"why"`
}

func (e *refusedError) Error() string { return e.Why }

// peerAltered is the other end's report of altered bytes.
type peerAltered struct{ AlteredError }

// errProtocol reports an authentic but invalid message.
var errProtocol = errors.New("unexpected message of the check; do both relays have the same version?")

// session is a check's conversation after hello and reply.
type session struct {
	conn      Conn
	out, in   half
	exchanges uint64
	server    bool
	key       *Key
	salt      []byte
}

// half is one direction of a session.
type half struct {
	aead   cipher.AEAD
	seq    uint64
	offset int64 // bytes passed on the connection
}

func newSession(conn Conn, key *Key, asker, server nonce, isServer bool) *session {
	s := &session{conn: conn, key: key, salt: append(asker[:], server[:]...), server: isServer}
	up, down := s.aead("up"), s.aead("down")
	if isServer {
		s.in.aead, s.out.aead = up, down
		s.in.offset, s.out.offset = HelloBytes, allReplyBytes
	} else {
		s.out.aead, s.in.aead = up, down
		s.out.offset, s.in.offset = HelloBytes, allReplyBytes
	}
	return s
}

func (s *session) aead(purpose string) cipher.AEAD {
	block, err := aes.NewCipher(s.key.derive(s.salt, purpose, 32))
	if err != nil {
		panic("integrity: " + err.Error()) // only for keys of invalid length
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic("integrity: " + err.Error())
	}
	return aead
}

// next returns the nonce of the next sealed piece.
func (h *half) next() []byte {
	var n [12]byte
	binary.BigEndian.PutUint64(n[4:], h.seq)
	h.seq++
	return n[:]
}

func (s *session) appendHead(b []byte, k kind, length int) []byte {
	head := [headBytes]byte{byte(k), byte(length >> 16), byte(length >> 8), byte(length)}
	return s.out.aead.Seal(b, s.out.next(), head[:], nil)
}

// send sends a message; v may be nil.
func (s *session) send(k kind, v any) error {
	var body []byte
	if v != nil {
		var err error
		if body, err = json.Marshal(v); err != nil {
			return err
		}
		if len(body) > maxMessage {
			return fmt.Errorf("a message of %d bytes is too long", len(body))
		}
	}
	b := s.appendHead(nil, k, len(body))
	if body != nil {
		b = s.out.aead.Seal(b, s.out.next(), body, nil)
	}
	n, err := s.conn.Write(b)
	s.out.offset += int64(n)
	return err
}

// readHead reads a frame's head.
func (s *session) readHead() (k kind, length int, err error) {
	var sealed [sealedHead]byte
	if err := s.readFull(sealed[:]); err != nil {
		return 0, 0, err
	}
	head, err := s.in.aead.Open(nil, s.in.next(), sealed[:], nil)
	if err != nil {
		return 0, 0, &AlteredError{s.in.offset - sealedHead, sealedHead}
	}
	return kind(head[0]), int(head[1])<<16 | int(head[2])<<8 | int(head[3]), nil
}

func (s *session) readFull(b []byte) error {
	n, err := io.ReadFull(s.conn, b)
	s.in.offset += int64(n)
	return err
}

// readBody reads the rest of a message into v.
func (s *session) readBody(length int, v any) error {
	if length == 0 || length > maxMessage {
		return errProtocol
	}
	sealed := make([]byte, length+sealBytes)
	if err := s.readFull(sealed); err != nil {
		return err
	}
	body, err := s.in.aead.Open(sealed[:0], s.in.next(), sealed, nil)
	if err != nil {
		return &AlteredError{s.in.offset - int64(len(sealed)), len(sealed)}
	}
	if err := json.Unmarshal(body, v); err != nil {
		return errProtocol
	}
	return nil
}

// expect reads a message of a kind into v, which is nil for one without a body.
// Another message becomes the error.
func (s *session) expect(want kind, v any) error {
	got, length, err := s.readHead()
	switch {
	case err != nil:
		return err
	case got != want:
		return s.instead(got, length)
	case (v == nil) != (length == 0):
		return errProtocol
	case v == nil:
		return nil
	}
	return s.readBody(length, v)
}

// instead returns the error for an unexpected message.
func (s *session) instead(got kind, length int) error {
	switch got {
	case kindRefused:
		refused := &refusedError{}
		if err := s.readBody(length, refused); err != nil {
			return err
		}
		refused.Why = clean(refused.Why)
		return refused
	case kindAltered:
		there := &peerAltered{}
		if err := s.readBody(length, &there.AlteredError); err != nil {
			return err
		}
		return there
	}
	return errProtocol
}

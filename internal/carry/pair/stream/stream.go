// Package stream decides what becomes of a flow between two relays: which bytes are
// kept, sent again, delivered, and how it ends. It has no sockets, no clock and no
// goroutine; the caller serializes calls of one flow.
//
// Its rule: what a receiver delivers is a beginning of what the sender read, and it
// shows an end only at the full length, after the sender's end.
package stream

import (
	"errors"
	"hash/crc32"
)

// ErrGap is the error of bytes beyond the receiver's position: the lane is broken,
// the flow is not.
var ErrGap = errors.New("gap in the stream")

// ErrDamaged is the error of positions, lengths or sums that cannot be: the flow must
// be cut at both ends.
var ErrDamaged = errors.New("damaged stream")

// castagnoli is CRC-32C's table (RFC 3720, section B.4).
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func sum(crc uint32, b []byte) uint32 { return crc32.Update(crc, castagnoli, b) }

// Package compress makes records of a stream smaller, and finds out whether that is worth
// its processor time. A record is the length of the bytes as they were (4 bytes, big endian),
// then a zstd frame (RFC 8878) of them.
package compress

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// MaxPlain is the most bytes that one record stands for.
const MaxPlain = 256 << 10

// The bounds of a record's length. No zstd frame has less than 6 bytes, and one of bytes that
// do not shrink has 3 more for each block of 128 KiB, behind a head of at most 18.
const (
	MinRecord = headSize + 6
	MaxRecord = MaxPlain + 64
)

const headSize = 4

// maxCoders bounds how many records are worked on at once, since each takes up to a
// megabyte.
const maxCoders = 8

var encoder = sync.OnceValue(func() *zstd.Encoder {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(MaxPlain),
		zstd.WithEncoderCRC(false), // the stream has a checksum of its own
		zstd.WithEncoderConcurrency(min(runtime.GOMAXPROCS(0), maxCoders)))
	if err != nil {
		panic(err) // only for options that do not go together
	}
	return e
})

var decoder = sync.OnceValue(func() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(MaxPlain), zstd.WithDecoderMaxWindow(MaxPlain),
		zstd.WithDecoderLowmem(true), zstd.WithDecoderConcurrency(min(runtime.GOMAXPROCS(0), maxCoders)))
	if err != nil {
		panic(err)
	}
	return d
})

// Append appends the record of plain, which has 1 to MaxPlain bytes.
func Append(dst, plain []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(plain)))
	return encoder().EncodeAll(plain, dst)
}

// ErrRecord is the error of Plain for what is no record.
var ErrRecord = errors.New("malformed compressed record")

// Plain returns the bytes that a record stands for, in the memory of buf if that has room.
func Plain(buf, record []byte) ([]byte, error) {
	if len(record) < MinRecord {
		return nil, fmt.Errorf("%w of %d bytes", ErrRecord, len(record))
	}
	want := binary.BigEndian.Uint32(record)
	if want == 0 || want > MaxPlain {
		return nil, fmt.Errorf("%w for %d bytes", ErrRecord, want)
	}
	plain, err := decoder().DecodeAll(record[headSize:], buf[:0])
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrRecord, err)
	case len(plain) != int(want):
		return nil, fmt.Errorf("%w: %d bytes in place of %d", ErrRecord, len(plain), want)
	}
	return plain, nil
}

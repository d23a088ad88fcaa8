package tcpscript

import "encoding/binary"

// stream is one direction of a connection. It is an endless sequence of bytes
// determined by position, so a lost, doubled or displaced byte shows.
type stream uint64

// The two directions.
const (
	fromDialer   stream = 1
	fromAcceptor stream = 2
)

// fill copies the stream's bytes at a position to buf.
func (s stream) fill(buf []byte, position int64) {
	var word [8]byte
	for len(buf) > 0 {
		skip := int(position % 8)
		binary.LittleEndian.PutUint64(word[:], s.word(uint64(position/8)))
		n := copy(buf, word[skip:])
		buf, position = buf[n:], position+int64(n)
	}
}

// word is the n-th group of 8 bytes: SplitMix64 (Steele, Lea and Flood,
// "Fast splittable pseudorandom number generators", OOPSLA 2014).
func (s stream) word(n uint64) uint64 {
	z := (uint64(s)<<56 + n + 1) * 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

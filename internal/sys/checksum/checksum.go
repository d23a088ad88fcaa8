// Package checksum computes the Internet checksum (RFC 1071).
package checksum

import "encoding/binary"

// Of returns the checksum of parts, each of even length but the last: the complement of
// their Sum.
func Of(parts ...[]byte) uint16 { return ^Sum(parts...) }

// Sum returns the one's complement sum of the 16-bit words of parts, each of even length
// but the last. Over data with a valid checksum it is 0xffff.
func Sum(parts ...[]byte) uint16 {
	var sum uint64
	for _, b := range parts {
		for ; len(b) >= 2; b = b[2:] {
			sum += uint64(binary.BigEndian.Uint16(b))
		}
		if len(b) == 1 {
			sum += uint64(b[0]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// Add returns the one's complement sum of two words, to correct a checksum for a change
// (RFC 1624).
func Add(a, b uint16) uint16 {
	sum := uint32(a) + uint32(b)
	return uint16(sum + sum>>16)
}

// Package proxyproto parses and writes the header of the PROXY protocol,
// versions 1 and 2. A proxy sends it at the beginning of a connection to name
// the connection's original source and destination.
//
// The format is defined in HAProxy's proxy-protocol.txt. The parser skips the
// type-length-value extensions of version 2, including their checksum.
package proxyproto

import (
	"errors"
	"fmt"
	"net/netip"
)

// Bounds on the length of a header, in bytes.
const (
	// MaxLenV1 is the longest line of version 1, including its CR LF.
	MaxLenV1 = 107
	// MaxLenV2 is the longest header of version 2 that Parse accepts. The
	// format allows 65551 bytes; a header with the usual extensions has under
	// 600.
	MaxLenV2 = 4096
	// MaxLen is the longest header that Parse accepts.
	MaxLen = MaxLenV2
)

// Errors of Parse. ErrIncomplete asks for more bytes; ErrMalformed is final and
// wrapped with the cause.
var (
	ErrIncomplete = errors.New("proxy protocol header is incomplete")
	ErrMalformed  = errors.New("malformed proxy protocol header")
)

// Header is the content of a PROXY protocol header.
type Header struct {
	Version int // 1 or 2

	// Local is set if the header names no usable address. The proxy then
	// connects by itself (a health check), or for a connection that is not TCP
	// over IP. The addresses are then zero, and those of the connection itself
	// apply.
	Local bool

	// Source and Destination are those of the original connection, IPv4-mapped
	// IPv6 addresses as IPv4 and without zones.
	Source, Destination netip.AddrPort
}

// Parse parses the header at the start of buf. n is the length of the header;
// payload follows it.
//
// The error is ErrIncomplete while buf may be the beginning of a header; call
// again with more bytes. Any other error is final and wraps ErrMalformed. Parse
// decides within MaxLen bytes.
func Parse(buf []byte) (h Header, n int, err error) {
	switch {
	case len(buf) == 0:
		return Header{}, 0, ErrIncomplete
	case buf[0] == prefixV1[0]:
		return parseV1(buf)
	case buf[0] == signatureV2[0]:
		return parseV2(buf)
	}
	return Header{}, 0, malformed("invalid first byte %#02x", buf[0])
}

// AppendHeader appends the header in the given version, 1 or 2, to dst. It
// ignores h.Version. It writes a header without valid addresses as local. If
// one address is IPv4 and the other IPv6, it writes the IPv4 one in IPv4-mapped
// form. Any other version is a programming error and panics.
func AppendHeader(dst []byte, version int, h Header) []byte {
	h.Source, h.Destination = plain(h.Source), plain(h.Destination)
	if !h.Source.IsValid() || !h.Destination.IsValid() {
		h.Local = true
	}
	switch version {
	case 1:
		return appendV1(dst, h)
	case 2:
		return appendV2(dst, h)
	}
	panic(fmt.Sprintf("proxyproto: unknown version %d", version))
}

// plain removes zones and IPv4-mapping, which the formats cannot or should not
// express.
func plain(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().WithZone("").Unmap(), a.Port())
}

// sameFamily returns both addresses as IPv4, or both as IPv6.
func sameFamily(a, b netip.Addr) (netip.Addr, netip.Addr, bool) {
	if a.Is4() && b.Is4() {
		return a, b, true
	}
	return netip.AddrFrom16(a.As16()), netip.AddrFrom16(b.As16()), false
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

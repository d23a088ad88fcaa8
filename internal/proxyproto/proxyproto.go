// Package proxyproto reads and writes the header of the PROXY protocol,
// versions 1 and 2: a few bytes at the beginning of a connection in which a
// proxy names the connection's original source and destination.
//
// The format is HAProxy's proxy-protocol.txt. Type-length-value extensions of
// version 2 are skipped, their checksum included.
package proxyproto

import (
	"errors"
	"fmt"
	"net/netip"
)

// Bounds on the length of a header, in bytes.
const (
	// MaxLenV1 is the longest line of version 1, its CR LF included.
	MaxLenV1 = 107
	// MaxLenV2 is the longest header of version 2 that Parse accepts. The
	// format could carry 65551; a header with usual extensions has under 600.
	MaxLenV2 = 4096
	// MaxLen is enough to hold any header that Parse accepts.
	MaxLen = MaxLenV2
)

// Errors of Parse. ErrIncomplete asks for more bytes; ErrMalformed is final
// and comes wrapped with what is wrong.
var (
	ErrIncomplete = errors.New("proxy protocol header is incomplete")
	ErrMalformed  = errors.New("malformed proxy protocol header")
)

// Header is what a PROXY protocol header says.
type Header struct {
	Version int // 1 or 2

	// Local is set where the header names no address that could be used: the
	// proxy speaks for itself (a health check), or for a connection that is
	// not TCP over IP. The addresses are then zero, and those of the
	// connection itself count.
	Local bool

	// Source and Destination are the original connection's. IPv4-mapped IPv6
	// addresses are given as IPv4, and there are no zones.
	Source, Destination netip.AddrPort
}

// Parse reads the header at the start of buf. n is the header's length: what
// follows it is the connection's payload.
//
// The error is ErrIncomplete while buf is the beginning of what may become a
// header; call again with more. Any other error is final and wraps
// ErrMalformed. Parse needs no more than MaxLen bytes to decide.
func Parse(buf []byte) (h Header, n int, err error) {
	switch {
	case len(buf) == 0:
		return Header{}, 0, ErrIncomplete
	case buf[0] == prefixV1[0]:
		return parseV1(buf)
	case buf[0] == signatureV2[0]:
		return parseV2(buf)
	}
	return Header{}, 0, malformed("it begins with byte %#02x, with which neither version begins", buf[0])
}

// AppendHeader appends the header in the given version, 1 or 2, to dst. It
// ignores h.Version. A header that lacks a valid address is written as local.
// Where one address is IPv4 and the other IPv6, the first is written in its
// IPv4-mapped form. Any other version is a programming error and panics.
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
	panic(fmt.Sprintf("proxyproto: there is no version %d", version))
}

// plain strips what the header's formats cannot or should not express.
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

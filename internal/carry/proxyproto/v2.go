package proxyproto

import (
	"encoding/binary"
	"net/netip"
)

const (
	signatureV2 = "\r\n\r\n\x00\r\nQUIT\n"
	fixedLenV2  = len(signatureV2) + 4 // version and command, family and protocol, length
)

// The nibbles of bytes 12 and 13.
const (
	commandLocal = 0
	commandProxy = 1

	familyUnspec = 0
	familyInet   = 1
	familyInet6  = 2
	familyUnix   = 3

	protocolUnspec = 0
	protocolStream = 1
	protocolDgram  = 2
)

// Lengths of the address block by family, in bytes. Extensions follow it.
var addressLenV2 = [...]int{
	familyUnspec: 0,
	familyInet:   2*4 + 2*2,
	familyInet6:  2*16 + 2*2,
	familyUnix:   2 * 108,
}

func parseV2(buf []byte) (Header, int, error) {
	if n := min(len(buf), len(signatureV2)); string(buf[:n]) != signatureV2[:n] {
		return Header{}, 0, malformed("invalid signature of version 2")
	}
	// Check every byte as soon as it has arrived.
	if len(buf) > 12 {
		if v := buf[12] >> 4; v != 2 {
			return Header{}, 0, malformed("version %d after the signature of version 2", v)
		}
		if c := buf[12] & 0xf; c != commandLocal && c != commandProxy {
			return Header{}, 0, malformed("unknown command %d", c)
		}
	}
	if len(buf) > 13 && (buf[13]>>4 > familyUnix || buf[13]&0xf > protocolDgram) {
		return Header{}, 0, malformed("unknown family and protocol %#02x", buf[13])
	}
	if len(buf) < fixedLenV2 {
		return Header{}, 0, ErrIncomplete
	}

	local := buf[12]&0xf == commandLocal
	family, protocol := buf[13]>>4, buf[13]&0xf
	length := int(binary.BigEndian.Uint16(buf[14:16]))
	n := fixedLenV2 + length
	if n > MaxLenV2 {
		return Header{}, 0, malformed("%d bytes long; at most %d are accepted", n, MaxLenV2)
	}
	if !local && length < addressLenV2[family] {
		return Header{}, 0, malformed("%d bytes cannot hold the addresses of family %d", length, family)
	}
	if len(buf) < n {
		return Header{}, 0, ErrIncomplete
	}

	h := Header{Version: 2}
	block := buf[fixedLenV2:n]
	switch {
	case !local && family == familyInet && protocol == protocolStream:
		h.Source = addrPortV2(block[0:4], block[8:10])
		h.Destination = addrPortV2(block[4:8], block[10:12])
	case !local && family == familyInet6 && protocol == protocolStream:
		h.Source = addrPortV2(block[0:16], block[32:34])
		h.Destination = addrPortV2(block[16:32], block[34:36])
	default:
		h.Local = true
	}
	return h, n, nil
}

func addrPortV2(address, port []byte) netip.AddrPort {
	a, _ := netip.AddrFromSlice(address)
	return plain(netip.AddrPortFrom(a, binary.BigEndian.Uint16(port)))
}

func appendV2(dst []byte, h Header) []byte {
	dst = append(dst, signatureV2...)
	if h.Local {
		return append(dst, 2<<4|commandLocal, familyUnspec<<4|protocolUnspec, 0, 0)
	}
	source, destination, v4 := sameFamily(h.Source.Addr(), h.Destination.Addr())
	family := byte(familyInet6)
	if v4 {
		family = familyInet
	}
	dst = append(dst, 2<<4|commandProxy, family<<4|protocolStream)
	dst = binary.BigEndian.AppendUint16(dst, uint16(addressLenV2[family]))
	dst = append(dst, source.AsSlice()...)
	dst = append(dst, destination.AsSlice()...)
	dst = binary.BigEndian.AppendUint16(dst, h.Source.Port())
	return binary.BigEndian.AppendUint16(dst, h.Destination.Port())
}

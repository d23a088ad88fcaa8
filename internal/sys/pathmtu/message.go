package pathmtu

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/checksum"
)

// ICMP types and codes (RFC 792, RFC 4443).
const (
	echoRequest4, echoReply4 = 8, 0
	echoRequest6, echoReply6 = 128, 129
	unreachable4, port4      = 3, 3
	unreachable6, port6      = 1, 4
	echoHeader               = 8
)

// nonceSize is the length of the secret at the beginning of each packet's
// payload. A host that does not see the packets cannot forge an answer.
const nonceSize = 16

// nonce is the secret of packets of one size; its last bit distinguishes large
// from small.
func (p *prober) nonce(large bool) []byte {
	n := p.secret
	n[nonceSize-1] &^= 1
	if large {
		n[nonceSize-1] |= 1
	}
	return n[:]
}

// isOurs reports whether a returned payload is that of one of our packets. At
// least minLen bytes of it must be present. A router may quote only a part (RFC
// 792 requires 8 bytes behind the IP header, RFC 1812 section 4.3.2.3 more).
func (p *prober) isOurs(payload []byte, large bool, minLen int) bool {
	n := min(len(payload), nonceSize)
	return n >= minLen && bytes.Equal(payload[:n], p.nonce(large)[:n])
}

// fillEcho makes an echo request.
func (p *prober) fillEcho(b []byte, large bool) {
	b[0] = echoRequest6
	if p.is4() {
		b[0] = echoRequest4
	}
	copy(b[4:], p.secret[:2]) // the identifier
	binary.BigEndian.PutUint16(b[6:], p.sequence)
	copy(b[echoHeader:], p.nonce(large))
	if p.is4() { // for IPv6 the kernel computes it
		binary.BigEndian.PutUint16(b[2:], checksum.Of(b))
	}
}

// parseEcho reports whether a packet from a raw socket is a reply to one of our
// requests, and whether to a large one.
func (p *prober) parseEcho(b []byte) (large, ok bool) {
	reply := byte(echoReply6)
	if p.is4() {
		reply = echoReply4
		if len(b) < 20 {
			return false, false
		}
		header := int(b[0]&15) * 4
		if len(b) < header {
			return false, false
		}
		b = b[header:]
	}
	if len(b) < echoHeader || b[0] != reply {
		return false, false
	}
	large = p.isOurs(b[echoHeader:], true, nonceSize)
	return large, large || p.isOurs(b[echoHeader:], false, nonceSize)
}

// isQuoted reports whether an ICMP error is about one of our packets. It quotes
// the packet behind the IP header; for UDP the quote is the payload only.
func (p *prober) isQuoted(s *socket, quote []byte) bool {
	if s.udp {
		return p.isOurs(quote, s.large, 0) // the kernel matched the socket by its port
	}
	return len(quote) >= echoHeader && bytes.Equal(quote[4:6], p.secret[:2]) && p.isOurs(quote[echoHeader:], s.large, 0)
}

// takeError handles an error of a socket with its quote. The control message is
// struct sock_extended_err, followed by the sender's address.
func (p *prober) takeError(s *socket, quote, control []byte) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return
	}
	for _, m := range messages {
		isError := m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_RECVERR ||
			m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_RECVERR
		if !isError || len(m.Data) < 16 {
			continue
		}
		errno, origin := unix.Errno(binary.NativeEndian.Uint32(m.Data)), m.Data[4]
		kind, code := m.Data[5], m.Data[6]
		info := int(binary.NativeEndian.Uint32(m.Data[8:]))
		if origin != unix.SO_EE_ORIGIN_LOCAL && !p.isQuoted(s, quote) {
			continue
		}
		switch {
		case errno == unix.EMSGSIZE:
			if s.large && !p.back { // with back, it is about our request
				p.noteMTU(info)
			}
		case origin == unix.SO_EE_ORIGIN_ICMP && kind == unreachable4 && code == port4,
			origin == unix.SO_EE_ORIGIN_ICMP6 && kind == unreachable6 && code == port6:
			// Only the destination reports a closed port.
			p.answered(s.large)
		}
	}
}

// fragmentSize is the size of the largest fragment of a packet; 0 if it was not
// fragmented.
func fragmentSize(control []byte) int {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return 0
	}
	for _, m := range messages {
		if (m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_RECVFRAGSIZE ||
			m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_RECVFRAGSIZE) && len(m.Data) >= 4 {
			return int(binary.NativeEndian.Uint32(m.Data))
		}
	}
	return 0
}

// zoneID is the index of the device in an IPv6 address's zone.
func zoneID(address netip.Addr) uint32 {
	if device, err := net.InterfaceByName(address.Zone()); err == nil {
		return uint32(device.Index)
	}
	return 0
}

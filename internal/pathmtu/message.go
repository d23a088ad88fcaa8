package pathmtu

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// ICMP's numbers (RFC 792, RFC 4443).
const (
	echoRequest4, echoReply4 = 8, 0
	echoRequest6, echoReply6 = 128, 129
	unreachable4, port4      = 3, 3
	unreachable6, port6      = 1, 4
	echoHeader               = 8
)

// nonceSize is the length of what marks our packets, at the beginning of their
// payload. Who does not see them cannot know it, and so cannot make an answer.
const nonceSize = 16

// nonce is that of packets of one size: the last bit tells large from small.
func (p *prober) nonce(large bool) []byte {
	n := p.secret
	n[nonceSize-1] &^= 1
	if large {
		n[nonceSize-1] |= 1
	}
	return n[:]
}

// isOurs says whether a payload that came back is that of a packet of ours. least
// is how much of it there has to be: a router may cut what it quotes short
// (RFC 792 asks for 8 bytes behind the IP header, RFC 1812 for more).
func (p *prober) isOurs(payload []byte, large bool, least int) bool {
	n := min(len(payload), nonceSize)
	return n >= least && bytes.Equal(payload[:n], p.nonce(large)[:n])
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
	if p.is4() { // for IPv6 the kernel does it
		binary.BigEndian.PutUint16(b[2:], checksum(b))
	}
}

// parseEcho says whether a packet from a raw socket is a reply to one of our
// requests, and to one of which size.
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

// checksum is that of RFC 1071.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i]) << 8
		if i+1 < len(b) {
			sum += uint32(b[i+1])
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// isQuoted says whether an ICMP error is about a packet of ours: it quotes the
// beginning of that behind the IP header, of UDP the payload alone.
func (p *prober) isQuoted(s *socket, quote []byte) bool {
	if s.udp {
		return p.isOurs(quote, s.large, 0) // the kernel has found the socket by its port
	}
	return len(quote) >= echoHeader && bytes.Equal(quote[4:6], p.secret[:2]) && p.isOurs(quote[echoHeader:], s.large, 0)
}

// takeError takes in an error that came for a socket, with what it quotes: struct
// sock_extended_err, and behind it the address of who sent it.
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
			if s.large && !p.back { // else it is about our request
				p.noteMTU(info)
			}
		case origin == unix.SO_EE_ORIGIN_ICMP && kind == unreachable4 && code == port4,
			origin == unix.SO_EE_ORIGIN_ICMP6 && kind == unreachable6 && code == port6:
			// Only the destination itself knows its ports.
			p.answered(s.large)
		}
	}
}

// fragmentSize is the size of the largest fragment that a packet came in, 0 if
// it came whole.
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

// zoneID is the number of the device that an IPv6 address is scoped to.
func zoneID(address netip.Addr) uint32 {
	if device, err := net.InterfaceByName(address.Zone()); err == nil {
		return uint32(device.Index)
	}
	return 0
}

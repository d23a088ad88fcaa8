package link

import (
	"encoding/binary"

	"longhaul/internal/sys/checksum"
)

// The two bits of ECN in the IP header (RFC 3168, section 5) are the lowest of IPv4's
// second byte, and the middle ones of IPv6's. Both set are CE, congestion experienced;
// neither set is a transport without ECN.
const (
	ecnIPv4 = 0x03
	ecnIPv6 = 0x30
)

// ecnCapable reports whether a router may mark an IP packet, or has marked it.
func ecnCapable(packet []byte) bool {
	switch {
	case len(packet) >= ipv4MinHeader && packet[0]>>4 == 4:
		return packet[1]&ecnIPv4 != 0
	case len(packet) >= ipv6Header && packet[0]>>4 == 6:
		return packet[1]&ecnIPv6 != 0
	}
	return false
}

// markCE sets CE in an ECN-capable packet, and corrects the checksum of IPv4's header
// (RFC 1624, equation 3). No other checksum covers the two bits.
func markCE(packet []byte) {
	if packet[0]>>4 == 6 {
		packet[1] |= ecnIPv6
		return
	}
	was := binary.BigEndian.Uint16(packet)
	packet[1] |= ecnIPv4
	check := checksum.Add(^binary.BigEndian.Uint16(packet[10:]), ^was)
	binary.BigEndian.PutUint16(packet[10:], ^checksum.Add(check, binary.BigEndian.Uint16(packet)))
}

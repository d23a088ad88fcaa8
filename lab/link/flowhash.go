package link

import "encoding/binary"

// Protocols whose headers begin with two ports.
const (
	protocolTCP     = 6
	protocolUDP     = 17
	protocolDCCP    = 33
	protocolSCTP    = 132
	protocolUDPLite = 136
)

// moreFragmentsAndOffset are the bits of IPv4's flags and fragment offset that are
// set in fragments (RFC 791, section 3.1).
const moreFragmentsAndOffset = 0x3fff

// flowHash identifies a packet's flow: a hash of its addresses, protocol and ports
// under a seed. Fragments, and protocols without ports, count by addresses and
// protocol alone; so does IPv6 with extension headers. It is the FNV-1a hash of 64
// bits with a final mix.
func flowHash(packet []byte, seed uint64) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := offset ^ seed
	add := func(b []byte) {
		for _, v := range b {
			h = (h ^ uint64(v)) * prime
		}
	}
	ports := 0 // offset of the ports; 0: no ports
	var protocol byte
	switch {
	case len(packet) >= ipv4MinHeader && packet[0]>>4 == 4:
		add(packet[12:20])
		protocol = packet[9]
		if binary.BigEndian.Uint16(packet[6:])&moreFragmentsAndOffset == 0 {
			ports = int(packet[0]&0xf) * 4
		}
	case len(packet) >= ipv6Header && packet[0]>>4 == 6:
		add(packet[8:40])
		protocol, ports = packet[6], ipv6Header
	}
	add([]byte{protocol})
	switch protocol {
	case protocolTCP, protocolUDP, protocolDCCP, protocolSCTP, protocolUDPLite:
		if ports > 0 && len(packet) >= ports+4 {
			add(packet[ports : ports+4])
		}
	}
	// FNV's low bits depend on few bits of the last bytes.
	h ^= h >> 32
	h *= 0xd6e8feb86659fd93
	return h ^ h>>32
}

package link

import (
	"encoding/binary"

	"longhaul/internal/sys/checksum"
)

// alter flips a bit in the payload of a TCP segment over IPv4, and corrects its checksum, if
// the kernel has not left that to the receiver. It reports false if there is no such payload.
func (s *superPacket) alter(segment int) bool {
	p := s.packet
	if len(p) < ipv4MinHeader || p[0]>>4 != 4 || p[9] != protocolTCP {
		return false
	}
	tcp := int(p[0]&0xf) * 4
	if len(p) < tcp+tcpMinHeader {
		return false
	}
	from := tcp + int(p[tcp+12]>>4)*4
	to := len(p)
	if s.segments > 1 {
		from += segment * s.segmentBytes
		to = min(from+s.segmentBytes, len(p))
	}
	if to-from < 2 {
		return false
	}
	word := p[from+(to-from)/4*2:] // at an even distance from the header, as checksums count
	was := binary.BigEndian.Uint16(word)
	binary.BigEndian.PutUint16(word, was^1)
	if s.vnet.flags&vnetNeedsChecksum == 0 {
		check := p[tcp+tcpCheckOffset:]
		sum := checksum.Add(^binary.BigEndian.Uint16(check), ^was)
		binary.BigEndian.PutUint16(check, ^checksum.Add(sum, was^1))
	}
	return true
}

package link

import (
	"encoding/binary"

	"longhaul/internal/sys/checksum"
)

// superPacket is one IP packet from the kernel. With TCP segmentation offload
// it represents several packets on the wire, its segments; any other packet is
// its own only segment.
type superPacket struct {
	packet []byte // the IP packet
	vnet   vnetHeader

	segments     int
	headerLen    int // of IP and TCP, repeated in every segment; 0 with one segment
	segmentBytes int // TCP payload of every segment except the last

	flowID    uint64 // hash of the flow, once flowKnown
	flowKnown bool

	slab *slab
	refs int // segments still in the link
}

// maxHeaderLen bounds the headers of a super-packet: IPv6 with extensions, and
// TCP with options.
const maxHeaderLen = 256

const (
	tcpFlagsOffset = 13
	tcpFIN         = 0x01
	tcpPSH         = 0x08
	tcpCWR         = 0x80
	tcpCheckOffset = 16
	tcpMinHeader   = 20
	ipv4MinHeader  = 20
	ipv6Header     = 40
)

// parse sets up a super-packet. Anything except well-formed TCP that the kernel
// left to be segmented passes unchanged as a single packet.
func (s *superPacket) parse(packet []byte, h vnetHeader) {
	*s = superPacket{packet: packet, vnet: h, segments: 1}
	kind := h.gsoType &^ vnetGSOECN
	if kind != vnetGSOTCPv4 && kind != vnetGSOTCPv6 || h.gsoSize == 0 || h.flags&vnetNeedsChecksum == 0 {
		return
	}
	minHeader, version := ipv4MinHeader, uint8(4)
	if kind == vnetGSOTCPv6 {
		minHeader, version = ipv6Header, 6
	}
	tcp := int(h.csumStart)
	if len(packet) < minHeader || packet[0]>>4 != version || tcp < minHeader || len(packet) < tcp+tcpMinHeader ||
		h.csumOffset != tcpCheckOffset || version == 4 && int(packet[0]&0xf)*4 != tcp {
		return
	}
	headerLen := tcp + int(packet[tcp+12]>>4)*4
	if headerLen < tcp+tcpMinHeader || headerLen > min(maxHeaderLen, len(packet)) {
		return
	}
	payload := len(packet) - headerLen
	if payload <= int(h.gsoSize) {
		return
	}
	s.headerLen = headerLen
	s.segmentBytes = int(h.gsoSize)
	s.segments = (payload + s.segmentBytes - 1) / s.segmentBytes
}

// flow is the hash of the packet's flow under the seed of the first call.
func (s *superPacket) flow(seed uint64) uint64 {
	if !s.flowKnown {
		s.flowID, s.flowKnown = flowHash(s.packet, seed), true
	}
	return s.flowID
}

// segmentSize is the length in bytes of segment i as an IP packet.
func (s *superPacket) segmentSize(i int) int {
	if s.segments == 1 {
		return len(s.packet)
	}
	return s.headerLen + min(s.segmentBytes, len(s.packet)-s.headerLen-i*s.segmentBytes)
}

// slice describes the segments first to last as one packet, a super-packet if
// they are several, with CE if ce is set. Its bytes are head followed by body: head is
// written to the buffer, which has maxHeaderLen bytes; body is shared with s.
func (s *superPacket) slice(first, last int, ce bool, buffer []byte) (h vnetHeader, head, body []byte) {
	if first == 0 && last == s.segments-1 {
		if ce { // no other slice needs the header
			markCE(s.packet)
		}
		return s.vnet, nil, s.packet
	}
	from := s.headerLen + first*s.segmentBytes
	to := min(s.headerLen+(last+1)*s.segmentBytes, len(s.packet))
	head = buffer[:s.headerLen]
	copy(head, s.packet)
	if ce {
		markCE(head)
	}
	body = s.packet[from:to]
	h = s.vnet
	h.hdrLen = uint16(s.headerLen)

	tcp := head[h.csumStart:]
	seq := binary.BigEndian.Uint32(tcp[4:]) + uint32(first*s.segmentBytes)
	binary.BigEndian.PutUint32(tcp[4:], seq)
	if last < s.segments-1 {
		tcp[tcpFlagsOffset] &^= tcpFIN | tcpPSH
	}
	if first > 0 {
		tcp[tcpFlagsOffset] &^= tcpCWR
	}
	// The checksum field contains the sum over the pseudo-header, of which only
	// the TCP length changes.
	wasLen, isLen := uint16(len(s.packet)-int(h.csumStart)), uint16(len(tcp)+len(body))
	check := checksum.Add(checksum.Add(binary.BigEndian.Uint16(tcp[tcpCheckOffset:]), ^wasLen), isLen)
	binary.BigEndian.PutUint16(tcp[tcpCheckOffset:], check)

	if head[0]>>4 == 4 {
		ip := head[:h.csumStart]
		binary.BigEndian.PutUint16(ip[2:], uint16(len(head)+len(body)))
		// Linux numbers the segments of a super-packet in ascending order.
		binary.BigEndian.PutUint16(ip[4:], binary.BigEndian.Uint16(ip[4:])+uint16(first))
		ip[10], ip[11] = 0, 0
		binary.BigEndian.PutUint16(ip[10:], checksum.Of(ip))
	} else {
		binary.BigEndian.PutUint16(head[4:], uint16(len(head)-ipv6Header+len(body)))
	}

	if first > 0 {
		h.gsoType &^= vnetGSOECN
	}
	if first == last || len(body) <= s.segmentBytes {
		h.gsoType, h.gsoSize = vnetGSONone, 0
	}
	return h, head, body
}

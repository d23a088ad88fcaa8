package link

import "encoding/binary"

// vnetHeader is struct virtio_net_hdr (virtio 1.2, section 5.1.6). The kernel
// puts it before every packet of a TUN device or packet socket that requested
// it. Here, csumStart and hdrLen count from the first byte of the IP packet,
// regardless of the port's link-layer header.
type vnetHeader struct {
	flags      uint8
	gsoType    uint8
	hdrLen     uint16
	gsoSize    uint16 // payload bytes of every segment except the last
	csumStart  uint16
	csumOffset uint16
}

const (
	vnetHeaderLen = 10

	vnetNeedsChecksum = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM

	vnetGSONone  = 0
	vnetGSOTCPv4 = 1
	vnetGSOTCPv6 = 4
	vnetGSOECN   = 0x80 // the first segment carries CWR
)

// The header is in native byte order for TUN and packet sockets by default (a
// "legacy" device in virtio's terms).

func (h *vnetHeader) decode(b []byte) {
	_ = b[vnetHeaderLen-1]
	h.flags, h.gsoType = b[0], b[1]
	h.hdrLen = binary.NativeEndian.Uint16(b[2:])
	h.gsoSize = binary.NativeEndian.Uint16(b[4:])
	h.csumStart = binary.NativeEndian.Uint16(b[6:])
	h.csumOffset = binary.NativeEndian.Uint16(b[8:])
}

func (h *vnetHeader) encode(b []byte) {
	_ = b[vnetHeaderLen-1]
	b[0], b[1] = h.flags, h.gsoType
	binary.NativeEndian.PutUint16(b[2:], h.hdrLen)
	binary.NativeEndian.PutUint16(b[4:], h.gsoSize)
	binary.NativeEndian.PutUint16(b[6:], h.csumStart)
	binary.NativeEndian.PutUint16(b[8:], h.csumOffset)
}

// shift moves the offsets for a link-layer header of n bytes put before the IP
// packet, or removed if n is negative.
func (h *vnetHeader) shift(n int) {
	if h.flags&vnetNeedsChecksum != 0 {
		h.csumStart = uint16(int(h.csumStart) + n)
	}
	if h.hdrLen != 0 {
		h.hdrLen = uint16(int(h.hdrLen) + n)
	}
}

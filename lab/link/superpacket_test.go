package link

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// tcpSuperPacket builds a packet as a kernel passes it with segmentation
// offload, with all TCP flags set. tcpOptions is a multiple of 4 up to 40.
func tcpSuperPacket(version, payload, segment, tcpOptions int) ([]byte, vnetHeader) {
	ipLen := ipv4MinHeader
	if version == 6 {
		ipLen = ipv6Header
	}
	headerLen := ipLen + tcpMinHeader + tcpOptions
	payload = min(payload, 65535-headerLen)
	packet := make([]byte, headerLen+payload)
	r := rand.New(rand.NewPCG(uint64(payload), uint64(segment)))
	for i := range packet {
		packet[i] = byte(r.Uint32())
	}
	h := vnetHeader{flags: vnetNeedsChecksum, gsoType: vnetGSOTCPv4 | vnetGSOECN, hdrLen: uint16(headerLen),
		gsoSize: uint16(segment), csumStart: uint16(ipLen), csumOffset: tcpCheckOffset}
	if version == 4 {
		packet[0] = 0x45
		binary.BigEndian.PutUint16(packet[2:], uint16(len(packet)))
		packet[6], packet[7] = 0x40, 0
		packet[9] = 6
		packet[10], packet[11] = 0, 0
		binary.BigEndian.PutUint16(packet[10:], ^referenceSum(packet[:ipLen]))
	} else {
		h.gsoType = vnetGSOTCPv6 | vnetGSOECN
		packet[0] = 0x60 | packet[0]&0xf
		binary.BigEndian.PutUint16(packet[4:], uint16(len(packet)-ipv6Header))
		packet[6] = 6
	}
	tcp := packet[ipLen:]
	tcp[12] = byte((tcpMinHeader+tcpOptions)/4) << 4
	tcp[tcpFlagsOffset] = 0xff
	binary.BigEndian.PutUint16(tcp[tcpCheckOffset:], referenceSum(pseudoHeader(packet, ipLen)))
	return packet, h
}

// The reference: sums and segments by the text of the RFCs, one byte at a time.

func referenceSum(b []byte) uint16 {
	sum := 0
	for i, v := range b {
		if i%2 == 0 {
			sum += int(v) << 8
		} else {
			sum += int(v)
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

func pseudoHeader(packet []byte, ipLen int) []byte {
	var b []byte
	if packet[0]>>4 == 4 {
		b = append(b, packet[12:20]...)
	} else {
		b = append(b, packet[8:40]...)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(packet)-ipLen))
	return append(b, 0, 0, 0, 6)
}

// referenceSegments cuts a packet into its packets on the wire, each with full
// checksums.
func referenceSegments(packet []byte, ipLen, segment int) [][]byte {
	tcpLen := int(packet[ipLen+12]>>4) * 4
	header, payload := packet[:ipLen+tcpLen], packet[ipLen+tcpLen:]
	seq := binary.BigEndian.Uint32(header[ipLen+4:])
	var out [][]byte
	for offset := 0; offset < len(payload); offset += segment {
		end := min(offset+segment, len(payload))
		p := append(bytes.Clone(header), payload[offset:end]...)
		tcp := p[ipLen:]
		binary.BigEndian.PutUint32(tcp[4:], seq+uint32(offset))
		if end < len(payload) {
			tcp[13] &= 0xff - 0x01 - 0x08 // FIN and PSH belong to the last
		}
		if offset > 0 {
			tcp[13] &= 0xff - 0x80 // CWR belongs to the first
		}
		if p[0]>>4 == 4 {
			binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
			binary.BigEndian.PutUint16(p[4:], binary.BigEndian.Uint16(p[4:])+uint16(len(out)))
			p[10], p[11] = 0, 0
			binary.BigEndian.PutUint16(p[10:], ^referenceSum(p[:ipLen]))
		} else {
			binary.BigEndian.PutUint16(p[4:], uint16(len(p)-40))
		}
		tcp[16], tcp[17] = 0, 0
		binary.BigEndian.PutUint16(tcp[16:], ^referenceSum(append(pseudoHeader(p, ipLen), tcp...)))
		out = append(out, p)
	}
	return out
}

// referenceMark sets CE in a packet with full checksums.
func referenceMark(p []byte) {
	if p[0]>>4 == 6 {
		p[1] |= 0x30
		return
	}
	p[1] |= 3
	ipLen := int(p[0]&0xf) * 4
	p[10], p[11] = 0, 0
	binary.BigEndian.PutUint16(p[10:], ^referenceSum(p[:ipLen]))
}

// finish acts as the receiving kernel or its device. It completes the checksum
// of each segment from the partial one in the packet and its vnetHeader.
func finish(t *testing.T, h vnetHeader, packet []byte) [][]byte {
	t.Helper()
	if h.flags != vnetNeedsChecksum || h.csumOffset != tcpCheckOffset {
		t.Fatalf("vnet header %+v does not ask for a TCP checksum", h)
	}
	tcp := packet[h.csumStart:]
	partial := binary.BigEndian.Uint16(tcp[tcpCheckOffset:])
	if want := referenceSum(pseudoHeader(packet, int(h.csumStart))); partial != want && partial^want != 0xffff {
		t.Fatalf("sum over the pseudo-header %#x, want %#x", partial, want)
	}
	segment := int(h.gsoSize)
	switch h.gsoType &^ vnetGSOECN {
	case vnetGSONone:
		segment = 65535
	default:
		headerLen := int(h.csumStart) + int(tcp[12]>>4)*4
		if int(h.hdrLen) != headerLen || len(packet)-headerLen <= segment {
			t.Fatalf("vnet header %+v for a packet of %d bytes with headers of %d", h, len(packet), headerLen)
		}
	}
	return referenceSegments(packet, int(h.csumStart), segment)
}

func FuzzSlice(f *testing.F) {
	f.Add(false, uint16(14480), uint16(1448), uint8(3), uint64(0b1101110111))
	f.Add(true, uint16(60001), uint16(1428), uint8(0), ^uint64(0))
	f.Add(true, uint16(3), uint16(1), uint8(10), uint64(2))
	f.Add(false, uint16(65535), uint16(1400), uint8(10), uint64(0xaaaaaaaaaaaaaaaa))
	f.Fuzz(func(t *testing.T, v6 bool, payload, segment uint16, options uint8, keep uint64) {
		version, ipLen := 4, ipv4MinHeader
		if v6 {
			version, ipLen = 6, ipv6Header
		}
		if segment == 0 || int(payload)/int(segment) > 200 {
			return
		}
		packet, h := tcpSuperPacket(version, int(payload), int(segment), int(options%11)*4)
		s := new(superPacket)
		s.parse(bytes.Clone(packet), h)
		want := referenceSegments(packet, ipLen, int(segment))
		if len(want) <= 1 {
			if s.segments != 1 {
				t.Fatalf("%d segments of a packet that needs none", s.segments)
			}
			return
		}
		if s.segments != len(want) {
			t.Fatalf("%d segments, want %d", s.segments, len(want))
		}
		kept := func(i int) bool { return keep>>(i%64)&1 == 1 }
		marked := func(i int) bool { return keep>>(i/3%64)&1 == 0 }
		for i := range want {
			if marked(i) {
				referenceMark(want[i])
			}
		}
		var buffer [maxHeaderLen]byte
		for first := 0; first < s.segments; first++ {
			if s.segmentSize(first) != len(want[first]) {
				t.Fatalf("segment %d has %d bytes, want %d", first, s.segmentSize(first), len(want[first]))
			}
			if !kept(first) {
				continue
			}
			last := first
			for last+1 < s.segments && kept(last+1) && marked(last+1) == marked(first) && (keep>>63 == 1 || last-first < int(keep>>56)) {
				last++
			}
			h, head, body := s.slice(first, last, marked(first), buffer[:])
			if ecn := h.gsoType&vnetGSOECN != 0; ecn && first > 0 {
				t.Fatal("a later part claims to begin with CWR")
			}
			got := finish(t, h, append(bytes.Clone(head), body...))
			if len(got) != last-first+1 {
				t.Fatalf("segments %d to %d became %d", first, last, len(got))
			}
			for i := range got {
				if !bytes.Equal(got[i], want[first+i]) {
					t.Fatalf("segment %d of %d to %d:\n got %x\nwant %x", first+i, first, last, got[i], want[first+i])
				}
			}
			if whole := last-first+1 == s.segments; !whole && !bytes.Equal(s.packet, packet) {
				t.Fatal("the super-packet itself was changed")
			}
			first = last
		}
	})
}

// FuzzParse: no input makes the emulator read beyond the packet, and the
// segments add up.
func FuzzParse(f *testing.F) {
	for _, version := range []int{4, 6} {
		packet, h := tcpSuperPacket(version, 5000, 1448, 12)
		var b [vnetHeaderLen]byte
		h.encode(b[:])
		f.Add(b[:], packet)
	}
	f.Fuzz(func(t *testing.T, header, packet []byte) {
		if len(header) < vnetHeaderLen || len(packet) == 0 || len(packet) > 65535 {
			return
		}
		var h vnetHeader
		h.decode(header)
		var again [vnetHeaderLen]byte
		h.encode(again[:])
		if !bytes.Equal(again[:], header[:vnetHeaderLen]) {
			t.Fatalf("%x became %x", header[:vnetHeaderLen], again)
		}
		s := new(superPacket)
		s.parse(packet, h)
		payload := 0
		var buffer [maxHeaderLen]byte
		for i := range s.segments {
			payload += s.segmentSize(i) - s.headerLen
			_, head, body := s.slice(i, i, false, buffer[:])
			if len(head)+len(body) != s.segmentSize(i) {
				t.Fatalf("segment %d has %d bytes, sent are %d", i, s.segmentSize(i), len(head)+len(body))
			}
		}
		if payload != len(packet)-s.headerLen {
			t.Fatalf("segments hold %d bytes, the packet %d", payload, len(packet)-s.headerLen)
		}
	})
}

func TestParsePassesOddPacketsWhole(t *testing.T) {
	for _, test := range []struct {
		name  string
		spoil func(packet []byte, h *vnetHeader) []byte
	}{
		{"no offload", func(p []byte, h *vnetHeader) []byte { h.gsoType = 0; return p }},
		{"UDP offload", func(p []byte, h *vnetHeader) []byte { h.gsoType = 5; return p }},
		{"no segment size", func(p []byte, h *vnetHeader) []byte { h.gsoSize = 0; return p }},
		{"checksum complete", func(p []byte, h *vnetHeader) []byte { h.flags = 0; return p }},
		{"other version", func(p []byte, h *vnetHeader) []byte { p[0] = 0x65; return p }},
		{"TCP beyond the end", func(p []byte, h *vnetHeader) []byte { return p[:30] }},
		{"TCP header too short", func(p []byte, h *vnetHeader) []byte { p[32] = 0x40; return p }},
		{"encapsulated", func(p []byte, h *vnetHeader) []byte { h.csumStart = 44; return p }},
		{"one segment", func(p []byte, h *vnetHeader) []byte { return p[:40+1448] }},
	} {
		packet, h := tcpSuperPacket(4, 5000, 1448, 0)
		packet = test.spoil(packet, &h)
		s := new(superPacket)
		s.parse(packet, h)
		got, head, body := s.slice(0, 0, false, make([]byte, maxHeaderLen))
		if s.segments != 1 || s.segmentSize(0) != len(packet) || got != h || len(head) != 0 || !bytes.Equal(body, packet) {
			t.Errorf("%s: %d segments, vnet header %+v", test.name, s.segments, got)
		}
	}
}

package link

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// TestAlter holds that one bit of a segment's payload changes, and that the checksum fits.
func TestAlter(t *testing.T) {
	for _, c := range []struct {
		name     string
		payload  int
		segment  int
		finished bool // the checksum is in the packet
		want     bool
	}{
		{"the sender's checksum", 1448, 0, true, true},
		{"left to the receiver", 1448, 0, false, true},
		{"the last of three segments", 2*1448 + 7, 2, false, true},
		{"no payload", 0, 0, false, false},
		{"one byte", 1, 0, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			packet, h := tcpSuperPacket(4, c.payload, 1448, 0)
			var s superPacket
			s.parse(packet, h)
			tcp := packet[ipv4MinHeader:]
			if c.finished {
				s.vnet.flags = 0
				fill(packet)
			}
			before := bytes.Clone(packet)
			if got := s.alter(c.segment); got != c.want {
				t.Fatalf("altered %v, want %v", got, c.want)
			}
			changed := 0
			from := len(packet) - c.payload
			for i := from; i < len(packet); i++ {
				if packet[i] == before[i] {
					continue
				}
				changed++
				if at := (i - from) / 1448; at != c.segment {
					t.Errorf("segment %d changed, want %d", at, c.segment)
				}
			}
			if (changed == 1) != c.want || !c.finished && !bytes.Equal(before[:from], packet[:from]) {
				t.Errorf("%d bytes of the payload changed", changed)
			}
			if c.finished && referenceSum(append(pseudoHeader(packet, ipv4MinHeader), tcp...)) != 0xffff {
				t.Error("the checksum shows the change")
			}
		})
	}
}

// fill puts the checksum of TCP into a packet over IPv4, which has that of the pseudo-header.
func fill(packet []byte) {
	tcp := packet[ipv4MinHeader:]
	binary.BigEndian.PutUint16(tcp[tcpCheckOffset:], ^referenceSum(tcp))
}

package examine

import (
	"encoding/binary"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"longhaul/internal/words/remedy"
)

// words makes bytes of numbers of two bytes.
func words(all ...uint16) (b []byte) {
	for _, w := range all {
		b = binary.BigEndian.AppendUint16(b, w)
	}
	return b
}

// ipPacket makes a packet of IPv4 from one of two hosts to the other.
func ipPacket(from byte, protocol byte, payload ...[]byte) []byte {
	all := slices.Concat(payload...)
	head := slices.Concat([]byte{0x45, 0}, words(uint16(20+len(all)), 7, 0), []byte{64, protocol, 0, 0, 10, 0, 0, from, 10, 0, 0, 3 - from})
	return append(head, all...)
}

// tcpPacket makes a packet between port 40000 of host 1 and port 80 of host 2.
func tcpPacket(from byte, seq, ack uint16, flags byte, bytes int) []byte {
	ports := words(40000, 80)
	if from == 2 {
		ports = words(80, 40000)
	}
	var options []byte
	if flags&2 != 0 {
		options = []byte{2, 4, 5, 180, 1, 3, 3, 7}
	}
	return ipPacket(from, 6, ports, words(0, seq, 0, ack), []byte{byte(5+len(options)/4) << 4, flags}, words(1000, 0, 0), options, make([]byte, bytes))
}

// file makes a capture of a link type, with packets cut to a length.
func file(link uint32, snap int, packets ...[]byte) []byte {
	order := binary.LittleEndian
	numbers := func(all ...uint32) (b []byte) {
		for _, n := range all {
			b = order.AppendUint32(b, n)
		}
		return b
	}
	b := numbers(0xa1b2c3d4, 2|4<<16, 0, 0, uint32(snap), link)
	for i, p := range packets {
		data := p[:min(len(p), snap)]
		b = slices.Concat(b, numbers(1000, uint32(1000*i), uint32(len(data)), uint32(len(p))), data)
	}
	return b
}

func repeat(n int, packet []byte) (all [][]byte) {
	for range n {
		all = append(all, packet)
	}
	return all
}

const raw = 101

// TestCaptureSaysWhatItHas has captures without a connection that can be examined: the
// errors say what they have, and the remedy fits.
func TestCaptureSaysWhatItHas(t *testing.T) {
	wireguard := slices.Concat(words(51820, 51820, 8+64, 0), []byte{4, 0, 0, 0}, make([]byte, 60))
	simple := func(packet []byte) []byte {
		order := binary.LittleEndian
		block := func(kind uint32, body []byte) []byte {
			b := order.AppendUint32(order.AppendUint32(nil, kind), uint32(12+len(body)))
			return order.AppendUint32(append(b, body...), uint32(12+len(body)))
		}
		section := append(order.AppendUint32(nil, 0x1a2b3c4d), 1, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255)
		return slices.Concat(block(0x0a0d0d0a, section), block(1, []byte{raw, 0, 0, 0, 0, 0, 0, 0}),
			block(3, append(order.AppendUint32(nil, uint32(len(packet))), packet...)))
	}
	handshake := [][]byte{tcpPacket(1, 0, 0, 2, 0), tcpPacket(2, 0, 1, 0x12, 0), tcpPacket(1, 1, 1, 0x10, 0), tcpPacket(1, 1, 1, 0x10, 1000), tcpPacket(2, 1, 1001, 0x10, 0)}
	var oneWay [][]byte
	for i := range uint16(60) {
		oneWay = append(oneWay, tcpPacket(1, 1+1400*(i%40), 1, 0x10, 1400))
	}
	oneWay = slices.Concat(handshake[:1], oneWay[:40])
	for name, test := range map[string]struct {
		file       []byte
		local      End
		err        string
		fix        string
		note       string
		withoutErr bool
	}{
		"empty":         {file: file(raw, 128), err: "no packet is in the capture", fix: "while data are moving"},
		"UDP":           {file: file(raw, 128, ipPacket(1, 17, words(1, 2, 8, 0))), err: "no TCP packet is in the capture: it has 1 packet of UDP", fix: "tcpdump -i DEVICE"},
		"WireGuard":     {file: file(raw, 128, append(repeat(3, ipPacket(1, 17, wireguard)), ipPacket(1, 1, make([]byte, 8)))...), err: "it has 3 packets of WireGuard and 1 packet of ICMP", fix: "inside of the tunnel"},
		"GRE":           {file: file(raw, 128, ipPacket(1, 47, words(0, 0xabcd), make([]byte, 40))), err: "1 packet of GRE with unknown content", fix: "inside of the tunnel"},
		"headers cut":   {file: file(raw, 30, repeat(4, tcpPacket(1, 0, 0, 2, 0))...), err: "4 packets with headers cut by the snap length", fix: "tcpdump -s 128"},
		"fragments":     {file: file(raw, 128, fragment(tcpPacket(1, 0, 0, 2, 0))), err: "1 fragment of IP packets", fix: "before they are fragmented"},
		"without times": {file: simple(tcpPacket(1, 0, 0, 2, 0)), err: "1 packet without a time (simple packet blocks)", fix: "tcpdump -w"},
		"802.11":        {file: file(105, 128, make([]byte, 60)), err: "unsupported link type 802.11 (105)", fix: "on the wired side"},
		"USB":           {file: file(220, 128, make([]byte, 60)), err: "unsupported link type USB (220)", fix: "Ethernet or IP"},
		"other ends":    {file: file(raw, 128, handshake...), local: End{Addresses: []netip.Addr{netip.MustParseAddr("10.9.9.9")}}, err: "5 packets of TCP between other ends", fix: "leave --local and --remote out"},
		"one direction": {file: file(raw, 128, oneWay...), err: "one direction only: 56000 bytes from 10.0.0.1:40000 to 10.0.0.2:80, and no packet back", fix: "both directions"},
		"options cut":   {file: file(raw, 40, handshake...), note: "cuts off the options of the handshake", withoutErr: true},
		"handshake":     {file: file(raw, 128, handshake[3:]...), note: "lacks the handshake", withoutErr: true},
		"many left out": {file: file(raw, 128, append(repeat(9, ipPacket(1, 17, wireguard)), handshake...)...), note: "the capture also has 9 packets of WireGuard", withoutErr: true},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "capture.pcap")
			if err := os.WriteFile(path, test.file, 0o600); err != nil {
				t.Fatal(err)
			}
			var notes []string
			e := Examiner{Progress: func(string, ...any) {}, Note: func(err error) { notes = append(notes, err.Error()) }}
			_, err := e.Capture(t.Context(), []string{path}, test.local, End{})
			if test.withoutErr != (err == nil) || err != nil && (!strings.Contains(err.Error(), test.err) || !strings.Contains(remedy.Of(err), test.fix)) {
				t.Errorf("got %v, hint: %s", err, remedy.Of(err))
			}
			if all := strings.Join(notes, "\n"); test.note != "" && !strings.Contains(all, test.note) || strings.Contains(remedy.Of(err), "--local") != (name == "other ends") {
				t.Errorf("notes: %s", all)
			}
		})
	}
}

// fragment marks a packet as the first of several.
func fragment(packet []byte) []byte {
	packet[6] = 0x20
	return packet
}

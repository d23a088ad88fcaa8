package pcap

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"longhaul/internal/sys/tcpinfo"
	"longhaul/test/nettest"
)

// wrap puts headers around an IP packet of an end.
type wrap func(ip []byte, from int) []byte

// words makes bytes of numbers of two bytes.
func words(all ...uint16) (b []byte) {
	for _, w := range all {
		b = binary.BigEndian.AppendUint16(b, w)
	}
	return b
}

// ethernet makes a frame of an Ethernet type.
func ethernet(kind uint16, payload ...[]byte) []byte {
	return slices.Concat([]byte{0xac, 1, 2, 3, 4, 1, 0xac, 1, 2, 3, 4, 2}, words(kind), slices.Concat(payload...))
}

// ofIP is the Ethernet type of an IP packet.
func ofIP(ip []byte) uint16 {
	if ip[0]>>4 == 6 {
		return 0x86dd
	}
	return 0x0800
}

// outer4 and outer6 make IP packets of routers.
func outer4(protocol byte, payload ...[]byte) []byte {
	all := slices.Concat(payload...)
	return slices.Concat([]byte{0x45, 0}, words(uint16(20+len(all)), 7, 0), []byte{64, protocol, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2}, all)
}

func outer6(next byte, payload ...[]byte) []byte {
	all := slices.Concat(payload...)
	addresses := [32]byte{0x20, 1, 0xd, 0xb8, 15: 1, 16: 0x20, 17: 1, 18: 0xd, 19: 0xb8, 31: 2}
	return slices.Concat([]byte{0x60, 0, 0, 0}, words(uint16(len(all))), []byte{next, 64}, addresses[:], all)
}

func udp(port uint16, payload ...[]byte) []byte {
	all := slices.Concat(payload...)
	return slices.Concat(words(50000, port, uint16(8+len(all)), 0), all)
}

// protocolOf is the IP protocol of an IP packet within another.
func protocolOf(ip []byte) byte {
	if ip[0]>>4 == 6 {
		return 41
	}
	return 4
}

func label(n uint32, bottom bool) []byte {
	n = n<<12 | 64
	if bottom {
		n |= 0x100
	}
	return binary.BigEndian.AppendUint32(nil, n)
}

// wrappings are what may be around an IP packet, with the name of the network.
var wrappings = map[string]struct {
	wrap    wrap
	network string
	tshark  []string // what it needs to decode it
}{
	"plain":       {wrap: func(ip []byte, _ int) []byte { return ethernet(ofIP(ip), ip) }},
	"priority":    {wrap: func(ip []byte, _ int) []byte { return ethernet(0x8100, words(0xa000, ofIP(ip)), ip) }},
	"VLAN":        {network: "VLAN 5", wrap: func(ip []byte, _ int) []byte { return ethernet(0x8100, words(5, ofIP(ip)), ip) }},
	"802.1ad":     {network: "VLAN 9, VLAN 5", wrap: func(ip []byte, _ int) []byte { return ethernet(0x88a8, words(9, 0x8100, 5, ofIP(ip)), ip) }},
	"QinQ 0x9100": {network: "VLAN 9, VLAN 5", wrap: func(ip []byte, _ int) []byte { return ethernet(0x9100, words(9, 0x8100, 5, ofIP(ip)), ip) }},
	"QinQ 0x9200": {network: "VLAN 9, VLAN 5", tshark: []string{"-d", "ethertype==0x9200,vlan"}, wrap: func(ip []byte, _ int) []byte { return ethernet(0x9200, words(9, 0x8100, 5, ofIP(ip)), ip) }},
	"SNAP": {wrap: func(ip []byte, _ int) []byte {
		return ethernet(uint16(8+len(ip)), []byte{0xaa, 0xaa, 3, 0, 0, 0}, words(ofIP(ip)), ip)
	}},
	"MPLS": {network: "MPLS", wrap: func(ip []byte, from int) []byte { return ethernet(0x8847, label(16+uint32(from), true), ip) }},
	"MPLS of labels": {network: "MPLS", wrap: func(ip []byte, _ int) []byte {
		return ethernet(0x8847, label(16, false), label(17, false), label(18, true), ip)
	}},
	"PPPoE":         {network: "PPPoE 7", wrap: pppoe},
	"IP in IP":      {network: "IP in IP", wrap: func(ip []byte, _ int) []byte { return ethernet(0x800, outer4(protocolOf(ip), ip)) }},
	"IP in IPv6":    {network: "IP in IP", wrap: func(ip []byte, _ int) []byte { return ethernet(0x86dd, outer6(protocolOf(ip), ip)) }},
	"GRE":           {network: "GRE", wrap: func(ip []byte, _ int) []byte { return ethernet(0x800, outer4(47, words(0, ofIP(ip)), ip)) }},
	"GRE over IPv6": {network: "GRE", wrap: func(ip []byte, _ int) []byte { return ethernet(0x86dd, outer6(47, words(0, ofIP(ip)), ip)) }},
	"GRE with fields": {network: "GRE 77", wrap: func(ip []byte, _ int) []byte {
		return ethernet(0x800, outer4(47, words(0xb000, ofIP(ip), 0, 0, 0, 77, 0, 1), ip))
	}},
	"GRE of Ethernet": {network: "GRE 77, VLAN 5", wrap: func(ip []byte, _ int) []byte {
		return ethernet(0x800, outer4(47, words(0x2000, 0x6558, 0, 77), ethernet(0x8100, words(5, ofIP(ip)), ip)))
	}},
	"GRE of MPLS": {network: "GRE, MPLS", wrap: func(ip []byte, _ int) []byte {
		return ethernet(0x800, outer4(47, words(0, 0x8847), label(16, true), ip))
	}},
	"MPLS in IP": {network: "MPLS", wrap: func(ip []byte, _ int) []byte { return ethernet(0x800, outer4(137, label(16, true), ip)) }},
	"PPTP": {network: "GRE", wrap: func(ip []byte, from int) []byte {
		return ethernet(0x800, outer4(47, words(0x3001, 0x880b, uint16(4+len(ip)), uint16(from), 0, 1), []byte{0xff, 3}, words(pppOf(ip)), ip))
	}},
	"ERSPAN type II": {wrap: func(ip []byte, _ int) []byte {
		return ethernet(0x800, outer4(47, words(0x1000, 0x88be, 0, 1, 0x1005, 7, 0, 0), ethernet(ofIP(ip), ip)))
	}},
	"ERSPAN type III": {wrap: func(ip []byte, _ int) []byte {
		return ethernet(0x800, outer4(47, words(0x1000, 0x22eb, 0, 1, 0x2005, 7, 0, 0, 0, 0), ethernet(ofIP(ip), ip)))
	}},
	"VXLAN":          {network: "VXLAN 42", wrap: func(ip []byte, _ int) []byte { return ethernet(0x800, outer4(17, udp(4789, vxlan(ip)))) }},
	"VXLAN of Linux": {network: "VXLAN 42", tshark: []string{"-d", "udp.port==8472,vxlan"}, wrap: func(ip []byte, _ int) []byte { return ethernet(0x86dd, outer6(17, udp(8472, vxlan(ip)))) }},
	"Geneve":         {network: "Geneve 42", wrap: func(ip []byte, _ int) []byte { return ethernet(0x800, outer4(17, udp(6081, geneve(ip, 0)))) }},
	"Geneve with as many options as there may be": {network: "Geneve 42", wrap: func(ip []byte, _ int) []byte { return ethernet(0x800, outer4(17, udp(6081, geneve(ip, 63)))) }},
	"Geneve of IP": {network: "Geneve 42", wrap: func(ip []byte, _ int) []byte {
		return ethernet(0x800, outer4(17, udp(6081, words(0, ofIP(ip), 0, 42<<8), ip)))
	}},
	"GTP-U": {network: "GTP", wrap: func(ip []byte, from int) []byte {
		return ethernet(0x800, outer4(17, udp(2152, []byte{0x30, 255}, words(uint16(len(ip)), 0, uint16(7+from)), ip)))
	}},
	"GTP-U with more fields": {network: "GTP", wrap: func(ip []byte, from int) []byte {
		more := []byte{0, 1, 0, 0x85, 1, 0, 9, 0x85, 2, 0, 0, 0, 0, 0, 0, 0}
		return ethernet(0x800, outer4(17, udp(2152, []byte{0x36, 255}, words(uint16(len(more)+len(ip)), 0, uint16(7+from)), more, ip)))
	}},
	"authentication": {wrap: func(ip []byte, _ int) []byte {
		// Between the IP header and TCP's.
		n, next := 20, 9
		if ip[0]>>4 == 6 {
			n, next = 40, 6
		}
		head := slices.Clone(ip[:n])
		head[next] = 51
		if n == 20 {
			binary.BigEndian.PutUint16(head[2:], uint16(len(ip)+24))
		} else {
			binary.BigEndian.PutUint16(head[4:], uint16(len(ip)-40+24))
		}
		return ethernet(ofIP(ip), head, []byte{6, 4}, make([]byte, 22), ip[n:])
	}},
	"all of them": {network: "VLAN 9, MPLS, GRE 77, VXLAN 42", wrap: func(ip []byte, _ int) []byte {
		return ethernet(0x88a8, words(9, 0x8847), label(16, true), outer4(47, words(0x2000, 0x800, 0, 77), outer4(17, udp(4789, vxlan(ip)))))
	}},
}

func pppOf(ip []byte) uint16 {
	if ip[0]>>4 == 6 {
		return 0x57
	}
	return 0x21
}

func pppoe(ip []byte, _ int) []byte {
	return ethernet(0x8864, []byte{0x11, 0}, words(7, uint16(2+len(ip)), pppOf(ip)), ip)
}

func vxlan(ip []byte) []byte {
	return slices.Concat(words(0x0800, 0, 0, 42<<8), ethernet(ofIP(ip), ip))
}

// geneve makes a header with options of four bytes.
func geneve(ip []byte, options uint16) []byte {
	head := words(options<<8, 0x6558, 0, 42<<8)
	for range options {
		head = append(head, words(0x0102, 0)...)
	}
	return slices.Concat(head, ethernet(ofIP(ip), ip))
}

// wrapped is a capture of a short connection in a wrapping.
func wrapped(t testing.TB, six bool, w wrap) *capture {
	c := newCapture(t)
	c.six = six
	c.handshake().add(
		seg{ms: 110, from: client, flags: "A", seq: 1, ack: 1, bytes: 1348},
		seg{ms: 111, from: client, flags: "PA", seq: 1349, ack: 1, bytes: 100},
		seg{ms: 212, from: server, flags: "A", seq: 1, ack: 1449},
	)
	c.wrap(w)
	return c
}

// wrap puts headers around all packets.
func (c *capture) wrap(w wrap) {
	c.link = linkEthernet
	for i := range c.records {
		r := &c.records[i]
		r.data = w(r.data, c.sender(r.data))
		r.wire = len(r.data)
	}
}

// sender is the end that sent an IP packet.
func (c *capture) sender(ip []byte) int {
	source := ip[12:16]
	if ip[0]>>4 == 6 {
		source = ip[8:24]
	}
	if bytes.Equal(source, c.addresses()[client].Addr().AsSlice()) {
		return client
	}
	return server
}

func TestWrappings(t *testing.T) {
	for name, test := range wrappings {
		for _, six := range []bool{false, true} {
			want := wrapped(t, six, wrappings["plain"].wrap).read()
			want.Network = test.network
			c := wrapped(t, six, test.wrap)
			for _, snap := range []int{400, 65535} {
				result, err := Read(bytes.NewReader(c.file(snap)), Options{})
				if err != nil || len(result.Connections) != 1 {
					t.Errorf("%s, IPv6 %v: %v, left out %+v", name, six, err, result.LeftOut)
					continue
				}
				if diff := cmp.Diff(want, result.Connections[0], cmp.AllowUnexported(tcpinfo.Info{}), cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
					t.Errorf("%s, IPv6 %v: %s", name, six, diff)
				}
			}
			// With any part of it missing, nothing is made up.
			for snap := range 400 {
				result, err := Read(bytes.NewReader(c.file(snap)), Options{})
				if err != nil && len(result.Connections) == 0 && result.LeftOut.HeadersCut == result.Packets {
					continue
				}
				if err != nil || len(result.Connections) != 1 || result.Connections[0].Network != test.network || result.Connections[0].Directions[client].Delivered != 1448 {
					t.Errorf("%s, IPv6 %v, cut after %d bytes: %v, left out %+v", name, six, snap, err, result.LeftOut)
					break
				}
			}
		}
	}
}

// TestWrappingsAsTshark compares the packets with those that tshark finds.
func TestWrappingsAsTshark(t *testing.T) {
	program := nettest.RequireProgram(t, "tshark", "tshark")
	all := newCapture(t)
	all.link = linkEthernet
	file := filepath.Join(t.TempDir(), "capture.pcap")
	args := []string{"-n", "-r", file, "-Y", "tcp.port==40000 && tcp.port==80", "-T", "fields", "-e", "frame.number"}
	var of []string // the wrapping of each packet
	for name, test := range wrappings {
		args = append(args, test.tshark...)
		for _, six := range []bool{false, true} {
			for _, r := range wrapped(t, six, test.wrap).records {
				all.records = append(all.records, r)
				of = append(of, fmt.Sprintf("%s, IPv6 %v", name, six))
			}
		}
	}
	must(t, os.WriteFile(file, all.file(65535), 0o600))
	out, err := exec.Command(program, args...).Output()
	must(t, err)
	want, got := map[string]int{}, map[string]int{}
	for _, line := range strings.Fields(string(out)) {
		frame, err := strconv.Atoi(line)
		must(t, err)
		want[of[frame-1]]++
	}
	var d decoder
	for i, r := range all.records {
		if d.decode(record{data: r.data, wire: r.wire, link: all.link}, &packet{}) == isTCP {
			got[of[i]]++
		}
	}
	if diff := cmp.Diff(want, got); diff != "" || len(got) != 2*len(wrappings) {
		t.Errorf("packets of TCP by tshark, and here: %s", diff)
	}
}

// TestContent names what packets without TCP carry.
func TestContent(t *testing.T) {
	wireguard := make([]byte, 64)
	wireguard[0] = 4
	many := bytes.Repeat(label(16, false), 2*maxHeaders)
	for want, packet := range map[string][]byte{
		"ARP":                         ethernet(0x806, make([]byte, 28)),
		"LLDP":                        ethernet(0x88cc, make([]byte, 28)),
		"LLC":                         ethernet(30, []byte{0x42, 0x42, 3}, make([]byte, 27)),
		otherType:                     ethernet(0x1234, make([]byte, 28)),
		"PPPoE discovery":             ethernet(0x8863, make([]byte, 28)),
		"PPP with other content":      ethernet(0x8864, []byte{0x11, 0}, words(7, 6, 0xc021, 0x0900, 4)),
		"ICMP":                        ethernet(0x800, outer4(1, make([]byte, 8))),
		"IGMP":                        ethernet(0x800, outer4(2, make([]byte, 8))),
		"IPsec (ESP)":                 ethernet(0x86dd, outer6(50, make([]byte, 40))),
		"SCTP":                        ethernet(0x800, outer4(132, make([]byte, 40))),
		"another IP protocol":         ethernet(0x800, outer4(89, make([]byte, 40))),
		"UDP":                         ethernet(0x800, outer4(17, udp(9999, make([]byte, 40)))),
		"DNS":                         ethernet(0x800, outer4(17, udp(53, make([]byte, 40)))),
		"OpenVPN":                     ethernet(0x800, outer4(17, udp(1194, make([]byte, 40)))),
		"WireGuard":                   ethernet(0x800, outer4(17, udp(51820, wireguard))),
		"GRE with unknown content":    ethernet(0x800, outer4(47, words(0, 0xabcd), make([]byte, 40))),
		"MPLS with unknown content":   ethernet(0x8847, label(16, true), make([]byte, 40)),
		"Geneve with unknown content": ethernet(0x800, outer4(17, udp(6081, words(0, 0x1234, 0, 0), make([]byte, 40)))),
		"more headers than are read":  ethernet(0x8847, many),
	} {
		c := newCapture(t)
		c.link = linkEthernet
		c.records = append(c.records, madeRecord{data: packet, wire: len(packet), at: epoch})
		result, err := Read(bytes.NewReader(c.file(65535)), Options{})
		if err == nil || result.LeftOut.Content[want] != 1 {
			t.Errorf("%s: %v, left out %+v", want, err, result.LeftOut)
		}
	}
}

// TestNetworks has the same addresses and ports in two networks, and one connection whose
// ends send in two.
func TestNetworks(t *testing.T) {
	vlan := func(id uint16) wrap {
		return func(ip []byte, _ int) []byte { return ethernet(0x8100, words(id, ofIP(ip)), ip) }
	}
	plain := wrappings["plain"].wrap
	both := func(a, b wrap) wrap {
		return func(ip []byte, from int) []byte {
			if from == client {
				return a(ip, from)
			}
			return b(ip, from)
		}
	}
	// Another connection, or the same packets again, half a millisecond later.
	join := func(a, b *capture) *capture {
		for _, r := range b.records {
			r.at = r.at.Add(500 * time.Microsecond)
			a.records = append(a.records, r)
		}
		slices.SortStableFunc(a.records, func(a, b madeRecord) int { return a.at.Compare(b.at) })
		return a
	}
	other := func(w wrap) *capture {
		c := newCapture(t)
		c.isn = [2]uint32{3_000_000_000, 2_000_000_000}
		c.handshake().add(
			seg{ms: 110, from: client, flags: "A", seq: 1, ack: 1, bytes: 1000},
			seg{ms: 212, from: server, flags: "A", seq: 1, ack: 1001},
		)
		c.wrap(w)
		return c
	}
	withoutStart := func(c *capture) *capture {
		c.records = c.records[3:]
		return c
	}
	for name, test := range map[string]struct {
		c    *capture
		want map[string]int64 // delivered by network
	}{
		"two VLANs":                      {join(wrapped(t, false, vlan(5)), other(vlan(6))), map[string]int64{"VLAN 5": 1448, "VLAN 6": 1000}},
		"two VLANs, without start":       {join(withoutStart(wrapped(t, false, vlan(5))), withoutStart(other(vlan(6)))), map[string]int64{"VLAN 5": 1448, "VLAN 6": 1000}},
		"a router between two VLANs":     {join(wrapped(t, false, both(vlan(5), vlan(6))), wrapped(t, false, both(vlan(6), vlan(5)))), map[string]int64{"VLAN 5": 1448, "VLAN 6": 1448}},
		"a VLAN for each direction":      {wrapped(t, false, both(vlan(5), vlan(6))), map[string]int64{"VLAN 5 and VLAN 6": 1448}},
		"the same without start":         {withoutStart(wrapped(t, false, both(vlan(5), vlan(6)))), map[string]int64{"VLAN 5 and VLAN 6": 1448}},
		"a tunnel for requests":          {wrapped(t, false, both(wrappings["IP in IP"].wrap, plain)), map[string]int64{"IP in IP and none": 1448}},
		"tagged and untagged":            {join(wrapped(t, false, plain), wrapped(t, false, vlan(5))), map[string]int64{"": 1448, "VLAN 5": 1448}},
		"one direction of each, strange": {join(oneWay(withoutStart(wrapped(t, false, vlan(5))), client), oneWay(withoutStart(other(vlan(6))), server)), map[string]int64{"VLAN 5": 0, "VLAN 6": 0}},
	} {
		t.Run(name, func(t *testing.T) {
			result, err := Read(bytes.NewReader(test.c.file(65535)), Options{})
			must(t, err)
			got := map[string]int64{}
			for _, c := range result.Connections {
				got[c.Network] = c.Directions[client].Delivered
				if d := &c.Directions[client]; d.Retransmitted != 0 || d.Reordered != 0 || d.Stray != 0 {
					t.Errorf("%s: %+v", c.Network, d)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" || result.LeftOut.Duplicates != 0 {
				t.Errorf("%s\nleft out %+v", diff, result.LeftOut)
			}
		})
	}
}

// oneWay leaves the packets of one end.
func oneWay(c *capture, from int) *capture {
	c.records = slices.DeleteFunc(c.records, func(r madeRecord) bool { return c.sender(r.data[18:]) != from })
	return c
}

// FuzzHeaders decodes any packet within bounds.
func FuzzHeaders(f *testing.F) {
	for _, test := range wrappings {
		for _, six := range []bool{false, true} {
			for _, r := range wrapped(f, six, test.wrap).records[:2] {
				f.Add(r.data, uint8(linkEthernet), uint16(0))
			}
		}
	}
	for link := range readable {
		c := newCapture(f)
		c.link = link
		f.Add(c.handshake().records[0].data, uint8(link), uint16(100))
	}
	f.Fuzz(func(t *testing.T, data []byte, link uint8, more uint16) {
		var d decoder
		var p packet
		v := d.decode(record{data: data, wire: len(data) + int(more), link: linkType(link)}, &p)
		if len(d.places) > maxHeaders {
			t.Errorf("%d headers", len(d.places))
		}
		if v == isTCP && (p.payload < 0 || !p.src.IsValid() || !p.dst.IsValid() || p.sacks > len(p.sack)) {
			t.Errorf("%+v", p)
		}
		if (v == notTCP) != (d.content != "") {
			t.Errorf("verdict %d with content %q", v, d.content)
		}
		for i, at := range d.places {
			if at.at > len(data) || i > 0 && at.at < d.places[i-1].at {
				t.Errorf("headers %+v in %d bytes", d.places, len(data))
			}
		}
	})
}

func TestParts(t *testing.T) {
	l := LeftOut{
		Unwanted: 3, Fragments: 11, HeadersCut: 1, Malformed: 2, WithoutTime: 4,
		UnreadLinkPackets: 5, UnreadLinkTypes: []string{"USB", "NFLOG"}, Content: map[string]int64{"UDP": 20, "WireGuard": 6},
	}
	var got, hidden []string
	for _, p := range l.Parts() {
		got = append(got, p.String())
		if p.HidesTCP() {
			hidden = append(hidden, string(p.Reason))
		}
	}
	want := []string{
		"20 packets of UDP", "11 fragments of IP packets", "6 packets of WireGuard", "5 packets of USB and NFLOG",
		"4 packets without a time (simple packet blocks)", "3 packets of TCP between other ends", "2 packets with an invalid header",
		"1 packet with headers cut by the snap length",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if want := []string{"fragment", "not TCP", "link type", "without a time", "headers cut"}; !slices.Equal(hidden, want) {
		t.Errorf("TCP may be in %q, want %q", hidden, want)
	}
}

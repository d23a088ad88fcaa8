package pcap

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"longhaul/internal/find/doctor"
	"longhaul/internal/sys/tcpinfo"
)

// capture is a handmade capture file of connections between client port 40000
// and server port 80.
type capture struct {
	t       testing.TB
	link    linkType
	six     bool
	between []gopacket.SerializableLayer // headers between IPv6's and TCP's
	isn     [2]uint32                    // of client and server
	records []madeRecord
	ipID    uint16
	port    uint16 // of the client; 0: 40000
}

type madeRecord struct {
	data []byte
	wire int
	at   time.Time
}

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newCapture(t testing.TB) *capture {
	return &capture{t: t, link: linkRaw, isn: [2]uint32{1000, 5000}}
}

const client, server = 0, 1

// seg is a segment; its numbers count from the SYN, which is 0.
type seg struct {
	ms       float64 // since the beginning
	from     int
	flags    string // of SFRPAEC
	seq, ack uint32
	bytes    int
	window   uint16
	options  []layers.TCPOption
	sameID   bool // same identification as the previous packet
}

func mssOption(n uint16) layers.TCPOption {
	return layers.TCPOption{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: binary.BigEndian.AppendUint16(nil, n)}
}

func scaleOption(n byte) layers.TCPOption {
	return layers.TCPOption{OptionType: layers.TCPOptionKindWindowScale, OptionLength: 3, OptionData: []byte{n}}
}

func sackPermitted() layers.TCPOption {
	return layers.TCPOption{OptionType: layers.TCPOptionKindSACKPermitted, OptionLength: 2}
}

func stampOption(value, echo uint32) layers.TCPOption {
	return layers.TCPOption{OptionType: layers.TCPOptionKindTimestamps, OptionLength: 10, OptionData: binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, value), echo)}
}

// sackOption makes blocks of the other end's numbers.
func (c *capture) sackOption(from int, edges ...uint32) layers.TCPOption {
	var b []byte
	for _, e := range edges {
		b = binary.BigEndian.AppendUint32(b, c.isn[1-from]+e)
	}
	return layers.TCPOption{OptionType: layers.TCPOptionKindSACK, OptionLength: uint8(2 + len(b)), OptionData: b}
}

var addresses = [2][2]netip.AddrPort{
	{netip.MustParseAddrPort("10.0.0.1:40000"), netip.MustParseAddrPort("10.0.0.2:80")},
	{netip.MustParseAddrPort("[fd00::1]:40000"), netip.MustParseAddrPort("[fd00::2]:80")},
}

func (c *capture) addresses() [2]netip.AddrPort {
	ends := addresses[0]
	if c.six {
		ends = addresses[1]
	}
	if c.port > 0 {
		ends[client] = netip.AddrPortFrom(ends[client].Addr(), c.port)
	}
	return ends
}

// add captures segments.
func (c *capture) add(segs ...seg) *capture {
	c.t.Helper()
	for _, s := range segs {
		a := c.addresses()
		has := func(flag string) bool { return strings.Contains(s.flags, flag) }
		tcp := &layers.TCP{
			SrcPort: layers.TCPPort(a[s.from].Port()), DstPort: layers.TCPPort(a[1-s.from].Port()),
			Seq: c.isn[s.from] + s.seq, Window: s.window, Options: s.options,
			SYN: has("S"), FIN: has("F"), RST: has("R"), PSH: has("P"), ACK: has("A"), ECE: has("E"), CWR: has("C"),
		}
		if tcp.ACK {
			tcp.Ack = c.isn[1-s.from] + s.ack
		}
		if !s.sameID {
			c.ipID++
		}
		all := []gopacket.SerializableLayer{tcp, gopacket.Payload(make([]byte, s.bytes))}
		src, dst := net.IP(a[s.from].Addr().AsSlice()), net.IP(a[1-s.from].Addr().AsSlice())
		if c.six {
			ip := &layers.IPv6{Version: 6, NextHeader: layers.IPProtocolTCP, HopLimit: 60, SrcIP: src, DstIP: dst}
			if len(c.between) > 0 {
				ip.NextHeader = layers.IPProtocolIPv6Destination
			}
			all = append(append([]gopacket.SerializableLayer{ip}, c.between...), all...)
		} else {
			all = append([]gopacket.SerializableLayer{&layers.IPv4{Version: 4, TTL: 60, Id: c.ipID, Protocol: layers.IPProtocolTCP, SrcIP: src, DstIP: dst}}, all...)
		}
		buffer := gopacket.NewSerializeBuffer()
		must(c.t, gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true}, all...))
		c.raw(s.ms, buffer.Bytes())
	}
	return c
}

// raw captures an IP packet behind the link-layer header.
func (c *capture) raw(ms float64, ip []byte) *capture {
	kind := []byte{8, 0}
	if c.six {
		kind = []byte{0x86, 0xdd}
	}
	var header []byte
	switch c.link {
	case linkEthernet:
		header = slices.Concat(make([]byte, 12), kind)
	case linkNull:
		header = []byte{2, 0, 0, 0}
	case linkLoop:
		header = []byte{0, 0, 0, 24}
	case linkSLL:
		header = slices.Concat([]byte{0, 0, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0}, kind)
	case linkPPP, linkPPPHDLC, linkPPPDirection, linkPPPEthernet:
		header = []byte{0, 0x21}
		if c.six {
			header[1] = 0x57
		}
		switch c.link {
		case linkPPPHDLC:
			header = slices.Concat([]byte{0xff, 3}, header)
		case linkPPPDirection:
			header = slices.Concat([]byte{1}, header)
		case linkPPPEthernet:
			header = slices.Concat([]byte{0x11, 0, 0, 7}, binary.BigEndian.AppendUint16(nil, uint16(2+len(ip))), header)
		}
	case linkCiscoHDLC:
		header = slices.Concat([]byte{0x0f, 0}, kind)
	case linkATM:
		header = slices.Concat([]byte{0xaa, 0xaa, 3, 0, 0, 0}, kind)
	case linkSLL2:
		header = slices.Concat(kind, []byte{0, 0, 0, 0, 0, 2, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0})
	}
	data := slices.Concat(header, ip)
	c.records = append(c.records, madeRecord{data: data, wire: len(data), at: epoch.Add(time.Duration(ms * 1e6))})
	return c
}

// file is the capture file, with packets cut to a length.
func (c *capture) file(snap int) []byte {
	c.t.Helper()
	var b bytes.Buffer
	w := pcapgo.NewWriterNanos(&b)
	must(c.t, w.WriteFileHeader(uint32(snap), layers.LinkType(c.link)))
	for _, r := range c.records {
		data := r.data[:min(len(r.data), snap)]
		must(c.t, w.WritePacket(gopacket.CaptureInfo{Timestamp: r.at, CaptureLength: len(data), Length: r.wire}, data))
	}
	return b.Bytes()
}

// read reads the capture of a single connection.
func (c *capture) read() *Connection {
	c.t.Helper()
	result, err := Read(bytes.NewReader(c.file(128)), Options{})
	must(c.t, err)
	if len(result.Connections) != 1 {
		c.t.Fatalf("%d connections", len(result.Connections))
	}
	return result.Connections[0]
}

// handshake captures a handshake of 100 ms at the client, with all options.
func (c *capture) handshake() *capture {
	options := func(value, echo uint32, scale byte) []layers.TCPOption {
		return []layers.TCPOption{mssOption(1460), sackPermitted(), stampOption(value, echo), scaleOption(scale)}
	}
	return c.add(
		seg{ms: 0, from: client, flags: "S", window: 64000, options: options(1, 0, 7)},
		seg{ms: 100, from: server, flags: "SA", ack: 1, window: 65000, options: options(9001, 1, 2)},
		seg{ms: 100.1, from: client, flags: "A", seq: 1, ack: 1, window: 500},
	)
}

// end is the latest tcp_info of the sender.
func end(c *Connection, direction int) *tcpinfo.Info {
	samples := c.Directions[direction].Observation.Samples
	return &samples[len(samples)-1].Info
}

func TestHandshake(t *testing.T) {
	c := newCapture(t).handshake().add(
		seg{ms: 110, from: client, flags: "PA", seq: 1, ack: 1, bytes: 1448, window: 500},
		seg{ms: 212, from: server, flags: "A", seq: 1, ack: 1449, window: 1000},
	).read()
	want := Handshake{
		Client: Offer{Seen: true, MSS: 1460, WScale: 7, SACK: true, Timestamps: true},
		Server: Offer{Seen: true, MSS: 1460, WScale: 2, SACK: true, Timestamps: true},
		RTT:    100100 * time.Microsecond,
	}
	if diff := cmp.Diff(want, c.Handshake); diff != "" {
		t.Error(diff)
	}
	if c.Client != addresses[0][client] || c.Server != addresses[0][server] || !c.Start.Equal(epoch) || !c.End.Equal(epoch.Add(212*time.Millisecond)) {
		t.Errorf("%v to %v, %v to %v", c.Client, c.Server, c.Start, c.End)
	}
	d := &c.Directions[client]
	info := end(c, client)
	if d.Place != AtSender || c.Directions[server].Place != AtReceiver || d.Delivered != 1448 {
		t.Errorf("places %q %q, delivered %d", d.Place, c.Directions[server].Place, d.Delivered)
	}
	if info.State != tcpinfo.Established || info.BytesAcked != 1449 || info.SndWnd != 1000<<2 || info.SndMSS != 1448 || info.AdvMSS != 1448 ||
		info.SndWScale != 2 || info.RcvWScale != 7 || info.MinRTT != 100*time.Millisecond || info.SndSSThresh != noSSThresh ||
		info.Options != tcpinfo.OptSACK|tcpinfo.OptTimestamps|tcpinfo.OptWScale {
		t.Errorf("%+v", info)
	}
	// RFC 6298, section 2: samples of 100 and 102 ms.
	if info.RTT != 100250*time.Microsecond || info.RTTVar != 38*time.Millisecond {
		t.Errorf("RTT %v, deviation %v", info.RTT, info.RTTVar)
	}
	if other := end(c, server); other.BytesReceived != 1448 || other.RcvMSS != 1448 || other.Has(tcpinfo.FieldRTT) || other.Has(tcpinfo.FieldBusyTime) {
		t.Errorf("%+v", other)
	}
}

// TestRules lists packets and their expected interpretation. Each case begins
// after the handshake.
func TestRules(t *testing.T) {
	for name, test := range map[string]struct {
		isn   uint32
		six   bool
		segs  func(c *capture) []seg
		check func(c *Connection, d *Direction, info *tcpinfo.Info) bool
	}{
		"sequence numbers wrap": {isn: 1<<32 - 1000, segs: func(c *capture) []seg {
			return []seg{
				{ms: 110, from: client, flags: "A", seq: 1, ack: 1, bytes: 1448},
				{ms: 111, from: client, flags: "A", seq: 1449, ack: 1, bytes: 1448},
				{ms: 210, from: server, flags: "A", seq: 1, ack: 1449, window: 1000, options: []layers.TCPOption{c.sackOption(server, 1449, 2000)}},
				{ms: 212, from: server, flags: "A", seq: 1, ack: 2897, window: 1000},
			}
		}, check: func(_ *Connection, d *Direction, info *tcpinfo.Info) bool {
			return d.Delivered == 2896 && info.TotalRetrans == 0 && info.Unacked == 0 && !d.Missing && d.Stray == 0
		}},
		"loss and SACK": {segs: func(c *capture) []seg {
			return []seg{
				{ms: 110, from: client, flags: "A", seq: 1, ack: 1, bytes: 1448},
				{ms: 110, from: client, flags: "A", seq: 1449, ack: 1, bytes: 2 * 1448}, // a super-packet
				{ms: 210, from: server, flags: "A", seq: 1, ack: 1, window: 1000, options: []layers.TCPOption{c.sackOption(server, 2897, 4345)}},
				{ms: 211, from: client, flags: "A", seq: 1, ack: 1, bytes: 1448},
				{ms: 311, from: server, flags: "A", seq: 1, ack: 1449, window: 1000, options: []layers.TCPOption{c.sackOption(server, 2897, 4345)}},
			}
		}, check: func(_ *Connection, d *Direction, info *tcpinfo.Info) bool {
			return info.TotalRetrans == 1 && info.BytesRetrans == 1448 && info.BytesSent == 4*1448 && info.DataSegsOut == 4 && info.Unacked == 2 && info.Sacked == 1 &&
				info.Delivered == 3 && info.TotalRTO == 0 && info.ReordSeen == 0 && d.LostBefore == 0 && d.Retransmitted == 1 && d.SuperPackets == 1
		}},
		"overtaken": {segs: func(c *capture) []seg {
			return []seg{
				{ms: 110, from: client, flags: "A", seq: 1, ack: 1, bytes: 1448},
				{ms: 110, from: client, flags: "A", seq: 1449, ack: 1, bytes: 1448},
				{ms: 210, from: server, flags: "A", seq: 1, ack: 1, window: 1000, options: []layers.TCPOption{c.sackOption(server, 1449, 2897)}},
				{ms: 211, from: server, flags: "A", seq: 1, ack: 2897, window: 1000},
			}
		}, check: func(_ *Connection, _ *Direction, info *tcpinfo.Info) bool {
			return info.ReordSeen == 1 && info.TotalRetrans == 0
		}},
		"needless retransmission": {segs: func(c *capture) []seg {
			return []seg{
				{ms: 110, from: client, flags: "A", seq: 1, ack: 1, bytes: 1448},
				{ms: 150, from: client, flags: "A", seq: 1, ack: 1, bytes: 1448},
				{ms: 210, from: server, flags: "A", seq: 1, ack: 1449, window: 1000},
				{ms: 250, from: server, flags: "A", seq: 1, ack: 1449, window: 1000, options: []layers.TCPOption{c.sackOption(server, 1, 1449)}},
			}
		}, check: func(_ *Connection, _ *Direction, info *tcpinfo.Info) bool {
			return info.DSACKDups == 1 && info.TotalRetrans == 1 && info.TotalRTO == 0 && info.RTT == 100*time.Millisecond // Karn: no sample
		}},
		"timeout": {segs: func(*capture) []seg {
			return []seg{
				{ms: 110, from: client, flags: "A", seq: 1, ack: 1, bytes: 1448},
				{ms: 110, from: client, flags: "A", seq: 1449, ack: 1, bytes: 1448},
				{ms: 420, from: client, flags: "A", seq: 1, ack: 1, bytes: 1448},
				{ms: 1040, from: client, flags: "A", seq: 1, ack: 1, bytes: 1448},
				{ms: 1140, from: server, flags: "A", seq: 1, ack: 2897, window: 1000},
			}
		}, check: func(_ *Connection, _ *Direction, info *tcpinfo.Info) bool {
			return info.TotalRTO == 2 && info.TotalRetrans == 2 && !info.Has(tcpinfo.FieldSndSSThresh) && info.BusyTime == 1030*time.Millisecond
		}},
		"keepalive": {segs: func(*capture) []seg {
			return []seg{
				{ms: 110, from: client, flags: "A", seq: 1, ack: 1, bytes: 10},
				{ms: 210, from: server, flags: "A", seq: 1, ack: 11, window: 1000},
				{ms: 9000, from: client, flags: "A", seq: 10, ack: 1},
				{ms: 9100, from: server, flags: "A", seq: 1, ack: 11, window: 1000},
				{ms: 18000, from: client, flags: "A", seq: 10, ack: 1, bytes: 1},
				{ms: 18100, from: server, flags: "A", seq: 1, ack: 11, window: 1000},
			}
		}, check: func(_ *Connection, d *Direction, info *tcpinfo.Info) bool {
			return d.Probes == 2 && info.TotalRetrans == 0 && info.BytesSent == 10 && info.BusyTime == 100*time.Millisecond && info.TotalRTO == 0 && len(d.Observation.Samples) < 20
		}},
		"closed window": {segs: func(*capture) []seg {
			return []seg{
				{ms: 110, from: client, flags: "A", seq: 1, ack: 1, bytes: 1000},
				{ms: 210, from: server, flags: "A", seq: 1, ack: 1001, window: 0},
				{ms: 510, from: client, flags: "A", seq: 1001, ack: 1, bytes: 1}, // a byte beyond the window
				{ms: 610, from: server, flags: "A", seq: 1, ack: 1001, window: 0},
				{ms: 1110, from: client, flags: "A", seq: 1000, ack: 1}, // a probe as Linux sends it
				{ms: 1210, from: server, flags: "A", seq: 1, ack: 1001, window: 16000},
				{ms: 1211, from: client, flags: "A", seq: 1001, ack: 1, bytes: 1448},
				{ms: 1311, from: server, flags: "A", seq: 1, ack: 2449, window: 16000},
			}
		}, check: func(_ *Connection, d *Direction, info *tcpinfo.Info) bool {
			return d.ZeroWindows == 1 && d.Probes == 2 && info.TotalRetrans == 0 && info.TotalRTO == 0 && info.BytesSent == 2448 &&
				info.BusyTime == 1201*time.Millisecond && info.RwndLimited == time.Second && !d.Missing
		}},
		"reader that stopped": {segs: func(*capture) []seg {
			return []seg{
				{ms: 110, from: client, flags: "A", seq: 1, ack: 1, bytes: 1000},
				{ms: 210, from: server, flags: "A", seq: 1, ack: 1001, window: 0},
				{ms: 510, from: client, flags: "A", seq: 1000, ack: 1},
				{ms: 610, from: server, flags: "A", seq: 1, ack: 1001, window: 0},
				{ms: 1110, from: client, flags: "A", seq: 1000, ack: 1},
			}
		}, check: func(_ *Connection, d *Direction, info *tcpinfo.Info) bool {
			return d.Probes == 2 && info.BusyTime == time.Second && info.RwndLimited == 900*time.Millisecond
		}},
		"window of less than a segment": {segs: func(*capture) []seg {
			return []seg{
				{ms: 110, from: client, flags: "A", seq: 1, ack: 1, bytes: 1000},
				{ms: 210, from: server, flags: "A", seq: 1, ack: 1001, window: 100},
				{ms: 510, from: client, flags: "A", seq: 1001, ack: 1, bytes: 400},
				{ms: 610, from: server, flags: "A", seq: 1, ack: 1401, window: 16000},
			}
		}, check: func(_ *Connection, d *Direction, info *tcpinfo.Info) bool {
			return d.Probes == 0 && info.BusyTime == 500*time.Millisecond && info.RwndLimited == 400*time.Millisecond
		}},
		"probe taken": {segs: func(*capture) []seg {
			return []seg{
				{ms: 110, from: client, flags: "A", seq: 1, ack: 1, bytes: 1000},
				{ms: 210, from: server, flags: "A", seq: 1, ack: 1001, window: 0},
				{ms: 510, from: client, flags: "A", seq: 1001, ack: 1, bytes: 1},
				{ms: 610, from: server, flags: "A", seq: 1, ack: 1002, window: 16000},
			}
		}, check: func(_ *Connection, d *Direction, _ *tcpinfo.Info) bool { return !d.Missing && d.Delivered == 1001 }},
		"window": {segs: func(*capture) []seg {
			return []seg{
				{ms: 110, from: client, flags: "A", seq: 1, ack: 1, bytes: 1448},
				{ms: 210, from: server, flags: "A", seq: 1, ack: 1449, window: 2 * 1448 / 4},
				{ms: 210, from: client, flags: "A", seq: 1449, ack: 1, bytes: 1448},
				{ms: 260, from: client, flags: "A", seq: 2897, ack: 1, bytes: 1448}, // the window is full now
				{ms: 360, from: server, flags: "A", seq: 1, ack: 4345, window: 4000},
			}
		}, check: func(_ *Connection, _ *Direction, info *tcpinfo.Info) bool {
			return info.BusyTime == 250*time.Millisecond && info.RwndLimited == 100*time.Millisecond && info.Has(tcpinfo.FieldRwndLimited)
		}},
		"both close at once": {segs: func(*capture) []seg {
			return []seg{
				{ms: 110, from: client, flags: "FA", seq: 1, ack: 1},
				{ms: 120, from: server, flags: "FA", seq: 1, ack: 1},
				{ms: 121, from: client, flags: "A", seq: 2, ack: 2},
				{ms: 210, from: server, flags: "A", seq: 2, ack: 2},
			}
		}, check: func(c *Connection, d *Direction, info *tcpinfo.Info) bool {
			return c.ClosedBy == Client && !c.Reset && info.State == tcpinfo.TimeWait && end(c, server).State == tcpinfo.Closed && d.Delivered == 0 && info.TotalRetrans == 0
		}},
		"reset": {segs: func(*capture) []seg {
			return []seg{
				{ms: 110, from: client, flags: "A", seq: 1, ack: 1, bytes: 100},
				{ms: 210, from: server, flags: "RA", seq: 1, ack: 1},
			}
		}, check: func(c *Connection, d *Direction, info *tcpinfo.Info) bool {
			return c.ClosedBy == Server && c.Reset && info.State == tcpinfo.Closed && d.Delivered == 0 && d.ZeroWindows == 0
		}},
		"data that the capture missed": {segs: func(*capture) []seg {
			return []seg{
				{ms: 110, from: client, flags: "A", seq: 1, ack: 1, bytes: 1000},
				{ms: 112, from: client, flags: "A", seq: 2001, ack: 1, bytes: 1000},
				{ms: 210, from: server, flags: "A", seq: 1, ack: 3001, window: 1000},
				{ms: 220, from: server, flags: "A", seq: 1, ack: 3501, window: 1000},
			}
		}, check: func(_ *Connection, d *Direction, info *tcpinfo.Info) bool {
			return d.Missing && d.MissingBytes == 1500 && d.Delivered == 3500 && info.BytesSent == 2000 && !info.Has(tcpinfo.FieldReordSeen)
		}},
		"captured twice": {segs: func(*capture) []seg {
			data := seg{ms: 110, from: client, flags: "A", seq: 1, ack: 1, bytes: 1000}
			again := data
			again.ms, again.sameID = 110.2, true
			return []seg{data, again, {ms: 210, from: server, flags: "A", seq: 1, ack: 1001, window: 1000}}
		}, check: func(_ *Connection, d *Direction, info *tcpinfo.Info) bool {
			return info.TotalRetrans == 0 && d.Bytes == 1000 && d.Packets == 3
		}},
		"sent twice": {segs: func(*capture) []seg {
			data := seg{ms: 110, from: client, flags: "A", seq: 1, ack: 1, bytes: 1000}
			again := data
			again.ms = 110.2
			return []seg{data, again, {ms: 210, from: server, flags: "A", seq: 1, ack: 1001, window: 1000}}
		}, check: func(_ *Connection, d *Direction, info *tcpinfo.Info) bool {
			return info.TotalRetrans == 1 && d.Bytes == 2000
		}},
		"stray packet": {segs: func(*capture) []seg {
			return []seg{
				{ms: 110, from: client, flags: "A", seq: 1 << 31, ack: 1, bytes: 1000},
				{ms: 120, from: client, flags: "A", seq: 1, ack: 1, bytes: 1000},
				{ms: 130, from: server, flags: "A", seq: 1, ack: 1 << 31, window: 1000},
				{ms: 220, from: server, flags: "A", seq: 1, ack: 1001, window: 1000},
			}
		}, check: func(_ *Connection, d *Direction, _ *tcpinfo.Info) bool {
			return d.Stray == 2 && d.Delivered == 1000 && !d.Missing
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCapture(t)
			if test.isn != 0 {
				c.isn[client] = test.isn
			}
			c.handshake()
			got := c.add(test.segs(c)...).read()
			if d := &got.Directions[client]; !test.check(got, d, end(got, client)) {
				text, _ := json.MarshalIndent(struct {
					Connection *Connection
					Last       *tcpinfo.Info
				}{got, end(got, client)}, "", " ")
				t.Errorf("%s", text)
			}
		})
	}
}

// TestAtReceiver has gaps of which the capture shows only the receiver's side.
func TestAtReceiver(t *testing.T) {
	stamp := func(v uint32) []layers.TCPOption { return []layers.TCPOption{stampOption(v, 9001)} }
	options := []layers.TCPOption{mssOption(1460), sackPermitted(), stampOption(1, 0), scaleOption(7)}
	c := newCapture(t).add(
		seg{ms: 0, from: client, flags: "S", window: 64000, options: options},
		seg{ms: 0.1, from: server, flags: "SA", ack: 1, window: 64000, options: options},
		seg{ms: 100, from: client, flags: "A", seq: 1, ack: 1, window: 500},
		seg{ms: 110, from: client, flags: "A", seq: 1, ack: 1, bytes: 1448, options: stamp(110)},
		seg{ms: 111, from: client, flags: "A", seq: 2897, ack: 1, bytes: 1448, options: stamp(110)},
		seg{ms: 119, from: client, flags: "A", seq: 1449, ack: 1, bytes: 1448, options: stamp(110)}, // overtaken
		seg{ms: 120, from: client, flags: "A", seq: 5793, ack: 1, bytes: 1448, options: stamp(112)},
		seg{ms: 121, from: server, flags: "A", seq: 1, ack: 4345, window: 500},
		seg{ms: 221, from: client, flags: "A", seq: 4345, ack: 1, bytes: 1448, options: stamp(221)}, // lost, resent
		seg{ms: 221.1, from: server, flags: "A", seq: 1, ack: 7241, window: 500},
	).read()
	d, info := &c.Directions[client], end(c, client)
	if d.Place != AtReceiver || d.Reordered != 1 || d.LostBefore != 1 || d.Retransmitted != 1 || d.Missing || d.Delivered != 5*1448 {
		t.Errorf("%+v", d)
	}
	if info.BytesSent != 6*1448 || info.BytesRetrans != 1448 || info.MinRTT < 99*time.Millisecond || info.MinRTT > 101*time.Millisecond || info.SndWnd != 500<<7 {
		t.Errorf("%+v", info)
	}
	for _, f := range []tcpinfo.Field{tcpinfo.FieldRTT, tcpinfo.FieldUnacked, tcpinfo.FieldBusyTime, tcpinfo.FieldTotalRTO, tcpinfo.FieldSndCwnd, tcpinfo.FieldSndSSThresh} {
		if info.Has(f) {
			t.Errorf("field %d is known", f)
		}
	}
}

// TestSYN covers unusual handshakes.
func TestSYN(t *testing.T) {
	t.Run("sent again", func(t *testing.T) {
		c := newCapture(t).add(
			seg{ms: 0, from: client, flags: "S", options: []layers.TCPOption{mssOption(1460)}},
			seg{ms: 1000, from: client, flags: "S", options: []layers.TCPOption{mssOption(1460)}},
			seg{ms: 1100, from: server, flags: "SA", ack: 1, window: 60000, options: []layers.TCPOption{mssOption(1000)}},
			seg{ms: 1100.1, from: client, flags: "A", seq: 1, ack: 1},
		).read()
		info := end(c, client)
		if c.Handshake.RTT != 0 || info.TotalRetrans != 1 || info.BytesRetrans != 0 || info.TotalRTO != 1 || info.Has(tcpinfo.FieldRTT) || info.SndMSS != 1000 ||
			info.SndWnd != 60000 || c.Handshake.Client.WScale != -1 {
			t.Errorf("%+v %+v", c.Handshake, info)
		}
	})
	t.Run("with data", func(t *testing.T) {
		c := newCapture(t).add(
			seg{ms: 0, from: client, flags: "S", bytes: 100, options: []layers.TCPOption{mssOption(1460)}},
			seg{ms: 100, from: server, flags: "SA", ack: 101, window: 60000, options: []layers.TCPOption{mssOption(1460)}},
			seg{ms: 100.1, from: client, flags: "A", seq: 101, ack: 1, bytes: 50},
			seg{ms: 200, from: server, flags: "A", seq: 1, ack: 151, window: 60000},
		).read()
		if info := end(c, client); info.Options != tcpinfo.OptSynData || info.BytesAcked != 151 || info.BytesSent != 150 || c.Directions[client].Delivered != 150 || info.TotalRetrans != 0 {
			t.Errorf("%+v", info)
		}
	})
	t.Run("with data that are refused", func(t *testing.T) {
		c := newCapture(t).add(
			seg{ms: 0, from: client, flags: "S", bytes: 100, options: []layers.TCPOption{mssOption(1460)}},
			seg{ms: 100, from: server, flags: "SA", ack: 1, window: 60000, options: []layers.TCPOption{mssOption(1460)}},
			seg{ms: 100.1, from: client, flags: "A", seq: 1, ack: 1, bytes: 100},
			seg{ms: 200, from: server, flags: "A", seq: 1, ack: 101, window: 60000},
		).read()
		if info := end(c, client); info.Options != 0 || info.BytesAcked != 101 || info.BytesSent != 200 || info.TotalRetrans != 1 {
			t.Errorf("%+v", info)
		}
	})
	t.Run("ECN", func(t *testing.T) {
		c := newCapture(t).add(
			seg{ms: 0, from: client, flags: "SEC"},
			seg{ms: 100, from: server, flags: "SAE", ack: 1},
			seg{ms: 100.1, from: client, flags: "A", seq: 1, ack: 1},
		).read()
		if info := end(c, client); info.Options != tcpinfo.OptECN || info.SndMSS != 536 {
			t.Errorf("%+v", info)
		}
	})
	t.Run("not captured", func(t *testing.T) {
		c := newCapture(t).add(
			seg{ms: 0, from: client, flags: "A", seq: 50000, ack: 77, bytes: 1448, window: 400},
			seg{ms: 1, from: client, flags: "A", seq: 51448, ack: 77, bytes: 1448, window: 400},
			seg{ms: 99, from: server, flags: "A", seq: 77, ack: 50000, window: 300},
			seg{ms: 100, from: server, flags: "A", seq: 77, ack: 51448, window: 300},
		).read()
		d, info := &c.Directions[client], end(c, client)
		if c.Client != addresses[0][client] || c.Handshake.Complete() || d.Place != PlaceUnknown || d.Delivered != 1448 || d.Missing {
			t.Errorf("%+v", c)
		}
		for _, f := range []tcpinfo.Field{tcpinfo.FieldSndWnd, tcpinfo.FieldSndWScale, tcpinfo.FieldOptions, tcpinfo.FieldRTT, tcpinfo.FieldRwndLimited, tcpinfo.FieldSndMSS, tcpinfo.FieldAdvMSS} {
			if info.Has(f) {
				t.Errorf("field %d is known", f)
			}
		}
		if !info.Has(tcpinfo.FieldBytesAcked) || info.BytesAcked != 1448 || info.BytesSent != 2896 {
			t.Errorf("%+v", info)
		}
	})
	t.Run("captured between", func(t *testing.T) {
		c := newCapture(t).add(
			seg{ms: 0, from: client, flags: "S"},
			seg{ms: 60, from: server, flags: "SA", ack: 1},
			seg{ms: 100, from: client, flags: "A", seq: 1, ack: 1, bytes: 10},
			seg{ms: 160, from: server, flags: "A", seq: 1, ack: 11},
		).read()
		info := end(c, client)
		if c.Directions[0].Place != Between || c.Directions[1].Place != Between || info.MinRTT != 100*time.Millisecond || c.Handshake.RTT != 100*time.Millisecond || info.Has(tcpinfo.FieldRTT) {
			t.Errorf("%+v %+v", c, info)
		}
	})
	t.Run("loopback", func(t *testing.T) {
		saved := addresses[0]
		defer func() { addresses[0] = saved }()
		addresses[0] = [2]netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:40000"), netip.MustParseAddrPort("127.0.0.1:80")}
		c := newCapture(t).add(
			seg{ms: 0, from: client, flags: "S"},
			seg{ms: 0.009, from: server, flags: "SA", ack: 1},
			seg{ms: 0.017, from: client, flags: "A", seq: 1, ack: 1, bytes: 10},
			seg{ms: 0.030, from: server, flags: "A", seq: 1, ack: 11},
		).read()
		if c.Directions[client].Place != AtSender || c.Directions[server].Place != AtSender || !end(c, client).Has(tcpinfo.FieldRTT) {
			t.Errorf("%+v", c)
		}
	})
	t.Run("both connect at once", func(t *testing.T) {
		c := newCapture(t).add(
			seg{ms: 0, from: client, flags: "S"},
			seg{ms: 10, from: server, flags: "S"},
			seg{ms: 10.1, from: client, flags: "SA", ack: 1},
			seg{ms: 100, from: server, flags: "SA", ack: 1},
			seg{ms: 110, from: client, flags: "A", seq: 1, ack: 1, bytes: 10},
			seg{ms: 210, from: server, flags: "A", seq: 1, ack: 11},
		).read()
		if c.Client.Port() != 40000 || c.Directions[client].Delivered != 10 || !c.Handshake.Complete() || end(c, server).State != tcpinfo.Established {
			t.Errorf("%+v", c)
		}
	})
	t.Run("answered for an earlier connection", func(t *testing.T) {
		// RFC 5961, section 4: the server acknowledges data of a connection that the
		// client has forgotten.
		for _, foreign := range []uint32{900_000_000, 1<<32 - 900_000_000, 100_000} {
			c := newCapture(t).add(
				seg{ms: 0, from: client, flags: "S", window: 64000},
				seg{ms: 100, from: server, flags: "A", seq: 2 * foreign, ack: foreign, window: 500},
				seg{ms: 100.1, from: client, flags: "R", seq: foreign},
				seg{ms: 1000, from: client, flags: "S", window: 64000},
				seg{ms: 1100, from: server, flags: "SA", ack: 1, window: 60000},
				seg{ms: 1100.1, from: client, flags: "A", seq: 1, ack: 1, bytes: 100, window: 64000},
				seg{ms: 1200, from: server, flags: "A", seq: 1, ack: 101, bytes: 5000, window: 60000},
				seg{ms: 1200.1, from: client, flags: "A", seq: 101, ack: 5001, window: 64000},
			).read()
			for i, bytes := range []int64{100, 5000} {
				if d := c.Directions[i]; d.Delivered != bytes || d.Missing || d.Bytes != bytes || d.Observation.Capture.Counts.Reset != "" {
					t.Errorf("acknowledged %d: %+v", foreign, d)
				}
			}
			if c.Reset || !c.Handshake.Complete() || c.Directions[client].Stray != 1 {
				t.Errorf("acknowledged %d: %+v", foreign, c)
			}
		}
	})
	t.Run("acknowledged beyond the window", func(t *testing.T) {
		data := func(ms float64, seq uint32) seg {
			return seg{ms: ms, from: client, flags: "A", seq: seq, ack: 1, bytes: 1448, window: 500}
		}
		c := newCapture(t).handshake().add(
			data(110, 1),
			seg{ms: 120, from: server, flags: "A", seq: 1, ack: 500_000_000, window: 5000},
			seg{ms: 130, from: server, flags: "A", seq: 1, ack: 500_000_000, window: 5000},
			seg{ms: 210, from: server, flags: "A", seq: 1, ack: 1449, window: 5000},
		)
		if d := c.read().Directions[client]; d.Delivered != 1448 || d.Missing || d.Stray != 2 {
			t.Errorf("%+v", d)
		}
		// Of 2 MB, the capture has only the ends.
		c.add(
			data(300, 2_000_000), data(301, 2_001_448), data(302, 2_002_896),
			seg{ms: 400, from: server, flags: "A", seq: 1, ack: 2_004_344, window: 5000},
		)
		if d := c.read().Directions[client]; d.Delivered != 2_004_343 || d.MissingBytes != 2_001_447-1448 || d.Bytes != 3*1448 {
			t.Errorf("%+v", d)
		}
	})
	t.Run("ports used again", func(t *testing.T) {
		c := newCapture(t).handshake().add(
			seg{ms: 110, from: client, flags: "PA", seq: 1, ack: 1, bytes: 10},
			seg{ms: 210, from: server, flags: "RA", seq: 1, ack: 11},
		)
		c.isn = [2]uint32{7_000_000, 9_000_000}
		c.add(
			seg{ms: 500, from: client, flags: "S"},
			seg{ms: 600, from: server, flags: "SA", ack: 1},
			seg{ms: 601, from: client, flags: "PA", seq: 1, ack: 1, bytes: 20},
			seg{ms: 701, from: server, flags: "A", seq: 1, ack: 21},
		)
		result, err := Read(bytes.NewReader(c.file(128)), Options{})
		must(t, err)
		if len(result.Connections) != 2 || result.Connections[0].Directions[client].Delivered != 20 || !result.Connections[1].Reset || result.Connections[0].Reset {
			t.Errorf("%+v", result.Connections)
		}
	})
}

// TestOneWay captures one direction only, as with asymmetric routes.
func TestOneWay(t *testing.T) {
	for _, from := range []int{client, server} {
		c := newCapture(t)
		for i := range uint32(5) {
			s := seg{ms: float64(i), from: client, flags: "A", seq: 1 + 1000*i, ack: 1, bytes: 1000}
			if from == server {
				s = seg{ms: float64(i), from: server, flags: "A", seq: 1, ack: 1 + 1000*i}
			}
			c.add(s)
		}
		got := c.read()
		d, info := &got.Directions[client], end(got, client)
		data := from == client
		if info.Has(tcpinfo.FieldBytesSent) != data || info.Has(tcpinfo.FieldBytesAcked) == data || info.Has(tcpinfo.FieldRTT) || d.Place != PlaceUnknown || d.Missing == data {
			t.Errorf("data %v: %+v", data, d)
		}
		if data && info.BytesSent != 5000 || !data && info.BytesAcked != 4000 {
			t.Errorf("data %v: %+v", data, info)
		}
	}
}

// TestLinks reads packets of all link types, whole and truncated.
func TestLinks(t *testing.T) {
	for link := range readable {
		for _, six := range []bool{false, true} {
			if link == linkIPv4 && six || link == linkIPv6 && !six {
				continue
			}
			c := newCapture(t)
			c.link, c.six = link, six
			c.handshake().add(
				seg{ms: 110, from: client, flags: "PA", seq: 1, ack: 1, bytes: 1000},
				seg{ms: 210, from: server, flags: "A", seq: 1, ack: 1001},
			)
			for _, snap := range []int{96 + 20, 65535} {
				result, err := Read(bytes.NewReader(c.file(snap)), Options{})
				if err != nil || len(result.Connections) != 1 {
					t.Errorf("link type %d, IPv6 %v: %v", link, six, err)
					continue
				}
				if got := result.Connections[0]; got.Directions[client].Delivered != 1000 || got.Client != c.addresses()[client] || got.Handshake.Client.WScale != 7 {
					t.Errorf("link type %d, IPv6 %v: %+v", link, six, got)
				}
			}
		}
	}
}

// TestOptionsCut has truncated SYNs, so the window scale is unknown.
func TestOptionsCut(t *testing.T) {
	c := newCapture(t).handshake().add(
		seg{ms: 110, from: client, flags: "PA", seq: 1, ack: 1, bytes: 1000, window: 500},
		seg{ms: 210, from: server, flags: "A", seq: 1, ack: 1001, window: 500},
	)
	result, err := Read(bytes.NewReader(c.file(44)), Options{})
	must(t, err)
	got := result.Connections[0]
	info := end(got, client)
	if got.Handshake.Complete() || info.Has(tcpinfo.FieldSndWnd) || info.Has(tcpinfo.FieldSndWScale) || info.BytesAcked != 1001 || got.Handshake.RTT == 0 {
		t.Errorf("%+v %+v", got, info)
	}
}

func TestExtensionHeaders(t *testing.T) {
	c := newCapture(t)
	c.six = true
	// Two destination option headers of 8 bytes of padding.
	for _, next := range []byte{60, 6} {
		c.between = append(c.between, gopacket.Payload([]byte{next, 0, 1, 4, 0, 0, 0, 0}))
	}
	got := c.handshake().add(
		seg{ms: 110, from: client, flags: "PA", seq: 1, ack: 1, bytes: 1000},
		seg{ms: 210, from: server, flags: "A", seq: 1, ack: 1001},
	).read()
	if d := got.Directions[client]; d.Delivered != 1000 || d.Bytes != 1000 {
		t.Errorf("%+v", d)
	}
}

// TestLongerThanItsField has super-packets whose length exceeds the IP field.
func TestLongerThanItsField(t *testing.T) {
	for _, six := range []bool{false, true} {
		c := newCapture(t)
		c.six = six
		c.handshake().add(seg{ms: 110, from: client, flags: "A", seq: 1, ack: 1, bytes: 100})
		last := &c.records[len(c.records)-1]
		last.wire += 69*1448 - 100
		length := 2
		if six {
			length = 4
		}
		last.data[length], last.data[length+1] = 0, 0
		got := c.add(seg{ms: 210, from: server, flags: "A", seq: 1, ack: 69*1448 + 1}).read()
		if d := got.Directions[client]; d.Bytes != 69*1448 || d.Missing || end(got, client).DataSegsOut != 69 {
			t.Errorf("IPv6 %v: %+v", six, d)
		}
	}
}

// TestNg reads a file of several interfaces: one is unsupported, and every
// packet is on two others.
func TestNg(t *testing.T) {
	c := newCapture(t).handshake().add(
		seg{ms: 110, from: client, flags: "PA", seq: 1, ack: 1, bytes: 1000},
		seg{ms: 210, from: server, flags: "A", seq: 1, ack: 1001},
	)
	var b bytes.Buffer
	w, err := pcapgo.NewNgWriter(&b, layers.LinkTypeRaw)
	must(t, err)
	second, err := w.AddInterface(pcapgo.NgInterface{LinkType: layers.LinkTypeIPv4, SnapLength: 65535})
	must(t, err)
	usb, err := w.AddInterface(pcapgo.NgInterface{LinkType: layers.LinkTypeLinuxUSB, SnapLength: 65535})
	must(t, err)
	for _, r := range c.records {
		for i, device := range []int{0, second, usb} {
			must(t, w.WritePacket(gopacket.CaptureInfo{Timestamp: r.at.Add(time.Duration(i) * 5 * time.Millisecond), CaptureLength: len(r.data), Length: r.wire, InterfaceIndex: device}, r.data))
		}
	}
	must(t, w.Flush())
	result, err := Read(&b, Options{})
	must(t, err)
	got := result.Connections[0]
	if result.Packets != 15 || result.LeftOut.Duplicates != 5 || result.LeftOut.UnreadLinkPackets != 5 || !slices.Equal(result.LeftOut.UnreadLinkTypes, []string{"USB"}) ||
		got.Directions[client].Bytes != 1000 || end(got, client).TotalRetrans != 0 {
		t.Errorf("%+v %+v", result, got)
	}
}

func TestBadInput(t *testing.T) {
	whole := newCapture(t).handshake().add(seg{ms: 110, from: client, flags: "PA", seq: 1, ack: 1, bytes: 1000})
	file := whole.file(128)
	other := newCapture(t)
	other.link = link80211
	other.raw(0, []byte("anything"))
	udp := newCapture(t).raw(0, slices.Concat([]byte{0x45, 0, 0, 28, 0, 0, 0, 0, 9, 17, 0, 0}, make([]byte, 16)))
	for name, test := range map[string]struct {
		file        []byte
		options     Options
		want        string
		connections int
	}{
		"empty":          {file: nil, want: "this is not a pcap or pcapng file"},
		"text":           {file: []byte("10:47 IP 10.0.0.1 > 10.0.0.2"), want: "this is not a pcap or pcapng file"},
		"gzip":           {file: []byte{0x1f, 0x8b, 1, 2, 3}, want: "this is not a pcap or pcapng file"},
		"in the header":  {file: file[:20], want: "the capture ends unexpectedly after 0 packets (20 bytes)"},
		"header only":    {file: file[:24], want: "no TCP packet is in the capture"},
		"in a record":    {file: file[:len(file)-7], want: "the capture ends unexpectedly after 3 packets (", connections: 1},
		"before data":    {file: file[:24+16], want: "the capture ends unexpectedly after 0 packets (40 bytes)"},
		"garbage inside": {file: slices.Concat(file, bytes.Repeat([]byte{0xff}, 500)), want: "the capture is damaged after 4 packets (", connections: 1},
		"link type":      {file: other.file(128), want: "unsupported link type 802.11 (105)"},
		"no TCP":         {file: udp.file(128), want: "no TCP packet is in the capture"},
		"filtered":       {file: file, options: Options{Between: [2]End{{Port: 81}}}, want: "no TCP packet is in the capture"},
	} {
		t.Run(name, func(t *testing.T) {
			result, err := Read(bytes.NewReader(test.file), test.options)
			if err == nil || !strings.HasPrefix(err.Error(), test.want) || len(result.Connections) != test.connections {
				t.Errorf("got %v with %d connections, want %q", err, len(result.Connections), test.want)
			}
			if truncated := (*TruncatedError)(nil); test.connections > 0 && !errors.As(err, &truncated) {
				t.Errorf("%T", err)
			}
		})
	}
}

func TestFilterAndBound(t *testing.T) {
	c := newCapture(t)
	saved := addresses[0][client]
	defer func() { addresses[0][client] = saved }()
	for i := range uint16(20) {
		addresses[0][client] = netip.AddrPortFrom(saved.Addr(), 40000+i)
		ms := 1000 * float64(i)
		c.add(
			seg{ms: ms, from: client, flags: "S"},
			seg{ms: ms + 10, from: server, flags: "SA", ack: 1},
			seg{ms: ms + 20, from: client, flags: "A", seq: 1, ack: 1, bytes: 100 + int(i)},
		)
		if i%2 == 0 { // other connections stay open
			c.add(seg{ms: ms + 30, from: server, flags: "RA", seq: 1, ack: 101})
		}
	}
	file := c.file(128)
	result, err := Read(bytes.NewReader(file), Options{Between: [2]End{{Hosts: []netip.Addr{netip.MustParseAddr("10.0.0.2")}, Port: 80}, {Port: 40003}}})
	must(t, err)
	if len(result.Connections) != 1 || result.Connections[0].Client.Port() != 40003 || result.LeftOut.Unwanted != result.Packets-3 {
		t.Errorf("%+v", result)
	}
	result, err = Read(bytes.NewReader(file), Options{MaxConnections: 8})
	must(t, err)
	var packets int64
	for _, c := range result.Connections {
		packets += c.Directions[0].Packets + c.Directions[1].Packets
	}
	if len(result.Connections) > 8 || int64(len(result.Connections))+result.LeftOut.Connections != 20 || packets+result.LeftOut.Packets != result.Packets {
		t.Errorf("%d connections with %d packets of %d, left out %+v", len(result.Connections), packets, result.Packets, result.LeftOut)
	}
	if !slices.IsSortedFunc(result.Connections, func(a, b *Connection) int { return int(b.Directions[0].Bytes - a.Directions[0].Bytes) }) {
		t.Error("the connections are not in the order of what they carried")
	}
}

// TestLongCapture checks the bound of samples.
func TestLongCapture(t *testing.T) {
	c := newCapture(t).handshake()
	for i := range uint32(3000) {
		ms := 200 + 100*float64(i)
		c.add(
			seg{ms: ms, from: client, flags: "PA", seq: 1 + 100*i, ack: 1, bytes: 100},
			seg{ms: ms + 50, from: server, flags: "A", seq: 1, ack: 101 + 100*i, window: 1000},
		)
	}
	d := c.read().Directions[client]
	samples := d.Observation.Samples
	if len(samples) > maxSamples || len(samples) < maxSamples/3 || d.Delivered != 300000 {
		t.Errorf("%d samples, delivered %d", len(samples), d.Delivered)
	}
	for i, s := range samples {
		if i > 0 && (s.At < samples[i-1].At || s.Info.BytesAcked < samples[i-1].Info.BytesAcked) {
			t.Fatalf("sample %d is older than the one before", i)
		}
		if s.SendBuffer >= 0 || s.CPU >= 0 {
			t.Fatalf("sample %d: %+v", i, s)
		}
	}
}

// TestManyOutstanding exceeds the bound of separate segments.
func TestManyOutstanding(t *testing.T) {
	room := maxAllSegments
	c := newConnection(key{addresses[0][client], addresses[0][server]}, 0, &room)
	const n = maxSegments + 5000
	for i := range uint32(n) {
		c.packet(&packet{at: int64(i), seq: 1 + i, payload: 1, hasAck: true, ipID: uint16(i)}, 0)
	}
	h := &c.half[0]
	if len(h.segs) != maxSegments || h.count.merged != 5000 || h.unacked != n {
		t.Errorf("%d segments, %d merged, %d outstanding", len(h.segs), h.count.merged, h.unacked)
	}
	c.packet(&packet{at: n, seq: 1, ack: 1 + n, hasAck: true}, 1)
	if h.unacked != 0 || h.count.missing != 0 || h.acknowledged() != n {
		t.Errorf("%d outstanding, %d missing, %d acknowledged", h.unacked, h.count.missing, h.acknowledged())
	}
}

// TestInventedSegments has packets that would need many steps over others, or all memory:
// they are merged, and their bytes count all the same.
func TestInventedSegments(t *testing.T) {
	const n = 20_000
	whole := func(i uint32) *packet { return &packet{seq: 1 + i, payload: 1, hasAck: true, ipID: uint16(i)} }
	for name, test := range map[string]struct {
		room    int
		packets func(c *connection)
	}{
		"each before the last": {maxAllSegments, func(c *connection) {
			c.packet(whole(0), 0)
			for i := range uint32(n) {
				c.packet(whole(2*n-2*i), 0)
			}
		}},
		"each again and again": {maxAllSegments, func(c *connection) {
			for i := range uint32(n) {
				c.packet(whole(i), 0)
			}
			for i := range n {
				c.packet(&packet{seq: 1, payload: n, hasAck: true, ipID: uint16(i)}, 0)
			}
		}},
		"no room": {2, func(c *connection) {
			for i := range uint32(n) {
				c.packet(whole(i), 0)
			}
		}},
		"no room at all": {0, func(c *connection) {
			for i := range uint32(n) {
				c.packet(whole(i), 0)
				c.packet(&packet{seq: 1, ack: 2 + i, hasAck: true}, 1)
			}
		}},
	} {
		room := test.room
		c := newConnection(key{addresses[0][client], addresses[0][server]}, 0, &room)
		test.packets(c)
		h := &c.half[0]
		if max := maxSteps * (h.seen + freePackets); h.steps > max {
			t.Errorf("%s: %d steps, want at most %d", name, h.steps, max)
		}
		if test.room > 0 && h.count.merged == 0 {
			t.Errorf("%s: nothing was merged", name)
		}
		end := uint32(h.nxt)
		c.packet(&packet{seq: 1, ack: end, hasAck: true}, 1)
		if h.unacked != 0 || len(h.segs) != 0 || room != test.room {
			t.Errorf("%s: after the end %d outstanding, %d segments, room for %d, want %d", name, h.unacked, len(h.segs), room, test.room)
		}
	}
}

// TestSizes determines segment sizes from payloads.
func TestSizes(t *testing.T) {
	repeat := func(n int, sizes ...int) (all []int) {
		for range n {
			all = append(all, sizes...)
		}
		return all
	}
	for _, test := range []struct {
		bound     int
		sent      []int
		want      int
		assumed   bool // the bound is the standard's
		announced int  // without the room for options; 0: bound
	}{
		{bound: 1448, want: 1448},
		{bound: 1448, sent: repeat(40, 100), want: 1448}, // too small to be segments
		{bound: 1448, sent: repeat(40, 1348), want: 1348},
		{bound: 1448, sent: repeat(20, 2*1448, 45*1448), want: 1448},
		{bound: 1448, sent: repeat(40, 2*1348, 1348, 65160), want: 1348},
		{bound: 1448, sent: slices.Concat(repeat(40, 1348), repeat(40, 1448)), want: 1448},
		{bound: 0, sent: repeat(40, 8948), want: 8948},
		{bound: 0, sent: repeat(40, 1448, 2896, 14480), want: 1448},
		{bound: 1448, sent: repeat(40, 2*1348), want: 1348},
		{bound: 536, assumed: true, sent: repeat(40, 1360), want: 1360},
		{bound: 536, assumed: true, sent: repeat(1, 1360), want: 1448}, // one suffices
		{bound: 536, assumed: true, sent: repeat(40, 10*536), want: 536},
		{bound: 536, assumed: true, sent: repeat(40, 10*1448), want: 1448},
		{bound: 536, assumed: true, sent: repeat(40, 8948), want: 8948},
		{bound: 1380, announced: 1392, sent: repeat(1, 1392), want: 1392}, // one suffices
		{bound: 1380, sent: repeat(2, 1392), want: 1380},
		{bound: 1380, sent: repeat(3, 1392), want: 1392},
		{bound: 1380, sent: repeat(40, 2*1200), want: 1200},
	} {
		s := sizes{bound: test.bound, usual: 1448, assumed: test.assumed, announced: max(test.announced, test.bound)}
		for _, n := range test.sent {
			s.saw(n, false)
		}
		if got := s.segment(); got != test.want {
			t.Errorf("%d packets below %d: %d, want %d", len(test.sent), test.bound, got, test.want)
		}
	}
}

func seeds(t testing.TB) map[string][]byte {
	t.Helper()
	names, err := filepath.Glob("testdata/*.pcap")
	must(t, err)
	all := map[string][]byte{}
	for _, name := range names {
		data, err := os.ReadFile(name)
		must(t, err)
		all[filepath.Base(name)] = data
	}
	if len(all) == 0 {
		t.Fatal("testdata has no captures")
	}
	return all
}

// TestBegunBefore reads real captures without their beginning: the SYN options
// are unknown, and the timestamps show the place.
func TestBegunBefore(t *testing.T) {
	for name, place := range map[string]Place{"window-sender.pcap": AtSender, "reordering-sender.pcap": AtSender, "loss-receiver.pcap": AtReceiver} {
		whole := seeds(t)[name]
		r, err := pcapgo.NewReader(bytes.NewReader(whole))
		must(t, err)
		var b bytes.Buffer
		w := pcapgo.NewWriter(&b)
		must(t, w.WriteFileHeader(128, r.LinkType()))
		for n := 0; ; n++ {
			data, ci, err := r.ReadPacketData()
			if err == io.EOF {
				break
			}
			must(t, err)
			if n >= 100 {
				must(t, w.WritePacket(ci, data))
			}
		}
		var ends [2]*tcpinfo.Info
		for i, file := range [][]byte{whole, b.Bytes()} {
			result, err := Read(bytes.NewReader(file), Options{})
			must(t, err)
			c := result.Connections[0]
			sender := client
			if c.Directions[server].Bytes > c.Directions[client].Bytes { // without SYNs, the lower port is the server's
				sender = server
			}
			if d := c.Directions[sender]; d.Place != place || d.Missing || c.Handshake.Complete() != (i == 0) {
				t.Errorf("%s: at %q, missing %d, handshake %+v", name, d.Place, d.MissingBytes, c.Handshake)
			}
			ends[i] = end(c, sender)
		}
		all, part := ends[0], ends[1]
		if part.Has(tcpinfo.FieldSndWnd) || part.Has(tcpinfo.FieldOptions) || part.Has(tcpinfo.FieldRTT) != (place == AtSender) ||
			part.SndMSS != all.SndMSS || part.BytesSent >= all.BytesSent || part.TotalRetrans > all.TotalRetrans || part.Unacked != all.Unacked ||
			float64(part.MinRTT) < 0.95*float64(all.MinRTT) || float64(part.MinRTT) > 1.1*float64(all.MinRTT) {
			t.Errorf("%s: whole %+v\nwithout its beginning %+v", name, all, part)
		}
	}
}

// TestJSON checks the JSON fields that programs read.
func TestJSON(t *testing.T) {
	for name, data := range seeds(t) {
		result, err := Read(bytes.NewReader(data), Options{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		text, err := json.Marshal(result)
		must(t, err)
		var back Result
		must(t, json.Unmarshal(text, &back))
		again, err := json.Marshal(back)
		must(t, err)
		if !bytes.Equal(text, again) {
			t.Errorf("%s: read back, it is another:\n%s\n%s", name, text, again)
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, data := range seeds(f) {
		f.Add(data[:4<<10]) // the fuzzer minimizes large inputs for minutes
	}
	for link := range readable {
		for _, six := range []bool{false, true} {
			c := newCapture(f)
			c.link, c.six = link, six
			f.Add(c.handshake().add(
				seg{ms: 110, from: client, flags: "A", seq: 1, ack: 1, bytes: 20},
				seg{ms: 111, from: client, flags: "A", seq: 41, ack: 1, bytes: 20},
				seg{ms: 210, from: server, flags: "A", seq: 1, ack: 1, options: []layers.TCPOption{c.sackOption(server, 41, 61)}},
				seg{ms: 211, from: client, flags: "A", seq: 21, ack: 1, bytes: 20},
			).file(128))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		result, err := Read(io.LimitReader(bytes.NewReader(data), 1<<20), Options{MaxConnections: 4})
		if err == nil && len(result.Connections) == 0 {
			t.Error("neither a connection nor an error")
		}
		for _, c := range result.Connections {
			for _, d := range c.Directions {
				if d.MissingBytes < 0 || d.Delivered < 0 || d.Bytes < 0 || len(d.Observation.Samples) == 0 || len(d.Observation.Samples) > maxSamples+1 {
					t.Errorf("%+v", d)
				}
				checkParts(t, &d.Observation.Capture.Counts)
			}
		}
	})
}

// checkParts checks that no part of a count exceeds the whole, and that none is negative.
func checkParts(t *testing.T, n *doctor.Counts) {
	t.Helper()
	if max(n.FullSegments, n.Retransmitted+n.OutOfOrder, n.WindowFull) > n.Segments || n.Fast+n.AfterTimeout+n.TailProbes > n.Retransmitted ||
		n.Spurious > n.Retransmitted || n.LongestZeroWindow > n.ZeroWindowTime || n.WaitedForPeer > n.PauseTime ||
		n.MinRTT > n.P95RTT && n.P95RTT > 0 || n.MedianRTT > n.P95RTT || n.WindowMin > n.WindowMedian || n.WindowMedian > n.WindowMax {
		t.Errorf("a part exceeds the whole: %+v", n)
	}
	if min(n.Segments, n.FullSegments, n.Bytes, n.Delivered, n.Retransmitted, n.Spurious, n.OutOfOrder, n.Overtaken, n.Extent, n.ZeroWindows, n.Probes, n.KeepAlives,
		n.WindowMin, n.MaxFlight, n.Pauses, n.Turns, n.ResetOutstanding, n.Missing, n.Copies, n.BackwardSteps, n.Stall.Retransmissions, n.Stall.Heard,
		int64(n.ZeroWindowTime), int64(n.MinRTT), int64(n.PauseTime), int64(n.WaitedForPeer), int64(n.Stall.Time), int64(n.BackwardBy)) < 0 {
		t.Errorf("a count is negative: %+v", n)
	}
}

func BenchmarkRead(b *testing.B) {
	for name, data := range seeds(b) {
		b.Run(strings.TrimSuffix(name, ".pcap"), func(b *testing.B) {
			b.ReportAllocs()
			var packets int64
			for b.Loop() {
				result, err := Read(bytes.NewReader(data), Options{})
				must(b, err)
				packets += result.Packets
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(packets), "ns/packet")
		})
	}
}

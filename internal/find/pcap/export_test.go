package pcap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/gopacket/gopacket/layers"

	"longhaul/internal/sys/tcpinfo"
	"longhaul/test/nettest"
)

// exported returns the export of a capture, and what it is of.
func exported(t testing.TB, data []byte, o Options) ([]byte, Result) {
	var b bytes.Buffer
	o.Export = &b
	result, err := Read(bytes.NewReader(data), o)
	must(t, err)
	return b.Bytes(), result
}

// sameButHosts compares what was read of a capture and of its export.
func sameButHosts(a, b Result) string {
	for _, r := range []*Result{&a, &b} {
		var all []*Connection
		for _, c := range r.Connections {
			c := *c
			c.Start, c.End = exportEpoch.Add(c.Start.Sub(r.Start)), exportEpoch.Add(c.End.Sub(r.Start))
			c.Client, c.Server = netip.AddrPortFrom(netip.IPv4Unspecified(), c.Client.Port()), netip.AddrPortFrom(netip.IPv4Unspecified(), c.Server.Port())
			for i := range c.Directions {
				o := &c.Directions[i].Observation
				o.Local, o.Remote = netip.AddrPortFrom(netip.IPv4Unspecified(), o.Local.Port()), netip.AddrPortFrom(netip.IPv4Unspecified(), o.Remote.Port())
			}
			all = append(all, &c)
		}
		r.Connections, r.End = all, exportEpoch.Add(r.End.Sub(r.Start))
	}
	if a.End != b.End || a.LeftOut.Duplicates != b.LeftOut.Duplicates {
		return "another end, or other duplicates"
	}
	return cmp.Diff(a.Connections, b.Connections, cmp.AllowUnexported(tcpinfo.Info{}), cmpopts.EquateComparable(netip.AddrPort{}))
}

// TestExport reads the same from a capture and its export, but for addresses and times.
func TestExport(t *testing.T) {
	captures := map[string][]byte{}
	for name, data := range seeds(t) {
		captures[name] = data
	}
	for name, test := range wrappings {
		captures[name] = wrapped(t, false, test.wrap).file(65535)
		captures[name+", IPv6"] = wrapped(t, true, test.wrap).file(65535)
	}
	for link := range readable {
		c := newCapture(t)
		c.link, c.six = link, link == linkIPv6
		captures["link type "+fmt.Sprint(uint16(link))] = c.handshake().add(seg{ms: 110, from: client, flags: "A", seq: 1, ack: 1, bytes: 1000}).file(65535)
	}
	c := newCapture(t).handshake().add(seg{ms: 110, from: client, flags: "A", seq: 1, ack: 1, bytes: 1000})
	for name, snap := range map[string]int{"options cut": 44, "in timestamps": 52, "headers cut after the first": 40} {
		captures[name] = c.file(snap)
	}
	udp := newCapture(t).raw(0, outer4(17, udp(9999, make([]byte, 40))))
	udp.records = slices.Concat(udp.records, c.records)
	captures["other packets around it"] = udp.raw(5000, outer4(17, udpPacket)).file(128)
	for name, data := range captures {
		t.Run(name, func(t *testing.T) {
			out, want := exported(t, data, Options{})
			got, err := Read(bytes.NewReader(out), Options{})
			must(t, err)
			if diff := sameButHosts(want, got); diff != "" {
				t.Error(diff)
			}
			if got.Packets > want.Exported+2 || want.Exported == 0 {
				t.Errorf("%d packets exported, and %d are there", want.Exported, got.Packets)
			}
			again, _ := exported(t, out, Options{})
			if last, _ := Read(bytes.NewReader(again), Options{}); sameButHosts(got, last) != "" {
				t.Error("the export of the export is another")
			}
		})
	}
}

var udpPacket = udp(9999, make([]byte, 40))

// TestExportHides has no address, payload or other content of the capture in an export.
func TestExportHides(t *testing.T) {
	saved := addresses
	defer func() { addresses = saved }()
	addresses = [2][2]netip.AddrPort{
		{netip.MustParseAddrPort("172.31.9.1:40000"), netip.MustParseAddrPort("172.31.9.2:80")},
		{netip.MustParseAddrPort("[fd99::1]:40000"), netip.MustParseAddrPort("[fd99::2]:80")},
	}
	secret := []byte("secret")
	option := layers.TCPOption{OptionType: layers.TCPOptionKindMultipathTCP, OptionLength: 8, OptionData: secret}
	for name, test := range wrappings {
		for _, six := range []bool{false, true} {
			c := newCapture(t)
			c.six = six
			c.handshake().add(seg{ms: 110, from: client, flags: "A", seq: 1, ack: 1, bytes: 1000, options: []layers.TCPOption{option, stampOption(7, 8)}})
			ip := c.records[3].data
			copy(ip[len(ip)-1000:], bytes.Repeat(secret, 100))
			c.wrap(test.wrap)
			out, _ := exported(t, c.file(65535), Options{})
			for _, hidden := range [][]byte{
				secret, c.addresses()[client].Addr().AsSlice(), c.addresses()[server].Addr().AsSlice(),
				{192, 0, 2, 1}, {192, 0, 2, 2}, {0x20, 1, 0xd, 0xb8}, {0xac, 1, 2, 3, 4},
			} {
				if bytes.Contains(out, hidden) {
					t.Errorf("%s, IPv6 %v: %x is in the export", name, six, hidden)
				}
			}
		}
	}
}

// TestHide clears what names hosts in a header, and nothing else.
func TestHide(t *testing.T) {
	for name, test := range map[string]struct {
		header     header
		have, want string
	}{
		"options of TCP": {
			hTCP, "\x02\x04\x05\xb4\x1e\x08secret\x01\x22\x04ab\x00more",
			"\x02\x04\x05\xb4\x1e\x08\x00\x00\x00\x00\x00\x00\x01\x22\x04\x00\x00\x00\x00\x00\x00\x00",
		},
		"of another length than they have": {
			hTCP, "\x04\x08secret\x02\x06host\x03\x04ab\x08\x06host\x05\x06host\x01\x04\x02",
			"\x04\x08\x00\x00\x00\x00\x00\x00\x02\x06\x00\x00\x00\x00\x03\x04\x00\x00\x08\x06\x00\x00\x00\x00\x05\x06\x00\x00\x00\x00\x01\x04\x02",
		},
		"of their length":   {hTCP, "\x05\x12edgesofseventeen\x03\x03\x07\x08\x0atwostamp", "\x05\x12edgesofseventeen\x03\x03\x07\x08\x0atwostamp"},
		"cut off":           {hTCP, "\x05\x12host", "\x05\x12\x00\x00\x00\x00"},
		"of no length":      {hTCP, "\x02\x00host", "\x02\x00\x00\x00\x00\x00"},
		"GRE with a route":  {hGRE, "\xf0\x00\x08\x00\x01\x02\x00\x00keyyseqq\x08\x00\x00\x04host\x00\x00\x00\x00", "\xf0\x00\x08\x00\x00\x00\x00\x00keyyseqq\x08\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00"},
		"GRE with an empty": {hGRE, "\x40\x00\x08\x00\x01\x02\x00\x00\x08\x00\x00\x00\x08\x00\x00\x04host\x00\x00\x00\x00", "\x40\x00\x08\x00\x00\x00\x00\x00\x08\x00\x00\x00\x08\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00"},
		"ERSPAN type II":    {hERSPAN2, "\x10\x05\x00\x07port", "\x10\x05\x00\x07\x00\x00\x00\x00"},
		"ERSPAN type III":   {hERSPAN3, "\x20\x05\x00\x07timegr\x80\x8f", "\x20\x05\x00\x07\x00\x00\x00\x00\x00\x00\x00\x01"},
		"and of a platform": {hERSPAN3, "\x20\x05\x00\x07timegr\x80\x8fplatform", "\x20\x05\x00\x07\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00"},
	} {
		b := []byte(test.have)
		if test.header == hTCP {
			b = append(make([]byte, 20), b...)
		}
		must(t, newExporter(io.Discard).hide(test.header, b))
		if got := string(b[len(b)-len(test.have):]); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// TestExportAsTshark has tshark read exports: the packets are whole but for their payload.
func TestExportAsTshark(t *testing.T) {
	program := nettest.RequireProgram(t, "tshark", "tshark")
	all := newCapture(t)
	all.link = linkEthernet
	for _, test := range wrappings {
		if test.tshark == nil {
			all.records = slices.Concat(all.records, wrapped(t, false, test.wrap).records, wrapped(t, true, test.wrap).records)
		}
	}
	out, result := exported(t, all.file(65535), Options{})
	file := filepath.Join(t.TempDir(), "export.pcap")
	must(t, os.WriteFile(file, out, 0o600))
	text, err := exec.Command(program, "-n", "-o", "ip.check_checksum:TRUE", "-r", file, "-Y", "tcp.port==40000 && !ip.checksum.status==Bad", "-T", "fields", "-e", "frame.len").Output()
	must(t, err)
	if got := int64(strings.Count(string(text), "\n")); got != result.Exported || got != int64(len(all.records)) {
		t.Errorf("tshark reads %d packets of %d", got, result.Exported)
	}
}

// TestExportSelects writes the selected connections alone.
func TestExportSelects(t *testing.T) {
	c := newCapture(t).handshake()
	saved := addresses[0][client]
	defer func() { addresses[0][client] = saved }()
	addresses[0][client] = netip.AddrPortFrom(saved.Addr(), 40001)
	c.add(seg{ms: 0, from: client, flags: "S"})
	out, result := exported(t, c.file(128), Options{Between: [2]End{{Port: 40001}}})
	got, err := Read(bytes.NewReader(out), Options{})
	must(t, err)
	if result.Exported != 1 || len(got.Connections) != 1 || got.Connections[0].Client.Port() != 40001 || got.End.Sub(got.Start) != result.End.Sub(result.Start) {
		t.Errorf("%d packets exported, %+v", result.Exported, got)
	}
}

// TestExportFails returns the writer's error.
func TestExportFails(t *testing.T) {
	full := errors.New("no space left")
	r, w := io.Pipe()
	r.CloseWithError(full)
	failed := (*ExportError)(nil)
	if _, err := Read(bytes.NewReader(seeds(t)["queue-sender.pcap"]), Options{Export: w}); !errors.Is(err, full) || !errors.As(err, &failed) {
		t.Errorf("got %v", err)
	}
}

// TestExportOfDamaged has the packets before an error that ends the reading.
func TestExportOfDamaged(t *testing.T) {
	g := ng{binary.LittleEndian}
	one := newCapture(t).handshake().records
	head := slices.Concat(g.section(), g.device(linkRaw))
	for i, r := range one {
		head = append(head, g.packet(0, uint64(1e9+i), r.data, r.wire)...)
	}
	for name, rest := range map[string][]byte{
		"many interfaces": bytes.Repeat(g.device(linkRaw), maxDevices),
		"damage":          g.words(ngPacket, 1),
		"cut off":         {6, 0, 0},
	} {
		var out bytes.Buffer
		result, err := Read(bytes.NewReader(slices.Concat(head, rest)), Options{Export: &out})
		got, again := Read(&out, Options{})
		if err == nil || again != nil || result.Exported != int64(len(one)) || len(got.Connections) != 1 {
			t.Errorf("%s: %v, %d packets exported; then %v, %d packets", name, err, result.Exported, again, got.Packets)
		}
	}
}

// FuzzExport exports whatever is read, and reads it again.
func FuzzExport(f *testing.F) {
	for _, test := range wrappings {
		for _, six := range []bool{false, true} {
			f.Add(wrapped(f, six, test.wrap).file(65535))
		}
	}
	for link := range readable {
		c := newCapture(f)
		c.link = link
		f.Add(c.handshake().file(128))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var b bytes.Buffer
		want, err := Read(io.LimitReader(bytes.NewReader(data), 1<<20), Options{Export: &b})
		if truncated := (*TruncatedError)(nil); err != nil && !errors.As(err, &truncated) || len(want.Connections) == 0 {
			return
		}
		got, err := Read(bytes.NewReader(b.Bytes()), Options{})
		if err != nil || len(got.Connections) != len(want.Connections) {
			t.Fatalf("%v: %d connections, and %d in the export", err, len(want.Connections), len(got.Connections))
		}
		for i := range want.Connections {
			a, b := want.Connections[i], got.Connections[i]
			if a.Directions[0].Bytes+a.Directions[1].Bytes != b.Directions[0].Bytes+b.Directions[1].Bytes || a.Network != b.Network {
				t.Fatalf("%+v\nand in the export\n%+v", a, b)
			}
		}
	})
}

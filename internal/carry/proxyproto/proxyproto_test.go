package proxyproto

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var compareAddrPort = cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })

// v2 builds a header of version 2 with a correct length field.
func v2(versionCommand, familyProtocol byte, block string) string {
	b := append([]byte(signatureV2), versionCommand, familyProtocol)
	b = binary.BigEndian.AppendUint16(b, uint16(len(block)))
	return string(b) + block
}

func pair(version int, source, destination string) Header {
	return Header{Version: version, Source: netip.MustParseAddrPort(source), Destination: netip.MustParseAddrPort(destination)}
}

const (
	block4 = "\xc0\x00\x02\x01\xc6\x33\x64\x02\x04\xd2\x17\x70"
	block6 = "\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01" +
		"\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x04\xd2\x17\x70"
)

var validHeaders = []struct {
	name  string
	input string
	want  Header
}{
	{"v1 tcp4", "PROXY TCP4 192.0.2.1 198.51.100.2 1234 6000\r\n", pair(1, "192.0.2.1:1234", "198.51.100.2:6000")},
	{"v1 tcp4 extremes", "PROXY TCP4 0.0.0.0 255.255.255.255 0 65535\r\n", pair(1, "0.0.0.0:0", "255.255.255.255:65535")},
	{"v1 tcp6", "PROXY TCP6 2001:db8::1 2001:DB8::2 1234 6000\r\n", pair(1, "[2001:db8::1]:1234", "[2001:db8::2]:6000")},
	{"v1 tcp6 longest", "PROXY TCP6 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe 65535 65535\r\n",
		pair(1, "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535", "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe]:65535")},
	{"v1 tcp6 with a mapped source", "PROXY TCP6 ::ffff:192.0.2.1 2001:db8::2 1234 6000\r\n", pair(1, "192.0.2.1:1234", "[2001:db8::2]:6000")},
	{"v1 unknown", "PROXY UNKNOWN\r\n", Header{Version: 1, Local: true}},
	{"v1 unknown with addresses", "PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", Header{Version: 1, Local: true}},
	{"v1 unknown with anything", "PROXY UNKNOWN \x00\r\xff\r\n", Header{Version: 1, Local: true}},
	{"v1 unknown of full length", "PROXY UNKNOWN " + strings.Repeat("x", MaxLenV1-len("PROXY UNKNOWN \r\n")) + "\r\n", Header{Version: 1, Local: true}},
	{"v2 tcp4", v2(0x21, 0x11, block4), pair(2, "192.0.2.1:1234", "198.51.100.2:6000")},
	{"v2 tcp6", v2(0x21, 0x21, block6), pair(2, "[2001:db8::1]:1234", "[2001:db8::2]:6000")},
	{"v2 tcp4 with extensions", v2(0x21, 0x11, block4+"\x04\x00\x03\x00\x00\x00\x02\x00\x01x"), pair(2, "192.0.2.1:1234", "198.51.100.2:6000")},
	{"v2 longest", v2(0x21, 0x11, block4+strings.Repeat("\x00", MaxLenV2-fixedLenV2-len(block4))), pair(2, "192.0.2.1:1234", "198.51.100.2:6000")},
	{"v2 local", v2(0x20, 0x00, ""), Header{Version: 2, Local: true}},
	{"v2 local ignores a short block", v2(0x20, 0x11, "\x01"), Header{Version: 2, Local: true}},
	{"v2 local ignores addresses", v2(0x20, 0x11, block4), Header{Version: 2, Local: true}},
	{"v2 unspecified", v2(0x21, 0x00, "\x04\x00\x00"), Header{Version: 2, Local: true}},
	{"v2 udp4", v2(0x21, 0x12, block4), Header{Version: 2, Local: true}},
	{"v2 unix", v2(0x21, 0x31, strings.Repeat("\x00", 216)), Header{Version: 2, Local: true}},
}

func TestParse(t *testing.T) {
	for _, tt := range validHeaders {
		t.Run(tt.name, func(t *testing.T) {
			for _, payload := range []string{"", "\r\n", "payload"} {
				h, n, err := Parse([]byte(tt.input + payload))
				if err != nil {
					t.Fatal(err)
				}
				if n != len(tt.input) {
					t.Errorf("consumed %d bytes, want %d", n, len(tt.input))
				}
				if diff := cmp.Diff(tt.want, h, compareAddrPort); diff != "" {
					t.Errorf("header (-want +got):\n%s", diff)
				}
			}
			for i := range tt.input {
				if _, n, err := Parse([]byte(tt.input[:i])); err != ErrIncomplete || n != 0 {
					t.Fatalf("first %d bytes: n = %d, err = %v, want 0 and ErrIncomplete", i, n, err)
				}
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	tests := []struct {
		name   string
		input  string
		reason string
	}{
		{"another protocol", "GET / HTTP/1.1\r\n", "invalid first byte 0x47"},
		{"tls", "\x16\x03\x01", "byte 0x16"},
		{"v1 lower case", "PROXy ", `does not begin with "PROXY "`},
		{"v1 early: wrong word", "PROXY UDP", "want TCP4, TCP6 or UNKNOWN"},
		{"v1 early: letter in an IPv4 address", "PROXY TCP4 192.0.2.a", "byte 0x61 among the addresses"},
		{"v1 early: line feed without carriage return", "PROXY TCP4 192.0.2.1\n", "byte 0x0a among the addresses"},
		{"v1 unknown run on", "PROXY UNKNOWNX\r\n", "unknown protocol"},
		{"v1 without a protocol", "PROXY \r\n", "unknown protocol"},
		{"v1 family mismatch", "PROXY TCP6 192.0.2.1 198.51.100.2 1 2\r\n", "invalid address"},
		{"v1 v6 in tcp4", "PROXY TCP4 ::1 ::2 1 2\r\n", "byte 0x3a among the addresses"},
		{"v1 zone", "PROXY TCP6 fe80::1%e 2001:db8::2 1 2\r\n", "byte 0x25"},
		{"v1 octet with leading zero", "PROXY TCP4 192.0.02.1 198.51.100.2 1 2\r\n", "invalid address"},
		{"v1 port with leading zero", "PROXY TCP4 192.0.2.1 198.51.100.2 01 2\r\n", `invalid port "01"`},
		{"v1 port too large", "PROXY TCP4 192.0.2.1 198.51.100.2 1 65536\r\n", `invalid port "65536"`},
		{"v1 empty port", "PROXY TCP4 192.0.2.1 198.51.100.2 1 \r\n", `invalid port ""`},
		{"v1 two spaces", "PROXY TCP4 192.0.2.1  198.51.100.2 1 2\r\n", "7 words"},
		{"v1 too few words", "PROXY TCP4 192.0.2.1 198.51.100.2 1\r\n", "5 words"},
		{"v1 stray carriage return", "PROXY TCP4 192.0.2.1\r 198.51.100.2 1 2\r\n", "byte 0x0d"},
		{"v1 too long", "PROXY UNKNOWN " + strings.Repeat("x", 100), "within 107 bytes"},
		{"v1 one byte too long", "PROXY UNKNOWN " + strings.Repeat("x", MaxLenV1-len("PROXY UNKNOWN \r\n")+1) + "\r\n", "within 107 bytes"},
		{"v2 early: signature", "\r\n\r\n\x00\r\nQUIX", "signature"},
		{"v2 early: version", signatureV2 + "\x11", "version 1"},
		{"v2 early: command", signatureV2 + "\x22", "unknown command 2"},
		{"v2 early: family", signatureV2 + "\x21\x41", "unknown family and protocol 0x41"},
		{"v2 early: protocol", signatureV2 + "\x21\x13", "unknown family and protocol 0x13"},
		{"v2 early: too long", signatureV2 + "\x21\x11\xff\xff", "65551 bytes long"},
		{"v2 one byte too long", signatureV2 + "\x21\x11\x0f\xf1", "4097 bytes long"},
		{"v2 early: short for tcp4", signatureV2 + "\x21\x11\x00\x0b", "11 bytes cannot hold"},
		{"v2 early: short for tcp6", signatureV2 + "\x21\x21\x00\x23", "35 bytes cannot hold"},
		{"v2 early: short for unix", signatureV2 + "\x21\x31\x00\xd7", "215 bytes cannot hold"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, n, err := Parse([]byte(tt.input))
			if !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), tt.reason) {
				t.Errorf("err = %v, want one that says %q", err, tt.reason)
			}
			if n != 0 {
				t.Errorf("n = %d beside an error", n)
			}
		})
	}
}

func TestAppendHeader(t *testing.T) {
	tests := []struct {
		name   string
		header Header
		v1, v2 string
	}{
		{"ipv4", pair(0, "192.0.2.1:1234", "198.51.100.2:6000"),
			"PROXY TCP4 192.0.2.1 198.51.100.2 1234 6000\r\n", v2(0x21, 0x11, block4)},
		{"ipv6", pair(0, "[2001:db8::1]:1234", "[2001:db8::2]:6000"),
			"PROXY TCP6 2001:db8::1 2001:db8::2 1234 6000\r\n", v2(0x21, 0x21, block6)},
		{"both mapped", pair(0, "[::ffff:192.0.2.1]:1234", "[::ffff:198.51.100.2]:6000"),
			"PROXY TCP4 192.0.2.1 198.51.100.2 1234 6000\r\n", v2(0x21, 0x11, block4)},
		{"mixed families", pair(0, "192.0.2.1:1234", "[2001:db8::2]:6000"),
			"PROXY TCP6 ::ffff:192.0.2.1 2001:db8::2 1234 6000\r\n",
			v2(0x21, 0x21, strings.Repeat("\x00", 10)+"\xff\xff\xc0\x00\x02\x01"+block6[16:])},
		{"zone", pair(0, "[fe80::1%eth0]:1234", "[2001:db8::2]:6000"),
			"PROXY TCP6 fe80::1 2001:db8::2 1234 6000\r\n",
			v2(0x21, 0x21, "\xfe\x80"+strings.Repeat("\x00", 13)+"\x01"+block6[16:])},
		{"local", Header{Local: true}, "PROXY UNKNOWN\r\n", v2(0x20, 0, "")},
		{"no destination", Header{Source: netip.MustParseAddrPort("192.0.2.1:1")}, "PROXY UNKNOWN\r\n", v2(0x20, 0, "")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := AppendHeader([]byte("before"), 1, tt.header); string(got) != "before"+tt.v1 {
				t.Errorf("version 1: %q, want %q", got, tt.v1)
			}
			if got := AppendHeader([]byte("before"), 2, tt.header); string(got) != "before"+tt.v2 {
				t.Errorf("version 2: %q, want %q", got, tt.v2)
			}
		})
	}
}

// FuzzParse checks invariants for any input: bounds, the prefix property, and
// independence of the bytes behind the header. A parsed header also survives
// writing in either version.
func FuzzParse(f *testing.F) {
	for _, tt := range validHeaders {
		f.Add([]byte(tt.input))
	}
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, n, err := Parse(data)
		switch {
		case err == ErrIncomplete:
			if len(data) >= MaxLen {
				t.Fatalf("still undecided after %d bytes", len(data))
			}
		case err != nil:
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("err = %v, want ErrMalformed", err)
			}
			// More bytes never make a malformed header valid.
			if _, _, err := Parse(append(bytes.Clone(data), "\r\n"...)); !errors.Is(err, ErrMalformed) {
				t.Fatalf("two more bytes turned the error into %v", err)
			}
		default:
			if n < 1 || n > len(data) || n > MaxLen {
				t.Fatalf("consumed %d of %d bytes", n, len(data))
			}
			if h.Local == h.Source.IsValid() || h.Local == h.Destination.IsValid() {
				t.Fatalf("local and addresses contradict each other: %+v", h)
			}
			for i := range n {
				if _, _, err := Parse(data[:i]); err != ErrIncomplete {
					t.Fatalf("first %d of %d bytes: %v", i, n, err)
				}
			}
			for version := 1; version <= 2; version++ {
				written := AppendHeader(nil, version, h)
				again, m, err := Parse(written)
				want := h
				want.Version = version
				if err != nil || m != len(written) || again != want {
					t.Fatalf("%+v was written as %q and read as %+v, %v", h, written, again, err)
				}
			}
		}
	})
}

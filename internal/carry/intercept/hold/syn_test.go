package hold

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"longhaul/internal/sys/checksum"
	"longhaul/internal/sys/kernel"
	"longhaul/internal/words/remedy"
)

// copyOf is a filter's copy of the headers.
func copyOf(ip, tcp []byte) []byte {
	record := make([]byte, recordSize)
	copy(record[ipAt:], ip)
	copy(record[tcpAt:], tcp)
	return record
}

var (
	syn4 = append([]byte{0x46, 0x10, 0, 64, 1, 2, 0x40, 0, 63, unix.IPPROTO_TCP, 0, 0}, 10, 9, 1, 2, 10, 9, 2, 2)
	syn6 = append(append([]byte{0x60, 0, 0, 1, 0, 32, 0 /* hop-by-hop options */, 63},
		netip.MustParseAddr("fd09:1::2").AsSlice()...), netip.MustParseAddr("fd09:2::2").AsSlice()...)
	// With an MSS and a window scale, and a checksum that the device was to make.
	syn = []byte{0x80, 1, 0x13, 0x88, 1, 2, 3, 4, 0, 0, 0, 0, 0x70, 0xc2, 0xfa, 0xf0, 0x17, 0x44, 0, 0, 2, 4, 5, 0xb4, 1, 3, 3, 10}
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name     string
		record   []byte
		six      bool
		from, to string // empty: it is no SYN
	}{
		{"IPv4", copyOf(syn4, syn), false, "10.9.1.2:32769", "10.9.2.2:5000"},
		{"IPv6", copyOf(syn6, syn), true, "[fd09:1::2]:32769", "[fd09:2::2]:5000"},
		{"another family", copyOf(syn4, syn), true, "", ""},
		{"short", copyOf(syn4, syn)[:recordSize-1], false, "", ""},
		{"a SYN-ACK", copyOf(syn4, with(syn, 13, 0x12)), false, "", ""},
		{"a reset", copyOf(syn4, with(syn, 13, 0x04)), false, "", ""},
		{"a TCP header that is too short", copyOf(syn4, with(syn, 12, 0x40)), false, "", ""},
	} {
		s, ok := parse(c.record, Place{Six: c.six})
		if ok != (c.from != "") || ok && (s.From.String() != c.from || s.To.String() != c.to) {
			t.Errorf("%s: from %v to %v, %v; want %q to %q", c.name, s.From, s.To, ok, c.from, c.to)
		}
		if ok && s.Sequence() != 0x01020304 {
			t.Errorf("%s: the sequence number is %#x", c.name, s.Sequence())
		}
	}
}

func with(b []byte, at int, value byte) []byte {
	b = bytes.Clone(b)
	b[at] = value
	return b
}

// The frame of a SYN has all its TCP options, no options of IP, and right checksums.
func TestFrame(t *testing.T) {
	device := [6]byte{2, 0, 0, 0, 0, 7}
	for _, ip := range [][]byte{syn4, syn6} {
		s, _ := parse(copyOf(ip, syn), Place{Six: len(ip) == ip6Header})
		expectFrame(t, s, s.frame(device, HostUnreachable), append(device[:], 0x02, 'l', 'h', 'a', 'l', byte(HostUnreachable)))
	}
}

func expectFrame(t *testing.T, s SYN, frame, addresses []byte) {
	t.Helper()
	header := ip4Header
	if s.Six {
		header = ip6Header
	}
	ip, tcp := frame[14:14+header], frame[14+header:]
	if !bytes.Equal(frame[:12], addresses) {
		t.Errorf("the frame's addresses are % x", frame[:12])
	}
	if got := with(with(tcp, 16, s.tcp[16]), 17, s.tcp[17]); !bytes.Equal(got, s.tcp) {
		t.Errorf("the TCP header is % x, was % x", got, s.tcp)
	}
	pseudo := binary.BigEndian.AppendUint16([]byte{0, unix.IPPROTO_TCP}, uint16(len(tcp)))
	from := 8
	if !s.Six {
		from = 12
		if ip[0] != 0x45 || checksum.Sum(ip) != 0xffff || int(binary.BigEndian.Uint16(ip[2:])) != header+len(tcp) || ip[6]&0x3f|ip[7] != 0 {
			t.Errorf("IPv4 header % x", ip)
		}
	} else if ip[0]>>4 != 6 || ip[6] != unix.IPPROTO_TCP || int(binary.BigEndian.Uint16(ip[4:])) != len(tcp) {
		t.Errorf("IPv6 header % x", ip)
	}
	if checksum.Sum(ip[from:], pseudo, tcp) != 0xffff {
		t.Errorf("the checksum of % x is wrong", tcp)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(copyOf(syn4, syn), false)
	f.Add(copyOf(syn6, syn), true)
	f.Fuzz(func(t *testing.T, record []byte, six bool) {
		_ = numberOf(record)
		s, ok := parse(record, Place{Six: six})
		if !ok {
			return
		}
		if s.From.Addr().Is6() != six || s.To.Addr().Is6() != six {
			t.Errorf("from %v to %v", s.From, s.To)
		}
		source := SourceOf(Reset)
		expectFrame(t, s, s.frame([6]byte{}, Reset), append(make([]byte, 6), source[:]...))
	})
}

// TestLoadError holds that the kernel is not blamed if a process had no descriptor left to load a program.
func TestLoadError(t *testing.T) {
	log := []string{"Func#1 is safe for any args that match its prototype"}
	for errno, blamed := range map[unix.Errno]bool{unix.EACCES: true, unix.EMFILE: false, unix.ENFILE: false} {
		err := loadError("load", &ebpf.VerifierError{Cause: errno, Log: log})
		if lack := (*kernel.ErrUnsupported)(nil); errors.As(err, &lack) != blamed || remedy.Of(err) == "" != blamed {
			t.Errorf("%v: %v, remedy %q", errno, err, remedy.Of(err))
		}
	}
}

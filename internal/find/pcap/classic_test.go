package pcap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"longhaul/test/nettest"
)

// classic makes parts of a pcap file.
type classic struct {
	byteOrder
	magic, version uint32
}

// version2 is a version of the format.
func version2(minor uint32) uint32 { return 2 | minor<<16 }

func (c classic) words(all ...uint32) (b []byte) {
	for _, w := range all {
		b = c.AppendUint32(b, w)
	}
	return b
}

// head has a snap length of 64 bytes, and flags beside the link type.
func (c classic) head() []byte {
	version := c.AppendUint16(c.AppendUint16(nil, uint16(c.version)), uint16(c.version>>16))
	return slices.Concat(c.words(c.magic), version, c.words(0, 0, 64, 4<<28|1<<26|uint32(linkRaw)))
}

func (c classic) packet(fraction, captured, wire uint32, data string) []byte {
	b := c.words(1000, fraction, captured, wire)
	if c.magic == magicModified {
		b = append(b, c.words(3, 0x0800)...)
	}
	return append(b, data...)
}

func snoopFile(packets ...string) []byte {
	b := append([]byte(magicSnoop), 0, 0, 0, 2, 0, 0, 0, 4)
	for i, data := range packets {
		pad := -len(data) & 3
		for _, n := range []int{len(data) + 100, len(data), 24 + len(data) + pad, 0, 1000, i} {
			b = binary.BigEndian.AppendUint32(b, uint32(n))
		}
		b = append(append(b, data...), make([]byte, pad)...)
	}
	return b
}

// classicFiles has files with what is read of them.
func classicFiles() map[string]struct {
	file []byte
	want []record
} {
	at := func(ns int64) time.Time { return time.Unix(1000, ns).UTC() }
	long := strings.Repeat("x", 100)
	type test = struct {
		file []byte
		want []record
	}
	all := map[string]test{}
	for name, order := range map[string]byteOrder{"little": binary.LittleEndian, "big": binary.BigEndian} {
		for kind, magic := range map[string]uint32{"µs": magicMicroseconds, "ns": magicNanoseconds, "modified": magicModified} {
			c := classic{order, magic, version2(4)}
			unit := int64(1000)
			if kind == "ns" {
				unit = 1
			}
			all[name+", "+kind] = test{
				slices.Concat(c.head(), c.packet(5, 3, 9, "one"), c.packet(7, 4, 2, "long"), c.packet(8, 100, 100, long), c.packet(9, 0, 0, "")),
				[]record{
					{data: []byte("one"), wire: 9, at: at(5 * unit)}, {data: []byte("long"), wire: 4, at: at(7 * unit)},
					{data: []byte(long), wire: 100, at: at(8 * unit)}, {data: []byte{}, at: at(9 * unit)},
				},
			}
		}
	}
	for _, minor := range []uint32{1, 2, 3} {
		c := classic{binary.LittleEndian, magicMicroseconds, version2(minor)}
		all["version 2."+strconv.Itoa(int(minor))] = test{
			slices.Concat(c.head(), c.packet(5, 9, 3, "one"), c.packet(6, 3, 3, "two")),
			[]record{{data: []byte("one"), wire: 9, at: at(5000)}, {data: []byte("two"), wire: 3, at: at(6000)}},
		}
	}
	c := classic{binary.LittleEndian, magicMicroseconds, version2(3)}
	all["version 2.3 in today's order"] = test{slices.Concat(c.head(), c.packet(5, 3, 9, "one")), []record{{data: []byte("one"), wire: 9, at: at(5000)}}}
	for name, test := range all {
		for i := range test.want {
			test.want[i].link = linkRaw
		}
		all[name] = test
	}
	all["snoop"] = test{snoopFile("one", "four"), []record{
		{data: []byte("one"), wire: 103, at: at(0), link: linkEthernet}, {data: []byte("four"), wire: 104, at: at(1000), link: linkEthernet},
	}}
	return all
}

func TestClassicRecords(t *testing.T) {
	for name, test := range classicFiles() {
		got, err := records(bytes.NewReader(test.file))
		if err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %v\n%v\nwant\n%v", name, err, got, test.want)
		}
		for cut := 1; cut < len(test.file); cut++ {
			if _, err := records(bytes.NewReader(test.file[:cut])); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, ErrNotCapture) {
				t.Errorf("%s, the first %d bytes: %v", name, cut, err)
			}
		}
	}
}

// TestClassicAsTshark compares captured lengths and times with those that tshark reads.
func TestClassicAsTshark(t *testing.T) {
	program := nettest.RequireProgram(t, "tshark", "tshark")
	for name, test := range classicFiles() {
		if strings.HasPrefix(name, "big") {
			continue // tshark takes a second for each
		}
		file := filepath.Join(t.TempDir(), "capture.pcap")
		must(t, os.WriteFile(file, test.file, 0o600))
		out, err := exec.Command(program, "-n", "-r", file, "-T", "fields", "-e", "frame.cap_len", "-e", "frame.time_epoch").Output()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var want strings.Builder
		for _, r := range test.want {
			want.WriteString(strconv.Itoa(len(r.data)) + "\t1000." + strconv.Itoa(1e9 + r.at.Nanosecond())[1:] + "\n")
		}
		if got := string(out); got != want.String() {
			t.Errorf("%s: tshark reads\n%s, and here\n%s", name, got, want.String())
		}
	}
}

func TestBadClassic(t *testing.T) {
	c := classic{binary.LittleEndian, magicMicroseconds, version2(4)}
	head := snoopFile("")[:16]
	for name, test := range map[string]struct {
		file []byte
		want string
	}{
		"too long":            {slices.Concat(c.head(), c.packet(0, maxPacketBytes+1, maxPacketBytes+1, "")), "a packet has 1048577 bytes"},
		"snoop, too short":    {slices.Concat(head, binary.BigEndian.AppendUint32(nil, 9), []byte{0, 0, 0, 9, 0, 0, 0, 24}, make([]byte, 12)), "a packet of 9 bytes is in a record of 24"},
		"snoop, too long":     {slices.Concat(head, bytes.Repeat([]byte{255}, 24)), "a packet of 4294967295 bytes is in a record of 4294967295"},
		"snoop, much padding": {slices.Concat(head, []byte{0, 0, 0, 9, 0, 0, 0, 9, 255, 0, 0, 0}, make([]byte, 12)), "a packet of 9 bytes is in a record of 4278190080"},
	} {
		if _, err := records(bytes.NewReader(test.file)); err == nil || err.Error() != test.want {
			t.Errorf("%s: got %v, want %s", name, err, test.want)
		}
	}
}

// FuzzClassic reads any file in bounded memory.
func FuzzClassic(f *testing.F) {
	for _, test := range classicFiles() {
		f.Add(test.file)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := open(bytes.NewReader(data), maxZstd)
		if err != nil {
			return
		}
		for range 1000 { // a compressed file may have many
			r, err := file.next()
			if len(r.data) > maxPacketBytes || r.wire < len(r.data) {
				t.Fatalf("%+v", r)
			}
			if err != nil {
				return
			}
		}
	})
}

package pcap

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"reflect"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/gopacket/gopacket/pcapgo"
)

type byteOrder interface {
	binary.ByteOrder
	binary.AppendByteOrder
}

// ng makes parts of a pcapng file.
type ng struct{ byteOrder }

func (g ng) words(all ...uint32) (b []byte) {
	for _, w := range all {
		b = g.AppendUint32(b, w)
	}
	return b
}

func (g ng) block(kind uint32, body ...[]byte) []byte {
	b := slices.Concat(body...)
	length := uint32(12 + len(b))
	return slices.Concat(g.words(kind, length), b, g.words(length))
}

func (g ng) version(major, minor uint16, options ...[]byte) []byte {
	head := g.words(ngOrder)
	head = g.AppendUint16(g.AppendUint16(head, major), minor)
	return g.block(ngSection, head, g.words(0xffffffff, 0xffffffff), slices.Concat(options...))
}

func (g ng) section(options ...[]byte) []byte { return g.version(1, 0, options...) }

func (g ng) device(link linkType, options ...[]byte) []byte {
	return g.block(ngInterface, g.AppendUint16(g.AppendUint16(nil, uint16(link)), 0), g.words(0), slices.Concat(options...))
}

func (g ng) option(code uint16, value ...byte) []byte {
	b := g.AppendUint16(g.AppendUint16(nil, code), uint16(len(value)))
	return padded(append(b, value...))
}

func padded(b []byte) []byte { return append(b, make([]byte, -len(b)&3)...) }

func (g ng) packet(device int, stamp uint64, data []byte, wire int, options ...[]byte) []byte {
	return g.block(ngPacket, g.words(uint32(device), uint32(stamp>>32), uint32(stamp), uint32(len(data)), uint32(wire)),
		padded(slices.Clone(data)), slices.Concat(options...))
}

func (g ng) oldPacket(device uint16, stamp uint64, data []byte) []byte {
	return g.block(ngOldPacket, g.AppendUint16(g.AppendUint16(nil, device), 7),
		g.words(uint32(stamp>>32), uint32(stamp), uint32(len(data)), uint32(len(data))), padded(slices.Clone(data)))
}

// repeated is a text many times over.
type repeated struct {
	text  []byte
	times int
	at    int
}

func (r *repeated) Read(b []byte) (n int, err error) {
	for n < len(b) && r.times > 0 {
		k := copy(b[n:], r.text[r.at:])
		n, r.at = n+k, r.at+k
		if r.at == len(r.text) {
			r.times, r.at = r.times-1, 0
		}
	}
	if n == 0 && len(b) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// Files of tens of megabytes, which compress to less than a hundredth, take no memory.
func TestManyBlocks(t *testing.T) {
	const (
		many    = 4_000_000
		large   = 64 << 20
		maxMade = 4 << 20 // bytes
	)
	g := ng{binary.LittleEndian}
	one := slices.Concat(g.section(), g.device(linkRaw))
	comment := g.option(1, make([]byte, 60_000)...)
	zeros := func(n int) io.Reader { return &repeated{make([]byte, 4096), n / 4096, 0} }
	begin := func(kind, length uint32, body ...uint32) []byte {
		return g.words(append([]uint32{kind, length}, body...)...)
	}
	classic := binary.LittleEndian.AppendUint32(nil, magicMicroseconds)
	classic = binary.LittleEndian.AppendUint32(classic, 2|4<<16)
	classic = append(classic, g.words(0, 0, 0xffffffff, uint32(linkRaw))...)
	classic = append(classic, g.words(1, 0, large, large)...)
	for _, test := range []struct {
		name  string
		parts []io.Reader
		want  error // nil: read to the end, without TCP
	}{
		{"interfaces", []io.Reader{bytes.NewReader(g.section()), &repeated{text: g.device(linkRaw), times: many}}, ErrManyInterfaces},
		{"as many as are read, in each of many sections", []io.Reader{&repeated{text: slices.Concat(g.section(), bytes.Repeat(g.device(linkRaw), maxDevices)), times: 500}}, nil},
		{"sections", []io.Reader{&repeated{text: g.section(comment), times: 500}}, nil},
		{"names", []io.Reader{bytes.NewReader(one), &repeated{text: g.block(4, g.option(1, 10, 0, 0, 1, 'a', 0), g.words(0)), times: many}}, nil},
		{"statistics", []io.Reader{bytes.NewReader(one), &repeated{text: g.block(5, g.words(0, 0, 0), g.option(1, 'a')), times: many}}, nil},
		{"secrets", []io.Reader{bytes.NewReader(one), &repeated{text: g.block(10, g.words(0x544c534b, 4, 0)), times: many}}, nil},
		{"a large secret", []io.Reader{bytes.NewReader(one), bytes.NewReader(begin(10, large+12)), zeros(large), bytes.NewReader(g.words(large + 12))}, nil},
		{"custom blocks", []io.Reader{bytes.NewReader(one), &repeated{text: g.block(0xbad, g.words(1)), times: many}}, nil},
		{"options of interfaces", []io.Reader{bytes.NewReader(g.section()), &repeated{text: g.device(linkRaw, comment, comment), times: 1000}}, nil},
		{"options of packets", []io.Reader{bytes.NewReader(one), &repeated{text: g.packet(0, 1, nil, 0, bytes.Repeat(g.option(1, 'a'), 1000)), times: 1000}}, nil},
		{"a large packet", []io.Reader{bytes.NewReader(one), bytes.NewReader(begin(ngPacket, large+32, 0, 0, 1, large, large)), zeros(large), bytes.NewReader(g.words(large + 32))}, nil},
		{"a large packet without time", []io.Reader{bytes.NewReader(one), bytes.NewReader(begin(ngSimple, large+16, large)), zeros(large), bytes.NewReader(g.words(large + 16))}, nil},
		{"a large packet of a pcap file", []io.Reader{bytes.NewReader(classic), zeros(large)}, &TruncatedError{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			want := test.want
			if want == nil {
				want = ErrNoTCP
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := Read(io.MultiReader(test.parts...), Options{})
			runtime.ReadMemStats(&after)
			if truncated := (*TruncatedError)(nil); !errors.Is(err, want) && !(errors.As(want, &truncated) && errors.As(err, &truncated)) {
				t.Errorf("got %v, want %v", err, want)
			}
			if made := after.TotalAlloc - before.TotalAlloc; made > maxMade {
				t.Errorf("%d bytes of memory were made, want at most %d", made, maxMade)
			}
		})
	}
}

// A file has what its blocks say in either byte order, beside blocks and options that say
// nothing of packets.
func TestNgRecords(t *testing.T) {
	at := func(s, ns int64) time.Time { return time.Unix(s, ns).UTC() }
	for _, order := range []byteOrder{binary.LittleEndian, binary.BigEndian} {
		g := ng{order}
		other := ng{binary.BigEndian}
		if order == byteOrder(binary.BigEndian) {
			other = ng{binary.LittleEndian}
		}
		name := g.option(2, []byte("eth0")...)
		offset := g.option(ngOffset, g.AppendUint64(nil, 100)...)
		file := slices.Concat(
			g.section(g.option(4, []byte("a program")...), g.option(0)),
			g.device(linkRaw, name, g.option(0)),
			g.device(linkIPv4, g.option(ngResolution, 9), name),
			g.block(4, g.option(1, 10, 0, 0, 1, 'a', 0), g.words(0)),
			g.device(linkIPv6, offset, g.option(ngResolution, 0x80|10), g.option(0)),
			g.packet(0, 3_000_001, []byte("one"), 9, g.option(1, 'a'), g.option(0)),
			g.packet(1, 3_000_000_001, []byte("three"), 5),
			g.block(5, g.words(0, 0, 0)),
			g.packet(2, 3<<10+1, nil, 0),
			g.oldPacket(1, 5, []byte("four")),
			g.block(ngSimple, g.words(4), []byte("five")),
			g.block(0xbad, []byte("anything")),
			g.version(9, 0), g.block(ngInterface), g.block(ngPacket), // of an unknown version
			other.section(),
			other.device(linkIPv6),
			other.packet(0, 7_000_000, []byte("six"), 3),
		)
		want := []record{
			{data: []byte("one"), wire: 9, at: at(3, 1000), link: linkRaw},
			{data: []byte("three"), wire: 5, at: at(3, 1), link: linkIPv4, device: 1},
			{data: []byte{}, at: at(103, 976562), link: linkIPv6, device: 2},
			{data: []byte("four"), wire: 4, at: at(0, 5), link: linkIPv4, device: 1},
			{data: []byte("five"), wire: 4, link: linkRaw},
			{data: []byte("six"), wire: 3, at: at(7, 0), link: linkIPv6},
		}
		version := (*versionError)(nil)
		got, err := records(bytes.NewReader(file))
		if !errors.As(err, &version) || !reflect.DeepEqual(got, want) {
			t.Errorf("%v: %v\n%v\nwant\n%v", order, err, got, want)
		}
		for cut := 1; cut < len(file); cut++ {
			if _, err := records(bytes.NewReader(file[:cut])); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, ErrNotCapture) && !errors.As(err, &version) {
				t.Errorf("%v, the first %d bytes: %v", order, cut, err)
			}
		}
	}
}

func records(r io.Reader) (all []record, err error) {
	f, err := open(r, maxZstd)
	if err != nil {
		return nil, err
	}
	for {
		r, err := f.next()
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		r.data = slices.Clone(r.data)
		all = append(all, r)
	}
}

func TestBadNg(t *testing.T) {
	g := ng{binary.LittleEndian}
	one := slices.Concat(g.section(), g.device(linkRaw))
	const length = "a block's length does not match its content"
	for name, test := range map[string]struct {
		file []byte
		want string
	}{
		"no order":                {g.block(ngSection, make([]byte, 16)), "a section has no byte order"},
		"short section":           {g.block(ngSection, g.words(ngOrder, 1, 0)), length},
		"short block":             {slices.Concat(one, g.words(0xbad, 8, 0)), length},
		"short interface":         {slices.Concat(one, g.block(ngInterface, g.words(1))), length},
		"short packet":            {slices.Concat(one, g.block(ngPacket, g.words(0, 0, 0, 0))), length},
		"short simple packet":     {slices.Concat(one, g.block(ngSimple)), length},
		"longer than its block":   {slices.Concat(one, g.block(ngPacket, g.words(0, 0, 0, 9, 9, 1, 2))), length},
		"option beyond its block": {slices.Concat(g.section(), g.block(ngInterface, g.words(1, 0), g.words(1|9<<16, 0))), length},
		"no such interface":       {slices.Concat(one, g.packet(1, 0, nil, 0)), "a packet is of interface 1, and the section has 1"},
		"no interface":            {slices.Concat(g.section(), g.block(ngSimple, g.words(0))), "a packet is of interface 0, and the section has 0"},
		"resolution":              {slices.Concat(g.section(), g.device(linkRaw, g.option(ngResolution, 20))), "timestamps of 10^-20 s are too fine"},
		"binary resolution":       {slices.Concat(g.section(), g.device(linkRaw, g.option(ngResolution, 0xc0))), "timestamps of 2^-64 s are too fine"},
	} {
		if _, err := records(bytes.NewReader(padded(test.file))); err == nil || err.Error() != test.want {
			t.Errorf("%s: got %v, want %s", name, err, test.want)
		}
	}
}

// Whatever a file has, its blocks take bounded memory.
func FuzzNg(f *testing.F) {
	for _, order := range []byteOrder{binary.LittleEndian, binary.BigEndian} {
		g := ng{order}
		f.Add(slices.Concat(g.section(g.option(1, 'a')), g.device(linkRaw, g.option(ngResolution, 9), g.option(0)),
			g.packet(0, 1, []byte("one"), 3, g.option(1, 'a')), g.oldPacket(0, 1, nil), g.block(ngSimple, g.words(0)), g.version(2, 0), g.section()))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file := &ngFile{in: &counter{r: bufio.NewReader(bytes.NewReader(data))}}
		if len(data) < 4 || binary.BigEndian.Uint32(data) != ngSection {
			return
		}
		for {
			r, err := file.next()
			if len(file.devices) > maxDevices || len(r.data) > maxPacketBytes || r.wire < len(r.data) {
				t.Fatalf("%d interfaces, %+v", len(file.devices), r)
			}
			if err != nil {
				return
			}
		}
	})
}

// What a converter makes of the captures under testdata is read as they are.
func TestNgAsClassic(t *testing.T) {
	for name, data := range seeds(t) {
		for _, order := range []byteOrder{binary.LittleEndian, binary.BigEndian} {
			in, err := pcapgo.NewReader(bytes.NewReader(data))
			must(t, err)
			g := ng{order}
			file := slices.Concat(g.section(), g.device(linkType(in.LinkType()), g.option(ngResolution, 9)))
			for {
				packet, ci, err := in.ReadPacketData()
				if err == io.EOF {
					break
				}
				must(t, err)
				file = append(file, g.packet(0, uint64(ci.Timestamp.UnixNano()), packet, ci.Length)...)
			}
			want, err := Read(bytes.NewReader(data), Options{})
			must(t, err)
			got, err := Read(bytes.NewReader(file), Options{})
			must(t, err)
			got.Bytes = want.Bytes
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s, %v: another result", name, order)
			}
		}
	}
}

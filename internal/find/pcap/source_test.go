package pcap

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// source is a file of a capture in memory.
func source(name string, data []byte) Source {
	return Source{Name: name, Open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }}
}

// Several files of a capture are read as one is.
func TestFiles(t *testing.T) {
	whole := newCapture(t).handshake()
	for i := range uint32(20) {
		whole.add(
			seg{ms: 200 + 100*float64(i), from: client, flags: "PA", seq: 1 + 100*i, ack: 1, bytes: 100},
			seg{ms: 250 + 100*float64(i), from: server, flags: "A", seq: 1, ack: 101 + 100*i, window: 1000},
		)
	}
	part := func(keep func(i int, r madeRecord) bool) []byte {
		c := *whole
		c.records = nil
		for i, r := range whole.records {
			if keep(i, r) {
				c.records = append(c.records, r)
			}
		}
		return c.file(128)
	}
	between := func(a, b int) []byte { return part(func(i int, _ madeRecord) bool { return a <= i && i < b }) }
	of := func(from int) []byte {
		return part(func(_ int, r madeRecord) bool { return whole.sender(r.data) == from })
	}
	text := source("notes.txt", []byte("10:47 IP 10.0.0.1"))
	text.Optional = true
	want, err := Read(bytes.NewReader(whole.file(128)), Options{})
	must(t, err)
	for name, sources := range map[string][]Source{
		"in order":      {source("a", between(0, 10)), source("b", between(10, 20)), source("c", between(20, 99))},
		"in no order":   {source("c", between(20, 99)), source("a", between(0, 10)), source("b", between(10, 20))},
		"by direction":  {source("a", of(client)), source("b", of(server))},
		"with empty":    {source("a", between(0, 0)), source("b", between(0, 30)), source("c", between(30, 99))},
		"beside a text": {text, source("a", between(0, 10)), source("b", between(10, 99))},
		"every second":  {source("a", part(func(i int, _ madeRecord) bool { return i%2 == 0 })), source("b", part(func(i int, _ madeRecord) bool { return i%2 == 1 }))},
	} {
		got, err := ReadFiles(sources, Options{})
		must(t, err)
		got.Bytes = want.Bytes
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: another result than of one file", name)
		}
	}

	// Damage in a file ends that one.
	half := between(0, 10)
	got, err := ReadFiles([]Source{source("a", half[:len(half)-7]), source("b", between(10, 99))}, Options{})
	truncated := (*TruncatedError)(nil)
	if !errors.As(err, &truncated) || truncated.Error() != "a ends unexpectedly after 9 packets (969 bytes)" || got.Packets != want.Packets-1 {
		t.Errorf("with damage: %v, %d packets", err, got.Packets)
	}

	// The same packets in two files were captured twice.
	all := whole.file(128)
	got, err = ReadFiles([]Source{source("a", all), source("b", all)}, Options{})
	if err != nil || got.LeftOut.Duplicates != want.Packets || got.Connections[0].Directions[client].Retransmitted != 0 {
		t.Errorf("twice: %v, %+v", err, got.LeftOut)
	}
}

func TestBadFiles(t *testing.T) {
	whole := newCapture(t).handshake()
	text := source("notes.txt", []byte("10:47 IP 10.0.0.1"))
	optional := text
	optional.Optional = true
	missing := Source{Name: "gone", Open: func() (io.ReadCloser, error) { return nil, os.ErrNotExist }}
	capture := source("a", whole.file(128))
	for name, test := range map[string]struct {
		sources []Source
		want    error
		text    string
	}{
		"no capture":  {[]Source{optional, optional}, ErrNoCapture, "none of the files is"},
		"not one":     {[]Source{capture, text}, ErrNotCapture, "notes.txt: this is not"},
		"missing":     {[]Source{capture, missing}, os.ErrNotExist, "gone: file does not exist"},
		"at one time": {slices.Repeat([]Source{capture}, maxTogether+1), ErrManyTogether, "more than 64 files are of the same time"},
	} {
		if _, err := ReadFiles(test.sources, Options{}); !errors.Is(err, test.want) || !strings.HasPrefix(err.Error(), test.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	closed := 0
	counted := func() Source {
		return Source{Open: func() (io.ReadCloser, error) { return &closing{bytes.NewReader(whole.file(128)), &closed}, nil }}
	}
	if _, err := ReadFiles([]Source{counted(), counted(), text}, Options{}); err == nil || closed != 2 {
		t.Errorf("%v, %d files closed, want 2", err, closed)
	}
	if _, err := ReadFiles([]Source{counted(), counted()}, Options{}); err != nil || closed != 6 {
		t.Errorf("%v, %d files closed, want 6", err, closed)
	}
}

type closing struct {
	io.Reader
	closed *int
}

func (c *closing) Close() error {
	*c.closed++
	return nil
}

// compressed returns the files of testdata/compressed.
func compressed(t testing.TB) map[string][]byte {
	names, err := filepath.Glob("testdata/compressed/*")
	must(t, err)
	all := map[string][]byte{}
	for _, name := range names {
		all[filepath.Base(name)], err = os.ReadFile(name)
		must(t, err)
	}
	return all
}

// TestCompressed reads the same from compressed files, and takes no memory for a content of
// 16 MiB in few bytes, beyond the window in which a decompressor looks back.
func TestCompressed(t *testing.T) {
	want, wantErr := Read(bytes.NewReader(seeds(t)["queue-sender.pcap"][:4096]), Options{})
	files := compressed(t)
	if len(files) != 8 {
		t.Fatalf("%d files", len(files))
	}
	for name, data := range files {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got, err := Read(bytes.NewReader(data), Options{})
		runtime.ReadMemStats(&after)
		if strings.HasPrefix(name, "bomb") {
			if made := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, ErrNoTCP) || got.Bytes < 16<<20 || made > 12<<20 && !strings.HasSuffix(name, ".xz") || made > maxXZ+4<<20 {
				t.Errorf("%s: %v, %d bytes read, %d bytes of memory", name, err, got.Bytes, made)
			}
			continue
		}
		if !reflect.DeepEqual(got, want) || err.Error() != wantErr.Error() {
			t.Errorf("%s: %v, another result", name, err)
		}
		for _, cut := range []int{8, 20, len(data) / 2} {
			if _, err := Read(bytes.NewReader(data[:cut]), Options{}); err == nil {
				t.Errorf("the first %d bytes of %s: no error", cut, name)
			}
		}
	}
}

// TestLargeWindow refuses a file that has its reader look back further than is bounded.
func TestLargeWindow(t *testing.T) {
	// The header of a block of xz with a dictionary of 768 MiB.
	xz := []byte("\xfd7zXZ\x00\x00\x04\xe6\xd6\xb4\x46\x02\x00\x21\x01\x23\x00\x00\x00\xe7\x27\x10\x64")
	zstd := []byte("\x28\xb5\x2f\xfd\x00\xb0\x01\x00\x00")
	for name, test := range map[string]struct {
		data []byte
		want string
	}{"xz": {xz, "dictionary size exceeds max"}, "zstd": {zstd, "window size exceeded"}} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Read(bytes.NewReader(append(test.data, make([]byte, 100)...)), Options{})
		runtime.ReadMemStats(&after)
		if made := after.TotalAlloc - before.TotalAlloc; err == nil || !strings.Contains(err.Error(), test.want) || made > 8<<20 {
			t.Errorf("%s: %v, %d bytes of memory", name, err, made)
		}
	}
}

// TestWindowsTogether divides the memory of the windows among the files that are open at a
// time. Those that follow each other may each have a large one.
func TestWindowsTogether(t *testing.T) {
	shrunk := func(from, to, window int) []byte {
		c := newCapture(t).handshake()
		c.records = c.records[from:to]
		var b bytes.Buffer
		w, err := zstd.NewWriter(&b, zstd.WithWindowSize(window))
		must(t, err)
		_, err = w.Write(c.file(128))
		must(t, err)
		must(t, w.Flush()) // else the window is no larger than the content
		must(t, w.Close())
		return b.Bytes()
	}
	for name, test := range map[string]struct {
		sources []Source
		packets int64
		want    string
	}{
		"alone":      {[]Source{source("a", shrunk(0, 3, 16<<20))}, 3, ""},
		"in turn":    {[]Source{source("a", shrunk(0, 1, 16<<20)), source("b", shrunk(1, 2, 16<<20))}, 2, ""},
		"together":   {[]Source{source("a", shrunk(0, 3, 16<<20)), source("b", shrunk(1, 2, 16<<20))}, 3, "b is damaged after 0 packets (0 bytes): it is read beside others"},
		"small ones": {[]Source{source("a", shrunk(0, 3, 8<<20)), source("b", shrunk(1, 2, 8<<20))}, 4, ""},
	} {
		got, err := ReadFiles(test.sources, Options{})
		if got.Packets != test.packets || (err == nil) != (test.want == "") || err != nil && !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%s: %d packets, %v", name, got.Packets, err)
		}
	}
}

// FuzzCompressed decompresses anything.
func FuzzCompressed(f *testing.F) {
	for name, data := range compressed(f) {
		if !strings.HasPrefix(name, "bomb") {
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		content, err := decompressed(bytes.NewReader(data), maxZstd)
		if err != nil {
			return
		}
		_, _ = io.CopyN(io.Discard, content, 1<<20)
	})
}

// FuzzFiles reads two files as one capture: each record comes once, and the earliest of the
// two first.
func FuzzFiles(f *testing.F) {
	c := newCapture(f).handshake()
	f.Add(c.file(128), c.file(40), false)
	f.Fuzz(func(t *testing.T, a, b []byte, optional bool) {
		sources := []Source{source("a", a), source("b", b)}
		sources[1].Optional = optional
		files, err := newParts(sources)
		if err != nil {
			return
		}
		defer files.close()
		for range 1000 {
			if _, err := files.next(); err != nil {
				return
			}
			for _, o := range files.open {
				if o.head.at.Before(files.last.head.at) {
					t.Fatal("a file has an earlier record")
				}
			}
		}
	})
}

package examine

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"longhaul/internal/find/doctor"
	"longhaul/internal/words/remedy"
	"longhaul/test/nettest"
)

// handshakeAndData is a capture of a short transfer.
func handshakeAndData() [][]byte {
	return [][]byte{tcpPacket(1, 0, 0, 2, 0), tcpPacket(2, 0, 1, 0x12, 0), tcpPacket(1, 1, 1, 0x10, 0), tcpPacket(1, 1, 1, 0x10, 1000), tcpPacket(2, 1, 1001, 0x10, 0)}
}

// TestSources reads captures in every place where they may be.
func TestSources(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		nettest.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		nettest.Must(t, os.WriteFile(path, data, 0o600))
		return path
	}
	all := file(raw, 128, handshakeAndData()...)
	one := write("one.pcap", all)
	first := write("parts/trace.pcap", file(raw, 128, handshakeAndData()[:3]...))
	second := write("parts/trace.pcap1", file(raw, 128, handshakeAndData()[3:]...))
	write("parts/notes.txt", []byte("taken on Monday"))
	write("parts/.hidden", all)
	write("parts/deeper/other.pcap", all)
	text := write("text/notes.txt", []byte("taken on Monday"))
	write("text/more.txt", []byte("and on Tuesday"))
	nettest.Must(t, os.Mkdir(filepath.Join(dir, "empty"), 0o700))
	parts := filepath.Join(dir, "parts")
	for name, test := range map[string]struct {
		paths    []string
		err, fix string
	}{
		"one":                  {paths: []string{one}},
		"standard input":       {paths: []string{"-"}},
		"several":              {paths: []string{first, second}},
		"directory":            {paths: []string{parts}},
		"input and file":       {paths: []string{one, "-"}, err: "standard input is read with no other file", fix: "mergecap"},
		"a text":               {paths: []string{text}, err: text + ": this is not a pcap or pcapng file", fix: "editcap"},
		"a text among several": {paths: []string{first, text}, err: text + ": this is not a pcap or pcapng file, and doctor reads all files as one", fix: "leave it out"},
		"directory of texts":   {paths: []string{filepath.Join(dir, "text")}, err: filepath.Join(dir, "text") + ": none of the files is a pcap", fix: "tcpdump -w"},
		"empty directory":      {paths: []string{filepath.Join(dir, "empty")}, err: filepath.Join(dir, "empty") + " has no files"},
		"missing":              {paths: []string{filepath.Join(dir, "gone")}, err: "no such file"},
		"device":               {paths: []string{one, "/dev/null"}, err: "/dev/null is not a regular file", fix: "give it alone"},
	} {
		t.Run(name, func(t *testing.T) {
			e := Examiner{Progress: func(string, ...any) {}, Note: func(error) {}, Stdin: strings.NewReader(string(all))}
			o, err := e.Capture(t.Context(), test.paths, End{}, End{})
			if (err == nil) != (test.err == "") || err != nil && (!strings.Contains(err.Error(), test.err) || !strings.Contains(remedy.Of(err), test.fix)) {
				t.Errorf("got %v, hint: %s", err, remedy.Of(err))
			}
			if err == nil && (o.TotalBytes != 1000 || o.Connections != 1 || !o.Capture.Handshake) {
				t.Errorf("%+v", o)
			}
		})
	}
}

// TestStdinIsInterrupted waits for standard input no longer than the context lasts.
func TestStdinIsInterrupted(t *testing.T) {
	r, w := io.Pipe()
	defer w.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	go func() {
		_, _ = w.Write(file(raw, 128, handshakeAndData()...)) // returns once it was read
		cancel(stop)
	}()
	e := Examiner{Progress: func(string, ...any) {}, Note: func(error) {}, Stdin: r}
	if _, err := e.Capture(ctx, []string{Stdin}, End{}, End{}); !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
}

// TestExportHasTheSameVerdict diagnoses captures and their exports.
func TestExportHasTheSameVerdict(t *testing.T) {
	names, err := filepath.Glob("../../pcap/testdata/*.pcap")
	nettest.Must(t, err)
	more, err := filepath.Glob("../testdata/*.pcap")
	nettest.Must(t, err)
	if len(names) == 0 || len(more) == 0 {
		t.Fatal("no captures")
	}
	for _, name := range append(names, more...) {
		export := filepath.Join(t.TempDir(), "export.pcap")
		var texts [2]string
		for i, path := range []string{name, export} {
			var notes []string
			e := Examiner{Progress: func(string, ...any) {}, Note: func(err error) { notes = append(notes, err.Error()) }}
			if i == 0 {
				e.Export = export
			}
			o, err := e.Capture(t.Context(), []string{path}, End{}, End{})
			nettest.Must(t, err)
			if i == 0 {
				if !slices.ContainsFunc(notes, func(s string) bool { return strings.HasPrefix(s, export+" has the headers of ") }) {
					t.Errorf("notes %q", notes)
				}
			}
			o.Local, o.Remote = netip.AddrPort{}, netip.AddrPort{}
			report, err := doctor.Diagnose(o)
			if err != nil { // the same one, then
				texts[i] = err.Error()
				continue
			}
			text, err := json.Marshal(report)
			nettest.Must(t, err)
			texts[i] = string(text)
		}
		if texts[0] != texts[1] {
			t.Errorf("%s: another verdict of the export:\n%s\n%s", name, texts[0], texts[1])
		}
	}
}

// TestExportNeedsANewFile overwrites no file, and leaves none without packets.
func TestExportNeedsANewFile(t *testing.T) {
	dir := t.TempDir()
	capture, text, other := filepath.Join(dir, "capture.pcap"), filepath.Join(dir, "text"), filepath.Join(dir, "other.pcap")
	nettest.Must(t, os.WriteFile(capture, file(raw, 128, handshakeAndData()...), 0o600))
	nettest.Must(t, os.WriteFile(text, []byte("taken on Monday"), 0o600))
	export := func(path, to string, remote End) error {
		e := Examiner{Progress: func(string, ...any) {}, Note: func(error) {}, Export: to}
		_, err := e.Capture(t.Context(), []string{path}, End{}, remote)
		return err
	}
	if err := export(capture, text, End{}); err == nil || err.Error() != "write the export: "+text+" is there already" || remedy.Of(err) == "" {
		t.Errorf("got %v", err)
	}
	if err := export(capture, filepath.Join(dir, "gone", "x"), End{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	for _, err := range []error{export(text, other, End{}), export(capture, other, End{Port: 9})} {
		if _, missing := os.Stat(other); err == nil || !errors.Is(missing, os.ErrNotExist) {
			t.Errorf("got %v, and of the export %v", err, missing)
		}
	}
	nettest.Must(t, export(capture, other, End{}))
}

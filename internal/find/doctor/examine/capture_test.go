package examine

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"longhaul/internal/find/doctor"
	"longhaul/internal/find/pcap"
	"longhaul/internal/words/remedy"
)

// A capture of more interfaces than are read is refused with a remedy, not analyzed in part.
func TestCaptureOfManyInterfaces(t *testing.T) {
	words := func(all ...uint32) (b []byte) {
		for _, w := range all {
			b = binary.LittleEndian.AppendUint32(b, w)
		}
		return b
	}
	file := words(0x0a0d0d0a, 28, 0x1a2b3c4d, 1, 0xffffffff, 0xffffffff, 28)
	for range 4097 {
		file = append(file, words(1, 20, 1, 0, 20)...)
	}
	path := filepath.Join(t.TempDir(), "capture.pcapng")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	e := Examiner{Progress: func(string, ...any) {}}
	_, err := e.Capture(t.Context(), []string{path}, End{}, End{})
	if !errors.Is(err, pcap.ErrManyInterfaces) || !strings.HasPrefix(err.Error(), path+": ") || remedy.Of(err) == "" {
		t.Errorf("got %v", err)
	}
}

// Each capture in testdata is synthetic, and its name says what happened.
func TestCaptures(t *testing.T) {
	for _, test := range []struct {
		file     string
		cause    doctor.Cause
		strength doctor.Strength
		says     string // in the evidence
		never    string // in the whole report
	}{
		{"black-hole-at-server", doctor.BlackHole, doctor.Likely, "segments of 1448 bytes get no answer", "not from the sending host"},
		{"stall-after-progress", doctor.Outage, doctor.Certain, "no acknowledgement for 15.8 s, though the sender retransmitted 6 times", ""},
		{"unanswered-retransmissions", doctor.Outage, doctor.Likely, "retransmitted 5 times", "not from the sending host"},
		{"one-spurious-timeout-dsack", doctor.Unexplained, doctor.NotCertain, "retransmissions are 1 of 181 segments", "overtook"},
		{"ping-pong-small", doctor.Application, doctor.Certain, "requests and answers take turns", "the path carries"},
		{"tiny-conversation-mss1360", doctor.Application, doctor.Likely, "it had nothing to send for 28.6 s", "smaller than the path carries"},
		{"zero-window-no-handshake", doctor.Reader, doctor.Certain, "the receiver closed its window: 1 time, 50.8 s", "no figure stands out"},
		{"loopback-window-below-mss", doctor.Application, doctor.Certain, "requests and answers take turns", "limited the sender"},
		{"begins-in-recovery", doctor.Application, doctor.Likely, "it had nothing to send for 4.0 s", "It could be"},
	} {
		e := Examiner{Progress: func(string, ...any) {}}
		var notes strings.Builder
		e.Note = func(err error) { notes.WriteString(err.Error() + "\n") }
		o, err := e.Capture(t.Context(), []string{filepath.Join("testdata", test.file+".pcap.gz")}, End{}, End{})
		if err != nil {
			t.Errorf("%s: %v", test.file, err)
			continue
		}
		r, err := doctor.Diagnose(o)
		if err != nil {
			t.Errorf("%s: %v", test.file, err)
			continue
		}
		var text strings.Builder
		if err := r.WriteText(&text); err != nil {
			t.Fatal(err)
		}
		said := strings.Join(r.Findings[0].Evidence, "\n")
		whole := strings.Join(strings.Fields(notes.String()+text.String()), " ")
		if r.Cause != test.cause || r.Strength != test.strength || !strings.Contains(said, test.says) || test.never != "" && strings.Contains(whole, test.never) {
			t.Errorf("%s: %s, %s\n%s%s", test.file, r.Cause, r.Strength, notes.String(), text.String())
		}
		for _, remedy := range r.Remedies {
			if remedy.Gain > 0 {
				t.Errorf("%s: a gain of %.1f, which nothing in the capture shows", test.file, remedy.Gain)
			}
		}
	}
}

package examine

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
	_, err := e.Capture(t.Context(), path, End{}, End{})
	if !errors.Is(err, pcap.ErrManyInterfaces) || !strings.HasPrefix(err.Error(), path+": ") || remedy.Of(err) == "" {
		t.Errorf("got %v", err)
	}
}

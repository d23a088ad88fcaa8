package examine

import (
	"bytes"
	"encoding/binary"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"longhaul/internal/find/pcap"
)

// record is a packet of a capture file, with its header.
type record []byte

func (r record) time() int64 {
	return int64(binary.LittleEndian.Uint32(r))*1e6 + int64(binary.LittleEndian.Uint32(r[4:]))
}

// at returns the packet at another time, in microseconds.
func (r record) at(us int64) record {
	r = slices.Clone(r)
	binary.LittleEndian.PutUint32(r, uint32(us/1e6))
	binary.LittleEndian.PutUint32(r[4:], uint32(us%1e6))
	return r
}

// TestDoubts notes what is wrong with a capture.
func TestDoubts(t *testing.T) {
	file, err := os.ReadFile("../../pcap/testdata/queue-sender.pcap")
	if err != nil {
		t.Fatal(err)
	}
	header, rest := file[:24], file[24:]
	var records []record
	for len(rest) > 0 {
		n := 16 + int(binary.LittleEndian.Uint32(rest[8:]))
		records, rest = append(records, rest[:n]), rest[n:]
	}
	hour := time.Hour.Microseconds()
	for name, test := range map[string]struct {
		change func(i int, r record) []record
		want   string
	}{
		"as captured": {func(_ int, r record) []record { return []record{r} }, ""},
		"on both sides of a router": {func(_ int, r record) []record {
			far := r.at(r.time() + 3000)
			ip := far[16+14:]
			if ip[0]>>4 == 6 {
				ip[7]--
			} else {
				ip[8]--
			}
			return []record{r, far}
		}, "twice, as one of several interfaces"},
		"a clock set back": {func(i int, r record) []record {
			if i > len(records)/2 {
				r = r.at(r.time() - hour)
			}
			return []record{r}
		}, "the clock of the capture was set back by 59m"},
		"in another order": {func(i int, r record) []record {
			if i%7 == 0 && i > 0 {
				r = r.at(records[i-1].time() - 5000)
			}
			return []record{r}
		}, "were not in the order of time, by up to 5"},
	} {
		var all []record
		for i, r := range records {
			all = append(all, test.change(i, r)...)
		}
		if strings.HasPrefix(name, "on both") {
			slices.SortStableFunc(all, func(a, b record) int { return int(a.time() - b.time()) })
		}
		result, err := pcap.Read(bytes.NewReader(append(slices.Clone(header), bytes.Join(asBytes(all), nil)...)), pcap.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var notes []string
		if _, err := newExaminer(&notes).busiest(result); err != nil {
			t.Fatal(err)
		}
		text := strings.Join(notes, "\n")
		if !strings.Contains(text, test.want) || test.want == "" && text != "" {
			t.Errorf("%s: notes %q", name, notes)
		}
	}
}

func asBytes(records []record) (all [][]byte) {
	for _, r := range records {
		all = append(all, r)
	}
	return all
}

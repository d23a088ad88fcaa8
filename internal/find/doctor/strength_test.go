package doctor

import (
	"bytes"
	"strings"
	"testing"
)

// A verdict says once how far its evidence goes, and its sentence no more than that.
func TestStrength(t *testing.T) {
	window := func(_ int, s *Sample) { s.Info.SndWnd, s.Info.RwndLimited = 62500, s.At }
	for _, test := range []struct {
		name     string
		change   func(int, *Sample)
		trial    bool
		strength Strength
		status   int
		begins   string
	}{
		{"the window", window, true, Certain, 0, "The receiving host allows"},
		{"losses, nothing tried", lose(10), false, NotCertain, 5, "Perhaps the path loses packets."},
		{"losses, with a trial", lose(10), true, Certain, 0, "The path loses packets."},
		{"nothing stands out", func(_ int, s *Sample) { s.Info.RTT = s.Info.MinRTT }, false, NotCertain, 5, "The connection gets"},
	} {
		o := bulk(test.change)
		if test.trial {
			o.Capacity = &Trial{Streams: 4, GoodputBps: 40e6, SegmentBytes: 1448}
		}
		r, err := Diagnose(o)
		if err != nil {
			t.Fatal(err)
		}
		if r.Strength != test.strength || r.Strength.ExitStatus() != test.status || !strings.HasPrefix(r.Sentence(), test.begins) {
			t.Errorf("%s: %s, exit status %d: %s", test.name, r.Strength, r.Strength.ExitStatus(), r.Sentence())
		}
		if !HasVerdict(test.status) || HasVerdict(1) || HasVerdict(2) || HasVerdict(3) {
			t.Error("the statuses of verdicts are not those of other commands")
		}
		var b bytes.Buffer
		if err := r.WriteText(&b); err != nil {
			t.Fatal(err)
		}
		said := 0
		for _, word := range []string{"\nCertain.\n", "\nLikely: ", "\nNot certain: "} {
			said += strings.Count(b.String(), word)
		}
		word := strings.ToUpper(string(r.Strength[:1])) + string(r.Strength[1:])
		if said != 1 || !strings.Contains(b.String(), "\n"+word) {
			t.Errorf("%s, said %d times:\n%s", r.Strength, said, b.String())
		}
	}
}

package doctor

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// A verdict that is not certain has the table of what was counted, and one without an
// explanation names it.
func TestCounted(t *testing.T) {
	still := func(_ int, s *Sample) { s.Info.RTT = s.Info.MinRTT }
	for _, test := range []struct {
		name   string
		counts Counts
		says   []string // of the evidence
		rows   []string // of the table
	}{
		{"nothing", Counts{}, []string{"no figure stands out"}, nil},
		{"retransmissions", Counts{Segments: 654, FullSegments: 100, Bytes: 880_000, Delivered: 870_000, Retransmitted: 51, Fast: 40, AfterTimeout: 9, TailProbes: 2, Spurious: 4},
			[]string{"retransmissions are 51 of 654 segments, 7.8 %: 40 fast"},
			[]string{"data 859 KiB in 654 segments, 100 of them full, 850 KiB acknowledged sent again",
				"sent again 51 segments (7.8 %), 40 fast, 9 after a time-out, 2 tail loss probes, 4 needlessly"}},
		{"closed windows", Counts{ZeroWindows: 96, ZeroWindowTime: 30 * time.Millisecond, LongestZeroWindow: 12 * time.Millisecond, Probes: 4, ZeroWindowAtEnd: true},
			[]string{"the receiver closed its window: 96 times, 30 ms in all"}, []string{"12 ms at most, 4 probes, closed at the end"}},
		{"full windows", Counts{WindowFull: 579, WindowMin: 1000, WindowMedian: 60000, WindowMax: 65535},
			[]string{"the receiver's window was full after 579 segments"}, []string{"window 1000 B to 64 KiB, usually 58.6 KiB"}},
		{"order", Counts{OutOfOrder: 3, Overtaken: 2, Extent: 4}, []string{"3 segments captured out of order, 2 overtaken"}, []string{"order 3"}},
		{"a reset", Counts{Reset: ResetByReceiver, ResetOutstanding: 44, Delivered: 1 << 20}, []string{"it was reset by the receiver, with 44 B unacknowledged"}, []string{"reset by the receiver"}},
		{"what makes it doubtful", Counts{Missing: 79000, Copies: 12, BackwardSteps: 1, BackwardBy: 3 * time.Millisecond}, nil,
			[]string{"doubtful the capture lacks 77.1 KiB, it has 12 packets twice, 1 step back in time, by at most 3.00 ms"}},
		{"round trips and pauses", Counts{MinRTT: 1200 * time.Microsecond, MedianRTT: 20 * time.Millisecond, P95RTT: 2 * time.Second, Pauses: 7, PauseTime: 9 * time.Second, WaitedForPeer: 8 * time.Second, Turns: 6}, nil,
			[]string{"round trip 1.20 ms at least, 20 ms usually, 95 % below 2.0 s", "pauses 7 times with nothing to send, 9.0 s in all, 8.0 s of that"}},
	} {
		o := bulk(still)
		o.Capture = &Capture{Counts: test.counts}
		r, err := Diagnose(o)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := r.WriteText(&b); err != nil {
			t.Fatal(err)
		}
		evidence := strings.Join(r.Findings[0].Evidence, "\n")
		for _, want := range test.says {
			if !strings.Contains(evidence, want) {
				t.Errorf("%s: evidence %q lacks %q", test.name, evidence, want)
			}
		}
		for _, want := range test.rows {
			if !strings.Contains(strings.Join(strings.Fields(b.String()), " "), want) {
				t.Errorf("%s: the table lacks %q:\n%s", test.name, want, b.String())
			}
		}
		if strings.Contains(b.String(), "\nCounted:\n") != (test.rows != nil) {
			t.Errorf("%s:\n%s", test.name, b.String())
		}
		for line := range strings.Lines(b.String()) {
			if n := len([]rune(line)); n > 79 {
				t.Errorf("%s: %d columns: %s", test.name, n, line)
			}
		}
	}
	r, err := Diagnose(bulk(lose(10))) // of a kernel
	if err != nil {
		t.Fatal(err)
	}
	if r.Counts.Retransmitted == 0 || r.Counts.Segments == 0 || r.Counts.WindowMax == 0 || r.Counts.MedianRTT == 0 {
		t.Errorf("counted %+v", r.Counts)
	}
	if b, err := json.Marshal(r); err != nil || !strings.Contains(string(b), `"counts":{"segments":`) {
		t.Errorf("%v: %s", err, b)
	}
}

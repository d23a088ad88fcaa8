package link

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func parsed(t testing.TB, text string) *Trace {
	t.Helper()
	trace, err := ParseTrace("test", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

const seriesText = "# a comment\ntime_s,rate_bps,delay_ms,loss\n0,12000000,20,0\n\n1.5,0,25,1\n2, 24e6 ,15,0.5\n"

func TestParseTrace(t *testing.T) {
	m := parsed(t, "0\n5\n 5\r\n# comment\n\n20\n")
	if diff := cmp.Diff([]int64{0, 5 * ms, 5 * ms, 20 * ms}, m.opportunities); diff != "" {
		t.Error(diff)
	}
	if m.Period() != 20*time.Millisecond || m.MeanBps() != 4*1500*8*50 || m.HasDelay() || m.MeanDelay() != 0 || m.Name() != "test" {
		t.Errorf("%v, %d b/s, delays %v of %v", m.Period(), m.MeanBps(), m.HasDelay(), m.MeanDelay())
	}
	s := parsed(t, seriesText)
	want := []TraceStep{
		{0, 12e6, 20 * time.Millisecond, 0},
		{1500 * time.Millisecond, 0, 25 * time.Millisecond, 1},
		{2 * time.Second, 24e6, 15 * time.Millisecond, 0.5},
	}
	if diff := cmp.Diff(want, s.steps); diff != "" {
		t.Error(diff)
	}
	if s.Period() != 2500*time.Millisecond || s.MeanBps() != 12_000_000 || !s.HasDelay() || s.MeanDelay() != 20*time.Millisecond {
		t.Errorf("%v, %d b/s, delay %v", s.Period(), s.MeanBps(), s.MeanDelay())
	}
	if got := s.Bytes(time.Second, 2250*time.Millisecond); got != 750_000+750_000 {
		t.Errorf("%v bytes, want 1.5 million", got)
	}
	if got := s.Bytes(2250*time.Millisecond, 8*time.Second); got != 750_000+2*3_750_000+750_000 {
		t.Errorf("%v bytes over two periods and two parts", got)
	}
	if got := m.Bytes(20*time.Millisecond, 65*time.Millisecond); got != 11*1500 {
		t.Errorf("%v bytes, want 11 packets", got)
	}
	if got := m.Bytes(5*time.Millisecond, 20*time.Millisecond); got != 1500 {
		t.Errorf("%v bytes after 5 ms, want one packet", got)
	}
}

func TestParseTraceErrors(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"", "bad.trace:0: the trace is empty"},
		{"# nothing\n", "bad.trace:1: the trace is empty"},
		{"1\nx\n", `bad.trace:2: invalid line "x": write a number of milliseconds, or begin the file with time_s,rate_bps,delay_ms`},
		{"-1\n", `bad.trace:1: invalid line "-1"`},
		{"5\n\n4\n", "bad.trace:3: 4 ms is before the line above"},
		{"0\n0\n", "bad.trace:2: the trace has no length: its last time is 0"},
		{"604800001\n", "bad.trace:1: 604800001 ms is more than 168h0m0s"},
		{"5\ntime_s,rate_bps,delay_ms\n", `bad.trace:2: invalid line "time_s,rate_bps,delay_ms"`},
		{"time_s,rate_bps,delay_ms,colour\n", "bad.trace:1: invalid columns"},
		{"time_s,rate_bps,delay_ms\n", "bad.trace:1: the trace is empty"},
		{"time_s,rate_bps,delay_ms\n0,1000000\n", "bad.trace:2: 2 columns, not 3"},
		{"time_s,rate_bps,delay_ms\n0,1000000,1,0\n", "bad.trace:2: 4 columns, not 3"},
		{"time_s,rate_bps,delay_ms\n0,ten,1\n", `bad.trace:2: invalid number "ten"`},
		{"time_s,rate_bps,delay_ms\n1,1000000,1\n", "bad.trace:2: the first time must be 0"},
		{"time_s,rate_bps,delay_ms\n0,1000000,1\n0,1000000,1\n", "bad.trace:3: the time is not after that of the line above"},
		{"time_s,rate_bps,delay_ms\n0,1000000,1\nNaN,1000000,1\n", "bad.trace:3: a time of NaN s"},
		{"time_s,rate_bps,delay_ms\n0,999,1\n", "bad.trace:2: a rate of 999 bit/s: choose 0, or 1000 to 1000000000000"},
		{"time_s,rate_bps,delay_ms\n0,0,1\n1,0,1\n", "bad.trace:3: the trace carries 0 bit/s in the mean, less than 1000"},
		{"time_s,rate_bps,delay_ms\n0,1e6,-1\n", "bad.trace:2: a delay of -1 ms"},
		{"time_s,rate_bps,delay_ms,loss\n0,1e6,1,2\n", "bad.trace:2: a loss of 2"},
		{"5\n" + strings.Repeat("9", 100_000), "bad.trace:2: bufio.Scanner: token too long"},
	} {
		_, err := ParseTrace("bad.trace", strings.NewReader(test.text))
		if err == nil || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%.60q:\n got %v\nwant %s", test.text, err, test.want)
		}
	}
	if _, err := ReadTrace(filepath.Join(t.TempDir(), "missing")); err == nil || !os.IsNotExist(err) {
		t.Errorf("a missing file: %v", err)
	}
	file := filepath.Join(t.TempDir(), "short.trace")
	if err := os.WriteFile(file, []byte("1\n0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadTrace(file); err == nil || err.Error() != "short.trace:2: 0 ms is before the line above" {
		t.Errorf("got %v", err)
	}
}

// FuzzTrace: what is parsed can be replayed: time never goes back, and everything is
// carried.
func FuzzTrace(f *testing.F) {
	f.Add("0\n5\n5\n20\n")
	f.Add(seriesText)
	f.Add("time_s,rate_bps,delay_ms\n0,1e6,5\n")
	f.Add("7\n")
	f.Fuzz(func(t *testing.T, text string) {
		trace, err := ParseTrace("fuzz", strings.NewReader(text))
		if err != nil {
			if !strings.HasPrefix(err.Error(), "fuzz:") {
				t.Errorf("no file: %v", err)
			}
			return
		}
		if trace.Period() <= 0 || trace.MeanBps() < 0 || trace.MeanDelay() < 0 || trace.MeanDelay() > maxDelay {
			t.Fatalf("period %v, rate %d, delay %v", trace.Period(), trace.MeanBps(), trace.MeanDelay())
		}
		if err := (Settings{Trace: trace}).Validate(); err != nil {
			t.Fatal(err)
		}
		r := newReplay(trace, 5)
		at, fraction := int64(5), int64(0)
		for i := range 20 {
			ready := r.ready(at)
			if ready < at || ready > at+2*trace.period {
				t.Fatalf("ready at %d, asked for %d on", ready, at)
			}
			at, fraction = r.serve(ready, int64(i+1)*100*8e9+fraction)
			if at < ready || fraction < 0 {
				t.Fatalf("ended at %d, begun at %d", at, ready)
			}
		}
	})
}

// Each opportunity carries 1500 bytes, of one packet or several; what no packet uses is
// gone. A trace begins again at its end.
func TestTraceOpportunities(t *testing.T) {
	b := newBench(Settings{Trace: parsed(t, "10\n10\n25\n40\n"), QueueBytes: 1 << 20})
	b.run(1 * ms)
	for _, size := range []int{1500, 500, 500, 1000, 1500, 1500, 40} {
		b.send(size)
	}
	b.run(100 * ms)
	b.send(1500) // 80 and 90 ms are gone, next is the second period's 40+40+25
	b.run(200 * ms)
	want := []arrival{
		{0, 0, 10 * ms},                  // 1500
		{1, 0, 10 * ms}, {2, 0, 10 * ms}, // 1000 of the second
		{3, 0, 25 * ms}, // its first half still at 10 ms
		{4, 0, 40 * ms}, // 1000 left at 25 ms
		{5, 0, 50 * ms}, // 1000 at 40 ms, 500 at 50
		{6, 0, 50 * ms},
		{7, 0, 105 * ms},
	}
	if diff := cmp.Diff(want, b.out); diff != "" {
		t.Error(diff)
	}
}

// A series carries its rate exactly, waits where it is 0, and begins again.
func TestTraceSeries(t *testing.T) {
	trace := parsed(t, "time_s,rate_bps,delay_ms\n0,12e6,10\n0.0105,0,20\n0.02,24e6,30\n0.03,12e6,0\n")
	b := newBench(Settings{Trace: trace, Delay: 15 * time.Millisecond, QueueBytes: 1 << 20})
	b.run(8 * ms)
	for range 6 {
		b.send(1500)
	}
	b.run(500 * ms)
	want := []arrival{
		{0, 0, 19 * ms}, {1, 0, 20 * ms}, // at 9 and 10 ms
		{2, 0, 50*ms + 250*us}, // half of it from 10 to 10.5 ms, half from 20 ms on
		{3, 0, 50*ms + 750*us}, {4, 0, 51*ms + 250*us}, {5, 0, 51*ms + 750*us},
	}
	if diff := cmp.Diff(want, b.out); diff != "" {
		t.Error(diff)
	}
	// A shorter delay does not reorder; the wait for the rate counts as queueing.
	b.out = nil
	b.run(511 * ms) // 31 ms after the beginning of a period of 40 ms
	b.send(1500)
	b.run(532 * ms) // 12 ms
	b.send(1500)
	b.run(900 * ms)
	if b.out[0].At != 512*ms || b.out[1].At != 540*ms+500*us+30*ms {
		t.Errorf("left at %v", b.out)
	}
	if wait := b.queueDelay.quantiles(1)[0]; wait < 11*time.Millisecond {
		t.Errorf("the longest wait was %v, want those of the gap", wait)
	}
}

// Over many periods the rate is exact, whatever the sizes of packets.
func TestTraceRateIsExact(t *testing.T) {
	for name, text := range map[string]string{
		"opportunities": "3\n3\n17\n31\n",
		"series":        "time_s,rate_bps,delay_ms\n0,999983,0\n0.013,7000003,0\n0.021,0,0\n",
	} {
		trace := parsed(t, text)
		for _, size := range []int{1500, 700, 64} {
			t.Run(fmt.Sprintf("%s/%d", name, size), func(t *testing.T) {
				b := newBench(Settings{Trace: trace, QueueBytes: 1 << 20})
				const periods = 500
				for b.now < periods*trace.period {
					for b.queuedBytes < 1<<19 {
						b.send(size)
					}
					b.run(b.now + ms)
				}
				b.run(periods * trace.period)
				want := periods * trace.Bytes(0, trace.Period())
				if got := float64(len(b.out) * size); math.Abs(got-want) > 1500+1e-9*want {
					t.Errorf("%g bytes left, want %g", got, want)
				}
			})
		}
	}
}

// The loss of a trace is that of its time, in addition to the other one, and the same
// with the same seed.
func TestTraceLoss(t *testing.T) {
	trace := parsed(t, "time_s,rate_bps,delay_ms,loss\n0,1e9,0,0\n1,1e9,0,0.5\n2,1e9,0,1\n")
	run := func(place LossPlace) []arrival {
		b := newBench(Settings{Trace: trace, LossPlace: place, Loss: Loss{Probability: 0.1}, QueueBytes: 1 << 20, Seed: 9})
		for i := range int64(3000) {
			b.run(i*ms + 1)
			b.send(100)
		}
		b.run(4000 * ms)
		return b.out
	}
	var counts [3]int
	before := run(LossBefore)
	for _, a := range before {
		counts[a.Packet/1000]++
	}
	if counts[0] < 870 || counts[0] > 930 || counts[1] < 400 || counts[1] > 500 || counts[2] != 0 {
		t.Errorf("%v of 1000 each arrived", counts)
	}
	if diff := cmp.Diff(before, run(LossBefore)); diff != "" {
		t.Error(diff)
	}
	if after := run(LossAfter); len(after) != len(before) {
		t.Errorf("%d arrived with the loss behind the bottleneck, %d with it before", len(after), len(before))
	}
}

// A change between a trace and a rate keeps the packets that wait.
func TestTraceSet(t *testing.T) {
	idle := parsed(t, "time_s,rate_bps,delay_ms\n0,0,0\n100,1e6,0\n")
	b := newBench(Settings{Trace: idle, QueueBytes: 1 << 20})
	b.send(1500)
	b.send(1500)
	b.run(50 * ms)
	if len(b.out) != 0 || b.inFlight() != 2 {
		t.Fatalf("left while the rate was 0: %v", b.out)
	}
	s := Settings{RateBps: 12_000_000, QueueBytes: 1 << 20}
	b.set(b.now, s, s.QueueBytes)
	b.send(1500)
	b.run(52*ms + 500*us)
	s = Settings{Trace: parsed(t, "10\n"), QueueBytes: 1 << 20}
	b.set(b.now, s, s.QueueBytes) // the third is in service
	b.send(1500)
	b.run(100 * ms)
	want := []arrival{{0, 0, 51 * ms}, {1, 0, 52 * ms}, {2, 0, 52*ms + 500*us}, {3, 0, 62*ms + 500*us}}
	if diff := cmp.Diff(want, b.out); diff != "" {
		t.Error(diff)
	}
}

package pcap

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"longhaul/internal/find/doctor"
	"longhaul/test/nettest"
)

// draw makes a setting of a connection at random.
func draw(r *rand.Rand, n int) setting {
	yes := func(share float64) bool { return r.Float64() < share }
	s := setting{
		six: yes(0.3), timestamps: yes(0.6), sack: yes(0.7), scale: r.IntN(9) - 1, mss: []int{0, 1460, 1440, 1400, 1220, 8000}[r.IntN(6)],
		isn:  [2]uint32{r.Uint32(), r.Uint32()},
		trip: 20*ms1 + r.Int64N(130*ms1), place: []float64{0, 0, 0.5, 1}[r.IntN(4)],
		cwnd: 4 + r.IntN(30), delayedACKs: yes(0.5), probeByte: yes(0.5),
	}
	if yes(0.3) {
		s.isn[client] = -uint32(r.IntN(100_000)) // wraps
	}
	s.segment = s.mss
	if s.mss == 0 {
		s.segment = 1360
	}
	if s.timestamps && s.mss > 0 {
		s.segment -= timestampBytes
	}
	s.buffer = 65000
	if s.scale > 0 {
		s.buffer = 65535 << s.scale
	}
	s.buffer = min(s.buffer, (3+r.IntN(60))*s.segment)
	s.buffer = s.buffer >> max(s.scale, 0) << max(s.scale, 0)
	writes := 1 + r.IntN(4)
	at := s.trip + 1
	for range writes {
		s.writes = append(s.writes, write{at, 1 + r.IntN(60*s.segment)})
		at += r.Int64N(4 * int64(time.Second))
	}
	switch n % 4 {
	case 1:
		s.loss = 0.002 + 0.05*r.Float64()
	case 2:
		s.late = 0.03 * r.Float64()
		s.doubled = 0.01 * r.Float64()
	case 3:
		from := s.trip + r.Int64N(2*s.trip)
		s.readerStalls = append(s.readerStalls, span{from, from + r.Int64N(6*int64(time.Second))})
		if yes(0.5) {
			s.loss = 0.01
		}
	}
	if yes(0.3) {
		s.keepAlive = int64(15 * time.Second)
		s.writes[len(s.writes)-1].at += int64(40 * time.Second)
	}
	s.name = fmt.Sprintf("connection %d: IPv6 %v, timestamps %v, SACK %v, scale %d, MSS %d, isn %d, trip %v, place %.1f, window %d, cwnd %d, loss %.3f, late %.3f, doubled %.3f",
		n, s.six, s.timestamps, s.sack, s.scale, s.mss, s.isn[client], time.Duration(s.trip), s.place, s.buffer, s.cwnd, s.loss, s.late, s.doubled)
	return s
}

// truth counts what the simulation did, as far as the capture has it.
func (s *simulation) truth() (want doctor.Counts) {
	var seen []sackRange
	highest := int64(1)
	acked, window := int64(1), int64(-1)
	var zero int64 = -1
	var windows []int64
	for _, m := range s.made {
		if m.from == server {
			want.Delivered = max(want.Delivered, m.ack-1)
			acked = max(acked, m.ack)
			window = m.window
			if m.syn {
				continue
			}
			windows = append(windows, m.window)
			switch {
			case m.raw == 0 && zero < 0:
				want.ZeroWindows++
				zero = m.at
			case m.raw > 0 && zero >= 0:
				want.ZeroWindowTime += time.Duration(m.at - zero)
				want.LongestZeroWindow = max(want.LongestZeroWindow, time.Duration(m.at-zero))
				zero = -1
			}
			continue
		}
		switch {
		case m.keepAlive:
			want.KeepAlives++
			continue
		case m.probe:
			want.Probes++
			continue
		case m.end == m.seq:
			continue
		}
		want.Segments++
		if m.end-m.seq == int64(s.segment) {
			want.FullSegments++
		}
		b := sackRange{m.seq, m.end}
		if !slices.Contains(seen, b) {
			want.Bytes += m.end - m.seq
			seen = append(seen, b)
		}
		switch {
		case m.again && m.seq >= highest:
			// Nothing shows that it was sent before.
		case m.again:
			want.Retransmitted++
			switch m.why {
			case fastRetransmit:
				want.Fast++
			case timeout:
				want.AfterTimeout++
			case tailProbe:
				want.TailProbes++
			}
			if m.needless {
				want.Spurious++
			}
		case m.seq < highest:
			want.OutOfOrder++
		}
		if left := acked + window - m.end; !m.again && m.end > highest && left >= 0 && left < min(int64(s.segment), int64(s.buffer)/2) {
			want.WindowFull++
		}
		highest = max(highest, m.end)
		want.MaxFlight = max(want.MaxFlight, highest-acked)
	}
	want.WindowMin, want.WindowMax = slices.Min(windows), slices.Max(windows)
	slices.Sort(windows)
	want.WindowMedian = windows[(len(windows)-1)/2]
	return want
}

// TestOracle generates connections of which it knows the truth, and compares it with the
// counts and with those of tshark.
func TestOracle(t *testing.T) {
	tshark := nettest.RequireProgram(t, "tshark", "tshark")
	const connections = 200
	random := rand.New(rand.NewPCG(49, 1))
	var all capture
	var simulations []*simulation
	start := int64(0)
	for n := range connections {
		s, c := simulate(t, draw(random, n), random, uint16(20000+n), start)
		simulations = append(simulations, s)
		all.records = append(all.records, c.records...)
		all.t, all.link = t, c.link
		start += s.now + int64(time.Second)
	}
	file := all.file(128)
	path := filepath.Join(t.TempDir(), "oracle.pcap")
	must(t, os.WriteFile(path, file, 0o600))
	result, err := Read(bytes.NewReader(file), Options{})
	must(t, err)
	own := map[int]*Connection{}
	for _, c := range result.Connections {
		own[int(c.Client.Port())] = c
	}
	its := runTshark(t, tshark, path)
	var sum doctor.Counts
	erred := map[string]int{}
	for n, s := range simulations {
		port := 20000 + n
		want := s.truth()
		d := own[port].Directions[client]
		checkParts(t, &d.Observation.Capture.Counts)
		for _, text := range compare(s, want, d.Observation.Capture.Counts) {
			t.Errorf("%s\n  place %q, %s", s.name, d.Place, text)
		}
		wrong, known := its[port].compare(s)
		for _, text := range wrong {
			t.Errorf("%s\n  tshark has %s", s.name, text)
		}
		for _, why := range known {
			erred[why]++
		}
		sum.Fast += want.Fast
		sum.AfterTimeout += want.AfterTimeout
		sum.TailProbes += want.TailProbes
		sum.Spurious += want.Spurious
		sum.OutOfOrder += want.OutOfOrder
		sum.ZeroWindows += want.ZeroWindows
		sum.WindowFull += want.WindowFull
		sum.Probes += want.Probes
		sum.KeepAlives += want.KeepAlives
	}
	for why, n := range erred {
		t.Logf("of %d connections, %d where %s", connections, n, why)
	}
	if min(sum.Fast, sum.AfterTimeout, sum.TailProbes, sum.Spurious, sum.OutOfOrder, sum.ZeroWindows, sum.WindowFull, sum.Probes, sum.KeepAlives) < 10 {
		t.Errorf("too few of something: %+v", sum)
	}
}

// knownErrors are the counts in which tshark differs from the truth. What both lack is
// in the other one: their sum is right.
var knownErrors = map[string]string{
	"retransmissions": "tshark takes retransmissions soon after new data for out of order, or the reverse",
	"out of order":    "tshark takes retransmissions soon after new data for out of order, or the reverse",
}

// compare returns the differences of the counts from the truth.
func compare(s *simulation, want, got doctor.Counts) (differences []string) {
	check := func(name string, want, got int64) {
		if want != got {
			differences = append(differences, fmt.Sprintf("%s: %d, want %d", name, got, want))
		}
	}
	check("segments", want.Segments, got.Segments)
	check("bytes", want.Bytes, got.Bytes)
	check("delivered", want.Delivered, got.Delivered)
	check("retransmitted", want.Retransmitted, got.Retransmitted)
	check("out of order", want.OutOfOrder, got.OutOfOrder)
	check("zero windows", want.ZeroWindows, got.ZeroWindows)
	check("probes", want.Probes, got.Probes)
	check("keepalives", want.KeepAlives, got.KeepAlives)
	if s.mss > 0 || want.FullSegments >= sizesOver { // else the size of a segment is a guess
		check("full segments", want.FullSegments, got.FullSegments)
	}
	if s.mss > 0 { // else the size of a segment is a guess at first
		check("window full", want.WindowFull, got.WindowFull)
	}
	check("smallest window", want.WindowMin, got.WindowMin)
	check("largest window", want.WindowMax, got.WindowMax)
	check("flight", want.MaxFlight, got.MaxFlight)
	if s.place == 0 {
		check("fast", want.Fast, got.Fast)
		check("after timeout", want.AfterTimeout, got.AfterTimeout)
		check("tail probes", want.TailProbes, got.TailProbes)
	}
	if s.place == 0 && s.sack && s.doubled == 0 || s.place == 1 { // a duplicate may be of the path
		check("spurious", want.Spurious, got.Spurious)
	}
	check("copies", 0, got.Copies)
	check("missing", 0, got.Missing)
	near := func(name string, want, got time.Duration) {
		if (want - got).Abs() > time.Microsecond*5 {
			differences = append(differences, fmt.Sprintf("%s: %v, want %v", name, got, want))
		}
	}
	near("lowest round trip", time.Duration(float64(s.trip)*(1-s.place)), got.MinRTT)
	near("time of zero windows", want.ZeroWindowTime, got.ZeroWindowTime)
	near("longest zero window", want.LongestZeroWindow, got.LongestZeroWindow)
	return differences
}

// sharkCounts are tshark's counts of the client's data of a connection.
type sharkCounts struct {
	segments, bytes                                             int64
	again, outOfOrder, zeroWindow, windowFull, keepAlive, probe int64
	mss                                                         int64
}

var sharkFields = []string{
	"tcp.srcport", "tcp.dstport", "tcp.len", "tcp.analysis.retransmission", "tcp.analysis.out_of_order", "tcp.analysis.zero_window",
	"tcp.analysis.window_full", "tcp.analysis.keep_alive", "tcp.analysis.zero_window_probe", "tcp.options.mss_val",
}

func runTshark(t *testing.T, program, path string) map[int]*sharkCounts {
	t.Helper()
	arguments := []string{"-r", path, "-T", "fields", "--disable-protocol", "http", "-o", "tcp.desegment_tcp_streams:FALSE"}
	for _, f := range sharkFields {
		arguments = append(arguments, "-e", f)
	}
	out, err := exec.Command(program, arguments...).Output()
	must(t, err)
	all := map[int]*sharkCounts{}
	for line := range strings.Lines(string(out)) {
		values := strings.Split(strings.TrimRight(line, "\n"), "\t")
		number := func(i int) int64 {
			n, _ := strconv.ParseInt(values[i], 10, 64)
			return n
		}
		fromClient := number(1) == 80
		port := int(number(0))
		if !fromClient {
			port = int(number(1))
		}
		c := all[port]
		if c == nil {
			c = &sharkCounts{}
			all[port] = c
		}
		flag := func(i int) int64 {
			if values[i] == "" {
				return 0
			}
			return 1
		}
		if !fromClient {
			c.zeroWindow += flag(5)
			continue
		}
		c.mss = max(c.mss, number(9))
		c.keepAlive += flag(7)
		c.probe += flag(8)
		c.windowFull += flag(6)
		if number(2) == 0 {
			continue
		}
		c.segments++
		c.bytes += number(2)
		c.again += flag(3)
		c.outOfOrder += flag(4)
	}
	return all
}

// sharkTruth is what tshark would count if it did not err.
func (s *simulation) sharkTruth() (want sharkCounts) {
	highest, acked, window := int64(1), int64(1), int64(-1)
	for _, m := range s.made {
		if m.from == server {
			acked, window = max(acked, m.ack), m.window
			if m.raw == 0 {
				want.zeroWindow++
			}
			continue
		}
		if m.syn {
			want.mss = int64(s.mss)
		}
		switch {
		case m.keepAlive, m.probe && m.end == m.seq:
			want.keepAlive++
		case m.probe:
			want.probe++
			want.segments++
			want.bytes++
		case m.end > m.seq:
			want.segments++
			want.bytes += m.end - m.seq
			switch {
			case m.again && m.seq < highest:
				want.again++
			case m.seq < highest:
				want.outOfOrder++
			}
			if m.end == acked+window {
				want.windowFull++
			}
			highest = max(highest, m.end)
		}
	}
	return want
}

// compare returns the differences of tshark's counts from the truth, and the reasons of
// those that are known.
func (c *sharkCounts) compare(s *simulation) (wrong, known []string) {
	w := s.sharkTruth()
	check := func(name string, want, got int64) {
		why, ok := knownErrors[name]
		switch {
		case want == got:
		case !ok:
			wrong = append(wrong, fmt.Sprintf("%s: %d, want %d", name, got, want))
		case !slices.Contains(known, why):
			known = append(known, why)
		}
	}
	check("segments", w.segments, c.segments)
	check("bytes", w.bytes, c.bytes)
	check("retransmissions and out of order", w.again+w.outOfOrder, c.again+c.outOfOrder)
	check("retransmissions", w.again, c.again)
	check("out of order", w.outOfOrder, c.outOfOrder)
	check("MSS", w.mss, c.mss)
	check("zero windows", w.zeroWindow, c.zeroWindow)
	check("window full", w.windowFull, c.windowFull)
	check("keepalives", w.keepAlive, c.keepAlive)
	check("probes", w.probe, c.probe)
	return wrong, known
}

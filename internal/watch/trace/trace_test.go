package trace

import (
	"bytes"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"longhaul/internal/carry/flow"
	"longhaul/internal/find/doctor"
	"longhaul/internal/words/units"
)

var update = flag.Bool("update", false, "write the texts to testdata")

// way is a flow over relays, the second of which is asked. What a leg shows is said by part and direction.
type way struct {
	relays   []string
	lanes    [2]bool // there are relays before the first and behind the last one that do not answer
	up, down float64 // Mb/s
	state    string  // of the first relay
	last     string  // state of the last one
	missing  string
	peer     string                   // that relays which do not answer have, as their neighbours name them
	held     [2]int64                 // up and down, at each relay
	short    bool                     // of memory for flows, of all relays
	legs     map[string]flow.TraceLeg // by index and direction, such as "1 up"
}

func (w way) trace() flow.Trace {
	t := flow.Trace{Name: flow.Name{0x5f, 0x3a, 0x0b, 0xc1, 0x22, 0x33, 0x44, 0x55, 0x86, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd}}
	address := func(n int) flow.Address {
		return flow.Address{AddrPort: netip.MustParseAddrPort(fmt.Sprintf("10.%d.0.1:40000", n))}
	}
	for i, name := range w.relays {
		if name == "" {
			t.Here = i
		}
		r := flow.TraceRelay{Relay: name, Tunnel: "to-b", State: flow.StateOpen, Client: address(1), Listen: address(2), Target: address(3),
			Pair: &flow.Figures{MemoryLimited: w.short}, Age: units.Seconds(12 * time.Second), BytesUp: 1 << 30, HeldUp: w.held[0], HeldDown: w.held[1], UpBps: w.up * 1e6, DownBps: w.down * 1e6}
		for k := range r.Legs {
			leg, known := w.legs[fmt.Sprintf("%d %s", i+k, [2]Direction{Down, Up}[k])]
			if !known {
				leg = flow.TraceLeg{RTT: units.Seconds(80 * time.Millisecond), MinRTT: units.Seconds(79 * time.Millisecond), CongestionControl: "cubic",
					CongestionWindow: 14480, PeerWindow: 65536}
			}
			leg.Lane = k == 0 && (i > 0 || w.lanes[0]) || k == 1 && (i < len(w.relays)-1 || w.lanes[1])
			if leg.Lane {
				leg.Peer = w.peer
			}
			leg.Local, leg.Remote = address(10+i), address(20+i)
			r.Legs[k] = leg
		}
		t.Relays = append(t.Relays, r)
	}
	if w.state != "" {
		t.Relays[0].State = w.state
	}
	if w.last != "" {
		t.Relays[len(t.Relays)-1].State = w.last
	}
	if w.missing != "" {
		t.Missing = []string{w.missing}
	}
	return t
}

var (
	pairHere = []string{"", "site-b"}
	full     = flow.TraceLeg{CongestionWindow: 100_000, Unacknowledged: 90_000, NotSent: 500_000}
	idle     = caused(doctor.Application)
	reads    = caused(doctor.Reader)
	loses    = caused(doctor.Loss)
	outage   = func() flow.TraceLeg { l := flow.UnknownTraceLeg(); l.Cause = string(doctor.Outage); return l }()
)

func caused(c doctor.Cause) flow.TraceLeg {
	return flow.TraceLeg{CongestionWindow: 100_000, Unacknowledged: 1000, Cause: string(c)}
}

func TestAssess(t *testing.T) {
	type legs = map[string]flow.TraceLeg
	for name, tt := range map[string]struct {
		way  way
		want Limit
	}{
		"lossy WAN": {way{relays: pairHere, up: 5, legs: legs{"1 up": loses, "2 up": idle}},
			Limit{WAN, 1, Up, doctor.Loss, "the WAN between this relay and site-b, up: loss"}},
		"lossy WAN, down": {way{relays: pairHere, down: 5, legs: legs{"1 down": loses, "0 down": idle}},
			Limit{WAN, 1, Down, doctor.Loss, "the WAN between this relay and site-b, down: loss"}},
		"target that does not read, behind which all waits": {way{relays: pairHere, up: 1, legs: legs{"1 up": reads, "2 up": reads}},
			Limit{TargetLeg, 2, Up, doctor.Reader, "the target leg, up: reader, the target's program does not keep up"}},
		"client that does not read, and a flow that stands still": {way{relays: pairHere, legs: legs{"0 down": reads, "1 down": full}},
			Limit{ClientLeg, 0, Down, doctor.Reader, "the client leg, down: reader, the client's program does not keep up"}},
		"relay that does not keep up": {way{relays: pairHere, up: 1, legs: legs{"1 up": reads}},
			Limit{WAN, 1, Up, doctor.Reader, "the WAN between this relay and site-b, up: reader, site-b does not keep up"}},
		"relay that does not answer, and does not keep up": {way{relays: []string{""}, lanes: [2]bool{false, true}, up: 1, legs: legs{"1 up": reads}},
			Limit{WAN, 1, Up, doctor.Reader, "the WAN, up: reader, the other relay, or what lies behind it, does not keep up"}},
		"slow WAN": {way{relays: pairHere, up: 4, legs: legs{"1 up": full, "2 up": {CongestionWindow: 14480, Unacknowledged: 14480}}},
			Limit{WAN, 1, Up, "", "the WAN between this relay and site-b, up: 590kB wait there, and no cause stands out: longhaul doctor looks closer"}},
		"client with little to send": {way{relays: pairHere, up: 1, legs: legs{"1 up": idle, "2 up": idle}},
			Limit{Client, -1, Up, doctor.Application, "the client, up: application, the relays wait for its data"}},
		"target with little to send": {way{relays: pairHere, down: 1},
			Limit{Target, -1, Down, doctor.Application, "the target, down: application, the relays wait for its data"}},
		"relay before that does not answer": {way{relays: []string{""}, lanes: [2]bool{true, false}, up: 1},
			Limit{"", -1, Up, "", "what lies before the relays that answer: they pass on at once what comes"}},
		"nothing to do":                 {way{relays: pairHere}, Limit{"", -1, "", "", "nothing: no byte moves, and none waits"}},
		"nothing to do, as far as seen": {way{relays: []string{""}, missing: "x"}, Limit{"", -1, "", "", "nothing: no byte moves, and none waits here"}},
		"young flow": {way{relays: pairHere, legs: legs{"1 up": {CongestionWindow: 14480, Unacknowledged: 100}}},
			Limit{"", -1, Up, "", "an unknown part: the flow is not watched for a second yet"}},
		"outage": {way{relays: []string{""}, lanes: [2]bool{false, true}, state: flow.StateResuming},
			Limit{WAN, 1, "", doctor.Outage, "the WAN: outage, its connection is lost, and another is awaited"}},
		"outage at the far relay": {way{relays: pairHere, last: flow.StateResuming},
			Limit{WAN, 1, "", doctor.Outage, "the WAN between this relay and site-b: outage, its connection is lost, and another is awaited"}},
		"session that is down": {way{relays: []string{""}, lanes: [2]bool{false, true}, peer: "site-b", missing: "x", held: [2]int64{2_209_808, 0},
			legs: legs{"0 down": idle, "1 up": outage}},
			Limit{WAN, 1, Up, doctor.Outage, "the WAN between this relay and site-b, up: outage, site-b has not acknowledged 2.2MB"}},
		"session that is down, at the far relay": {way{relays: []string{""}, lanes: [2]bool{true, false}, peer: "site-a", missing: "x", held: [2]int64{0, 2_209_808},
			legs: legs{"0 down": outage}},
			Limit{WAN, 0, Down, doctor.Outage, "the WAN between site-a and this relay, down: outage, site-a has not acknowledged 2.2MB"}},
		"relay that stands still": {way{relays: []string{""}, lanes: [2]bool{false, true}, peer: "site-b", missing: "x", held: [2]int64{2_209_808, 0},
			legs: legs{"1 up": flow.UnknownTraceLeg()}},
			Limit{WAN, 1, Up, "", "the WAN between this relay and site-b, up: site-b has not acknowledged 2.2MB"}},
		"target that stands still, and a WAN that waits for it": {way{relays: pairHere, held: [2]int64{2_209_808, 0}, legs: legs{"2 up": full}},
			Limit{TargetLeg, 2, Up, "", "the target leg, up: 590kB wait there, and no cause stands out: longhaul doctor looks closer"}},
		"no target yet": {way{relays: pairHere, last: flow.StateDialing}, Limit{Target, -1, "", "", "the target: no connection to it stands yet"}},
		"one relay": {way{relays: []string{""}, down: 3, legs: legs{"0 down": loses}},
			Limit{ClientLeg, 0, Down, doctor.Loss, "the client leg, down: loss"}},
		"relay without memory": {way{relays: pairHere, up: 3, short: true, legs: legs{"1 up": caused(doctor.SendBuffer)}},
			Limit{WAN, 1, Up, doctor.SendBuffer, "the WAN between this relay and site-b, up: send-buffer, limited by the memory of this relay: raise its memory_limit"}},
		"second WAN of a chain": {way{relays: []string{"site-a", "", "site-c"}, up: 3, legs: legs{"1 up": reads, "2 up": loses, "3 up": idle}},
			Limit{WAN, 2, Up, doctor.Loss, "the WAN between this relay and site-c, up: loss"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Assess(tt.way.trace()).Limit; got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

// TestPairText holds what is said of a flow's lanes: a hub has one to each side, and a lane that comes at once
// is no outage.
func TestPairText(t *testing.T) {
	for name, tt := range map[string]struct {
		lanes [2]bool
		pair  flow.Figures
		want  string
	}{
		"one lane":        {[2]bool{false, true}, flow.Figures{Lanes: 1, Outage: units.Seconds(74 * time.Microsecond)}, ""},
		"several":         {[2]bool{false, true}, flow.Figures{Lanes: 3, Outage: units.Seconds(74 * time.Microsecond)}, "3 lanes"},
		"hub":             {[2]bool{true, true}, flow.Figures{Lanes: 2, Outage: units.Seconds(74 * time.Microsecond)}, "a lane to each side"},
		"hub with more":   {[2]bool{true, true}, flow.Figures{Lanes: 5, Resumes: 1}, "5 lanes, both sides together, resumed 1 time"},
		"after an outage": {[2]bool{true, false}, flow.Figures{Lanes: 1, Resumes: 2, Outage: units.Seconds(3 * time.Second)}, "resumed 2 times, waited 3.0s in outages"},
	} {
		t.Run(name, func(t *testing.T) {
			r := flow.TraceRelay{Pair: &tt.pair}
			r.Legs[0].Lane, r.Legs[1].Lane = tt.lanes[0], tt.lanes[1]
			if got := pairText(&r); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// TestText holds what is printed of a pair and of a chain with long names and addresses to 80 columns.
func TestText(t *testing.T) {
	type legs = map[string]flow.TraceLeg
	long := way{relays: []string{strings.Repeat("a", 60), "", strings.Repeat("c", 60)}, up: 999999, down: 88888, missing: strings.Repeat("missing ", 30)}.trace()
	for i := range long.Relays {
		for k := range long.Relays[i].Legs {
			l := &long.Relays[i].Legs[k]
			l.Local.AddrPort = netip.MustParseAddrPort("[2001:db8:1111:2222:3333:4444:5555:6666]:40000")
			l.CongestionControl, l.RTT, l.MinRTT = "a-long-name-of-one", units.Seconds(time.Hour), units.Seconds(time.Hour)
			l.CongestionWindow, l.NotSent = 1<<62, 1<<61
		}
	}
	for name, trace := range map[string]flow.Trace{
		"pair":  way{relays: pairHere, up: 5, legs: legs{"1 up": {RTT: units.Seconds(80 * time.Millisecond), CongestionControl: "cubic", CongestionWindow: 14480, BytesSent: 1000, BytesRetransmitted: 30, Cause: "loss"}}}.trace(),
		"alone": way{relays: []string{""}, lanes: [2]bool{false, true}, missing: "site-b is of an older release, which answers no trace"}.trace(),
		"down": way{relays: []string{""}, lanes: [2]bool{false, true}, peer: "site-b", held: [2]int64{2_209_808, 0}, legs: legs{"1 up": outage},
			missing: "the session with site-b is down: its part is missing"}.trace(),
		"long": long,
	} {
		t.Run(name, func(t *testing.T) {
			r := Assess(trace)
			var b bytes.Buffer
			r.WriteText(&b)
			for line := range strings.Lines(b.String()) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
					t.Errorf("%d columns: %s", n, line)
				}
			}
			file := filepath.Join("testdata", name+".txt")
			if *update {
				if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if want, err := os.ReadFile(file); err != nil || string(want) != b.String() {
				t.Errorf("%v; got\n%s", err, &b)
			}
		})
	}
}

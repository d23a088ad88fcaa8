package main

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// good is a flow as it should be; each case of TestJudge breaks it.
func good() flow {
	now := time.Now()
	return flow{
		plan: plan{ending: bothEnd}, began: now, done: now.Add(time.Second),
		client: account{wrote: 100, ended: true, read: 50, differs: -1, saw: sawEnd},
		target: account{wrote: 50, ended: true, read: 100, differs: -1, saw: sawEnd},
	}
}

func TestJudge(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*flow)
		want   string // of a violation; empty: none
	}{
		{"whole", func(*flow) {}, ""},
		{"cut short and ended", func(f *flow) { f.target.read = 99 }, "a clean end after 99 of 100 bytes"},
		{"ended without an end", func(f *flow) { f.client.ended = false; f.client.reset = true; f.client.saw = sawOwn }, "made none"},
		{"other bytes", func(f *flow) { f.client.differs = 7 }, "byte 7 that the client read"},
		{"doubled", func(f *flow) { f.client.read = 51; f.client.saw = sawReset; f.target.reset = true }, "read 51 bytes, the target sent 50"},
		{"other hash", func(f *flow) { f.target.readSum[0] = 1 }, "another hash"},
		{"stuck", func(f *flow) { f.client.saw = sawStall }, "neither bytes nor an end"},
		{"unprovoked reset", func(f *flow) { f.client.saw = sawReset }, "nobody had reset"},
		{"unprovoked timeout", func(f *flow) { f.target.saw = sawTimeout }, "nobody had reset"},
		{"never there", func(f *flow) { f.target = account{differs: -1}; f.client.saw = sawOwn }, "never reached the target"},
		{"not connected", func(f *flow) { f.refused = unix.ECONNREFUSED }, "could not connect"},
		{"a prefix, then the reset", func(f *flow) {
			f.client.ended, f.client.reset, f.client.saw = false, true, sawOwn
			f.target.read, f.target.saw = 60, sawReset
		}, ""},
		{"ended, then reset", func(f *flow) { f.client.reset, f.client.saw, f.client.read = true, sawOwn, 20 }, ""},
		{"refused", func(f *flow) {
			f.plan.ending = targetRefuses
			f.client.saw, f.client.read, f.target = sawReset, 0, account{differs: -1}
		}, ""},
		{"refused with an end", func(f *flow) {
			f.plan.ending = targetRefuses
			f.client.read, f.target = 0, account{differs: -1}
		}, "made none"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := good()
			tt.change(&f)
			got, cut := f.judge(nil)
			if cut {
				t.Error("cut by nothing")
			}
			if tt.want == "" && len(got) > 0 || tt.want != "" && !strings.Contains(strings.Join(got, "; "), tt.want) {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// The death of a relay excuses a reset, and nothing else.
func TestJudgeCut(t *testing.T) {
	f := good()
	touching := []fault{{"relay-b", f.began.Add(-time.Second), f.began.Add(time.Millisecond)}}
	before := []fault{{"relay-b", f.began.Add(-time.Second), f.began.Add(-time.Millisecond)}}
	f.client.saw, f.client.read = sawReset, 20
	if got, cut := f.judge(touching); len(got) > 0 || !cut {
		t.Errorf("%v, cut: %v", got, cut)
	}
	if got, cut := f.judge(before); len(got) == 0 || cut {
		t.Errorf("%v, cut: %v", got, cut)
	}
	f.client.saw = sawEnd
	if got, _ := f.judge(touching); len(got) == 0 {
		t.Error("the death of a relay excuses a clean end of half a stream")
	}
}

func TestPlans(t *testing.T) {
	seen := map[ending]int{}
	for n := range uint64(2000) {
		p := newPlan(7, n)
		if p != newPlan(7, n) {
			t.Fatalf("flow %d is not the same twice", n)
		}
		seen[p.ending]++
	}
	share := 0
	for _, e := range endings {
		share += e.share
		if seen[e.ending] < 10*e.share { // half of what is expected
			t.Errorf("%s: %d of 2000", e.ending, seen[e.ending])
		}
	}
	if share != 100 {
		t.Errorf("the shares add up to %d", share)
	}
	if newPlan(7, 1) == newPlan(8, 1) {
		t.Error("the seed makes no difference")
	}
}

func TestPattern(t *testing.T) {
	p, q := newPattern(1, 5, true), newPattern(1, 5, true)
	want := append([]byte(nil), p.at(0, 300)...)
	for from := int64(0); from < 300; from += 7 {
		n := int(min(31, 300-from))
		if string(q.at(from, n)) != string(want[from:from+int64(n)]) {
			t.Fatalf("%d bytes from %d differ", n, from)
		}
	}
	if string(want[:8]) != "\x00\x00\x00\x00\x00\x00\x00\x05" {
		t.Errorf("the header is %x", want[:8])
	}
	for _, other := range []*pattern{newPattern(1, 5, false), newPattern(1, 6, true), newPattern(2, 5, true)} {
		if string(other.at(8, 16)) == string(want[8:24]) {
			t.Error("two streams are the same")
		}
	}
}

func TestSchedule(t *testing.T) {
	const length = time.Hour
	counts, last := map[eventKind]int{}, time.Duration(0)
	for _, e := range schedule(3, length) {
		if e.at < last || e.at >= length {
			t.Fatalf("an event at %v after one at %v", e.at, last)
		}
		last = e.at
		counts[e.kind]++
		if e.kind.early() && e.at > length/mortalShare {
			t.Errorf("%s at %v", e.kind, e.at)
		}
		long := slices.Contains([]eventKind{outageEvent, lossEvent, targetEvent, drainHopEvent, drainEvent}, e.kind)
		if (e.lasts > 0) != long || (e.loss > 0) != (e.kind == lossEvent) {
			t.Errorf("%+v", e)
		}
	}
	for _, k := range eventKinds {
		span := length
		if k.kind.early() {
			span /= mortalShare
		}
		if n, want := counts[k.kind], int(span/k.every); n < want*3/4 || n > want*5/4 {
			t.Errorf("%s: %d in %v, want about %d", k.kind, n, length, want)
		}
	}
	for seed := range uint64(20) {
		few := map[eventKind]int{}
		for _, e := range schedule(seed, 10*time.Second) {
			few[e.kind]++
		}
		for _, k := range eventKinds {
			if few[k.kind] < 2 {
				t.Errorf("seed %d: %s: %d in 10 s", seed, k.kind, few[k.kind])
			}
		}
	}
}

func TestMustBeLogged(t *testing.T) {
	f := good()
	f.from = netip.MustParseAddrPort("10.10.10.10:4711")
	f.client.saw = sawReset
	death := func(what string, after time.Duration) []fault {
		return []fault{{what, f.done.Add(after), f.done.Add(after + time.Second)}}
	}
	reset, ended, unseen := f, f, f
	reset.client.reset = true
	ended.client.saw = sawEnd
	unseen.from = netip.AddrPort{}
	for _, c := range []struct {
		name   string
		flow   flow
		faults []fault
		want   bool
	}{
		{"cut off", f, nil, true},
		{"a far relay's death", f, death("relay-b", -time.Millisecond), true},
		{"its own death", f, death("relay-a", -time.Millisecond), false},
		{"its own death before the line is written", f, death("relay-a", 20*time.Millisecond), false},
		{"its own death later", f, death("relay-a", time.Second), true},
		{"the client reset", reset, nil, false},
		{"the client saw an end", ended, nil, false},
		{"it never connected", unseen, nil, false},
	} {
		if got := c.flow.mustBeLogged(c.faults); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// TestNoWay has relays closed one after the other, and at the same time.
func TestNoWay(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * 1e9)) }
	event := func(kind eventKind, which int, from, to float64) happening {
		return happening{event{kind: kind, which: which}, fault{from: at(from), to: at(to)}}
	}
	for name, c := range map[string]struct {
		all      []happening
		from, to float64 // of the only time; both 0: there is none
		late     int     // times of late handshakes
	}{
		"one after the other": {all: []happening{event(outageEvent, 0, 0, 2), event(drainEvent, 2, 4, 5)}},
		"the same relay":      {all: []happening{event(outageEvent, 1, 0, 2), event(drainEvent, 2, 1, 3), event(drainHopEvent, 2, 0, 9)}, late: 1},
		"loss":                {all: []happening{event(lossEvent, 0, 0, 2), event(drainEvent, 1, 1, 3)}, late: 1},
		"something else":      {all: []happening{event(outageEvent, 0, 0, 2), event(lossEvent, 1, 0, 3), event(reloadEvent, 2, 1, 2)}},
		"both":                {[]happening{event(drainHopEvent, 2, 1, 3), event(outageEvent, 0, 0, 2)}, 1, 3.5, 0},
		"one just after":      {[]happening{event(drainEvent, 1, 0, 2), event(outageEvent, 1, 3, 4)}, 3, 3.5, 0},
	} {
		if late := lateHandshakes(c.all); len(late) != c.late {
			t.Errorf("%s: late handshakes %+v", name, late)
		}
		times := noWay(c.all)
		switch {
		case c.to == 0 && len(times) == 0:
		case len(times) != 1 || !times[0].from.Equal(at(c.from)) || !times[0].to.Equal(at(c.to)):
			t.Errorf("%s: %+v", name, times)
		}
	}
}

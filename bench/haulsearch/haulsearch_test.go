package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"longhaul/test/nettest"
)

// TestDraw: a path of a seed, a kind and a number is the same in every run, is of
// its kind, differs from its neighbours, and takes a bearable time to simulate.
func TestDraw(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			seen := map[string]bool{}
			packets := 0.0
			const paths = 2000
			for n := range paths {
				p := k.draw(random(7, k.name, n))
				if again := k.draw(random(7, k.name, n)); again.command() != p.command() {
					t.Fatalf("path %d is\n%s\nand then\n%s", n, p.command(), again.command())
				}
				if err := k.holds(p); err != nil {
					t.Fatalf("path %d: %v\n%s", n, err, p.command())
				}
				seen[p.command()] = true
				packets += p.timeS() * p.rateMbps() * 1e6 / 8 / packetBytes
			}
			if len(seen) != paths {
				t.Errorf("%d of %d paths differ", len(seen), paths)
			}
			if k.draw(random(8, k.name, 0)).command() == k.draw(random(7, k.name, 0)).command() {
				t.Error("two seeds draw one path")
			}
			t.Logf("%.0f packets a path", packets/paths)
			if packets/paths > 400e3 {
				t.Errorf("%.0f packets a path", packets/paths)
			}
		})
	}
}

// TestDrawCovers: every setting and disturbance that a kind names is drawn.
func TestDrawCovers(t *testing.T) {
	for kindName, words := range map[string][]string{
		"alone":     {"place=after", "jitter=", "ackloss=", "aggregate=", " loss="},
		"slow":      {"loss=0.05"},
		"disturbed": {" at=", "until=", "down=1", "policer=", "cbr@", "cubic@", " rate=", " rtt=", " loss="},
		"cubic":     {"codel=5", "haul@", "cubic@", "cubic cubic cubic cubic"},
		"group":     {"haul@", " loss="},
		"hosts":     {"haul:clock=", "haul@", ":clock=", " loss="},
		"crowd":     {"haul@", " loss=", " aggregate="},
		"policed":   {"policer=", "bucket=", "haul haul haul haul"},
	} {
		k := kinds[slices.IndexFunc(kinds, func(k kind) bool { return k.name == kindName })]
		var all strings.Builder
		lasting := false
		for n := range 500 {
			p := k.draw(random(1, k.name, n))
			all.WriteString(p.command() + "\n")
			for _, c := range p.changes {
				lasting = lasting || c.untilS == 0
			}
		}
		for _, word := range words {
			if !strings.Contains(all.String(), word) {
				t.Errorf("%s: no path in 500 has %q", kindName, word)
			}
		}
		if kindName == "disturbed" && !lasting {
			t.Error("no change in 500 paths stays")
		}
	}
}

func mustKind(t *testing.T, name string) kind {
	t.Helper()
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == name })
	if i < 0 {
		t.Fatalf("no kind %s", name)
	}
	return kinds[i]
}

func TestCommand(t *testing.T) {
	p := path{
		settings: settings{{"rate", 11.8}, {"rtt", 9}, {"queue", 1.356}, {"place", placeAfter}, {"time", 100}},
		flows:    []flow{{control: "haul"}, {control: "cbr", beginS: 20, settings: settings{{"rate", 5}, {"until", 30}}}},
		changes:  []change{{20, 35, settings{{"rate", 1.18}}}, {40, 0, settings{{"rtt", 12}, {"loss", 0.0001}}}},
	}
	const want = "haulsim rate=11.8 rtt=9 queue=1.356 place=after time=100 haul cbr@20:rate=5,until=30 " +
		"at=20 rate=1.18 until=35 at=40 rtt=12 loss=0.0001 over=70:100"
	if got := p.command(window{70, 100}); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestHolds(t *testing.T) {
	base := func(settings settings) path { return path{settings: settings, flows: []flow{{control: "haul"}}} }
	disturbedBase := func(c ...change) path {
		p := base(settings{{"rate", 10}, {"rtt", 100}, {"queue", 1}, {"time", 200}})
		p.changes = c
		return p
	}
	for _, c := range []struct {
		kind, want string
		p          path
	}{
		{"alone", "", base(settings{{"rate", 10}, {"rtt", 100}, {"queue", 1}, {"time", 20}})},
		{"alone", "rate of 0.01", base(settings{{"rate", 0.01}, {"rtt", 100}, {"queue", 100}, {"time", 60}})},
		{"alone", "holds fewer than 4 packets", base(settings{{"rate", 1}, {"rtt", 10}, {"queue", 1}, {"time", 20}})},
		{"alone", "time of 19 s", base(settings{{"rate", 10}, {"rtt", 100}, {"queue", 1}, {"time", 19}})},
		{"alone", "time of 20 s is less than 30 s", base(settings{{"rate", 10}, {"rtt", 500}, {"queue", 1}, {"time", 20}})},
		{"alone", "jitter of 5", base(settings{{"rate", 10}, {"rtt", 20}, {"queue", 1}, {"jitter", 5}, {"time", 20}})},
		{"alone", "has no changes", disturbedBase(change{20, 0, settings{{"rtt", 120}}})},
		{"slow", "neither 0 nor 0.05", base(settings{{"rate", 1}, {"rtt", 100}, {"queue", 8}, {"loss", 0.01}, {"time", 90}})},
		{"disturbed", "disturbances of 0", disturbedBase()},
		{"disturbed", "", disturbedBase(change{20, 0, settings{{"rtt", 120}}})},
		{"disturbed", "a change of loss ends", disturbedBase(change{20, 0, settings{{"loss", 0.1}}})},
		{"disturbed", "leaves 0.05 of the path", path{settings: settings{{"rate", 10}}, flows: []flow{{control: "haul"}, {control: "cbr", beginS: 20, settings: settings{{"rate", 9.5}}}}}},
		{"disturbed", "almost as it is", disturbedBase(change{20, 0, settings{{"rate", 10}}})},
		{"disturbed", "time down of 11", disturbedBase(change{20, 31, settings{{"down", 1}}})},
		{"disturbed", "one after the other", disturbedBase(change{20, 30, settings{{"rtt", 120}}}, change{25, 40, settings{{"rate", 5}}})},
		{"disturbed", "time of 200 s is less than 205 s", disturbedBase(change{160, 0, settings{{"rate", 5}}})},
		{"cubic", "0 cubic flows", base(settings{{"rate", 10}, {"rtt", 100}, {"queue", 1}, {"time", 60}})},
		{"group", "1 haul flows", base(settings{{"rate", 10}, {"rtt", 100}, {"queue", 1}, {"time", 60}})},
		{"crowd", "packets of BDP for a flow of", path{settings: settings{{"rate", 10}, {"rtt", 100}, {"queue", 1}, {"time", 60}}, flows: []flow{{control: "haul"}, {control: "haul"}}}},
		{"policed", "share of the policer of 0", base(settings{{"rate", 10}, {"rtt", 100}, {"queue", 1}, {"time", 60}})},
		{"policed", "the first flow is not haul", path{settings: settings{{"rate", 10}}}},
	} {
		err := mustKind(t, c.kind).holds(c.p)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v\n%s", c.kind, err, c.p.command())
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: got %v, not %q\n%s", c.kind, err, c.want, c.p.command())
		}
	}
}

// flat makes a simulator that gives every flow the same figures in every window.
func flat(f flowFigures, queueP95Ms, capacityBps float64) simulate {
	return func(p path, over ...window) (outcome, error) {
		var o outcome
		for range over {
			w := windowFigures{queueP95Ms: queueP95Ms, capacityBps: capacityBps}
			for range p.flows {
				w.flows = append(w.flows, f)
			}
			o.over = append(o.over, w)
		}
		return o, nil
	}
}

func TestJudge(t *testing.T) {
	one := func(extra settings, changes ...change) path {
		p := path{settings: settings{{"rate", 100}, {"rtt", 100}, {"queue", 4}, {"time", 100}}, flows: []flow{{control: "haul"}}, changes: changes}
		for _, s := range extra {
			p.settings.set(s.key, s.value)
		}
		return p
	}
	fine := flowFigures{goodputBps: 95e6, arrivedBps: 95e6, sent: 100_000, delivered: 99_900}
	with := func(change func(*flowFigures)) flowFigures {
		f := fine
		change(&f)
		return f
	}
	constant := func(p path) path {
		p.flows = append(p.flows, flow{control: "cbr", beginS: 20, settings: settings{{"rate", 80}}})
		return p
	}
	rttStep := change{20, 0, settings{{"rtt", 300}}}
	for _, c := range []struct {
		name, kind string
		p          path
		run        simulate
		figures    int
		broken     []string
	}{
		{"all is well", "alone", one(nil), flat(fine, 24, 96e6), 3, nil},
		{"half of the path", "alone", one(nil), flat(with(func(f *flowFigures) { f.goodputBps = 47e6 }), 24, 96e6), 3, []string{"stuck"}},
		{"just half of it", "alone", one(nil), flat(with(func(f *flowFigures) { f.goodputBps = 48e6 }), 24, 96e6), 3, nil},
		{"nothing at all", "alone", one(nil), flat(flowFigures{sent: 50}, 24, 96e6), 3, []string{"stuck", "needless"}},
		{"nothing sent", "alone", one(nil), flat(flowFigures{}, 24, 96e6), 3, []string{"stuck"}},
		{"sent in vain", "alone", one(nil), flat(with(func(f *flowFigures) { f.sent = 106_000 }), 24, 96e6), 3, []string{"needless"}},
		{"random loss is not in vain", "alone", one(settings{{"loss", 0.1}}), flat(with(func(f *flowFigures) { f.sent = 111_000 }), 24, 96e6), 3, nil},
		{"a queue", "alone", one(nil), flat(fine, 26, 96e6), 3, []string{"queue"}},
		{"a short queue is not judged", "alone", one(settings{{"queue", 0.1}}), flat(fine, 26, 96e6), 2, nil},
		{"a queue of a longer route", "disturbed", one(nil, rttStep), flat(fine, 37, 96e6), 5, nil},
		{"a longer queue than that", "disturbed", one(nil, rttStep), flat(fine, 38, 96e6), 5, []string{"queue"}},
		{"four fifths after a change", "disturbed", one(nil, rttStep), flat(with(func(f *flowFigures) { f.arrivedBps = 80e6 }), 24, 96e6), 5, []string{"change-15s"}},
		{"no bound of change with more loss", "disturbed", one(settings{{"loss", 0.02}}, rttStep),
			flat(with(func(f *flowFigures) { f.arrivedBps = 60e6; f.sent = 102_000 }), 24, 96e6), 3, nil},
		{"half of what constant traffic leaves", "disturbed", constant(one(nil)), flat(with(func(f *flowFigures) { f.arrivedBps = 10e6 }), 70, 96.6e6), 2, nil},
		{"less than that", "disturbed", constant(one(nil)), flat(with(func(f *flowFigures) { f.arrivedBps = 9e6 }), 70, 96.6e6), 2, []string{"absorbing"}},
		{"never back", "disturbed", one(settings{{"loss", 0.02}}, rttStep),
			flat(with(func(f *flowFigures) { f.arrivedBps = 6e6; f.sent = 102_000 }), 24, 96e6), 3, []string{"absorbing"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			checkFigures(t, mustKind(t, c.kind), c.p, c.run, c.figures, c.broken)
		})
	}
}

func checkFigures(t *testing.T, k kind, p path, run simulate, count int, wantBroken []string) {
	t.Helper()
	figures, err := k.judge(p, run)
	if err != nil {
		t.Fatal(err)
	}
	var broken []string
	for _, f := range figures {
		if f.broken() {
			broken = append(broken, f.bound.name)
		}
		if !slices.Contains(k.bounds, f.bound) {
			t.Errorf("%s is no bound of %s", f.bound.name, k.name)
		}
	}
	slices.Sort(broken)
	slices.Sort(wantBroken)
	if len(figures) != count || !slices.Equal(broken, wantBroken) {
		t.Errorf("%d figures, not %d; broken are %v, not %v: %+v", len(figures), count, broken, wantBroken, figures)
	}
}

// TestJudgeCubic: the CUBIC flows are held against CUBIC in haul's place.
func TestJudgeCubic(t *testing.T) {
	p := path{settings: settings{{"rate", 100}, {"rtt", 100}, {"queue", 1}, {"time", 60}},
		flows: []flow{{control: "haul", beginS: 3}, {control: "cubic"}, {control: "cubic"}}}
	for _, c := range []struct {
		haul, first, second float64 // goodput; beside CUBIC, each has 30
		broken              []string
	}{
		{30, 30, 30, nil},
		{16, 40, 40, nil},
		{14, 40, 40, []string{"yields"}},
		{60, 15, 16, nil},
		{60, 29, 2, nil}, // the mean of both counts
		{60, 14, 15, []string{"starved"}},
		{0, 0, 0, []string{"starved", "yields"}},
	} {
		var ran []string
		run := func(p path, over ...window) (outcome, error) {
			ran = append(ran, p.command(over...))
			got := []float64{30, 30, 30}
			if p.flows[0].control == "haul" {
				got = []float64{c.haul, c.first, c.second}
			}
			var w windowFigures
			for _, g := range got {
				w.flows = append(w.flows, flowFigures{goodputBps: g})
			}
			return outcome{over: []windowFigures{w}}, nil
		}
		checkFigures(t, besideCubic, p, run, 2, c.broken)
		want := []string{
			"haulsim rate=100 rtt=100 queue=1 time=60 haul@3 cubic cubic over=30:60",
			"haulsim rate=100 rtt=100 queue=1 time=60 cubic@3 cubic cubic over=30:60",
		}
		if !slices.Equal(ran, want) {
			t.Errorf("ran %v, not %v", ran, want)
		}
	}
}

func TestJudgeGroup(t *testing.T) {
	p := path{settings: settings{{"rate", 100}, {"rtt", 100}, {"queue", 1}, {"time", 60}}, flows: []flow{{control: "haul"}, {control: "haul"}}}
	even := flowFigures{goodputBps: 45e6, sent: 100_000, delivered: 95_000}
	checkFigures(t, group, p, flat(even, 10, 96e6), 3, nil)
	checkFigures(t, group, p, flat(even, 10, 120e6), 3, []string{"goodput"})
	even.delivered = 90_000
	checkFigures(t, group, p, flat(even, 10, 96e6), 3, []string{"needless"})
	uneven := func(p path, over ...window) (outcome, error) {
		o, err := flat(flowFigures{goodputBps: 30e6}, 10, 96e6)(p, over...)
		o.over[0].flows[0].goodputBps = 60e6
		return o, err
	}
	checkFigures(t, group, p, uneven, 3, nil) // 0.9
	uneven60 := func(p path, over ...window) (outcome, error) {
		o, err := uneven(p, over...)
		o.over[0].flows[0].goodputBps = 61e6
		return o, err
	}
	checkFigures(t, group, p, uneven60, 3, []string{"jain"})
}

// TestJudgePoliced: each window of 10 s counts for itself.
func TestJudgePoliced(t *testing.T) {
	p := path{settings: settings{{"rate", 100}, {"rtt", 100}, {"queue", 1}, {"policer", 50}, {"time", 60}}, flows: []flow{{control: "haul"}}}
	fine := flowFigures{goodputBps: 40e6, sent: 11_400, delivered: 10_000}
	checkFigures(t, policed, p, flat(fine, 10, 48e6), 2, nil)
	fine.goodputBps = 38e6
	checkFigures(t, policed, p, flat(fine, 10, 48e6), 2, []string{"goodput"})
	fine.goodputBps = 40e6
	var asked []window
	spike := func(p path, over ...window) (outcome, error) {
		asked = over
		o, err := flat(fine, 10, 48e6)(p, over...)
		o.over[3].flows[0].sent = 12_000
		return o, err
	}
	checkFigures(t, policed, p, spike, 2, []string{"needless"})
	if want := []window{{30, 60}, {10, 20}, {20, 30}, {30, 40}, {40, 50}, {50, 60}}; !slices.Equal(asked, want) {
		t.Errorf("asked for %v, not %v", asked, want)
	}
	figures, err := policed.judge(p, spike)
	if err != nil || figures[0].over != (window{30, 40}) {
		t.Errorf("%v: the worst window is %v", err, figures[0].over)
	}
	p.flows = append(p.flows, flow{control: "haul"})
	checkFigures(t, policed, p, flat(fine, 10, 48e6), 1, nil)
}

// TestParseOutcome reads recorded JSON, and refuses an outcome of another path with
// one sentence.
func TestParseOutcome(t *testing.T) {
	good, err := os.ReadFile("testdata/cubic.json")
	if err != nil {
		t.Fatal(err)
	}
	p := path{flows: []flow{{control: "haul"}, {control: "cubic", beginS: 2.5}}}
	over := []window{{30, 60}}
	o, err := parseOutcome(good, p, over)
	if err != nil {
		t.Fatal(err)
	}
	if w := o.over[0]; w.queueP95Ms != 99.2 || w.capacityBps != 19306666.7 ||
		w.flows[1] != (flowFigures{goodputBps: 9480000, arrivedBps: 9471000, sent: 24590, delivered: 24520}) {
		t.Errorf("read %+v", w)
	}
	for _, c := range []struct{ old, new, want string }{
		{string(good), "", "read JSON: EOF"},
		{string(good), "haul whole 98.8 %", "read JSON: invalid character 'h' looking for beginning of value"},
		{"\"over\":[", "\"over\":[{},", "figures over 2 windows and not 1"},
		{"\"from_s\":30,", "", "window 1: missing from_s"},
		{"\"from_s\":30,", "\"from_s\":29,", "figures over 29 to 60 s and not 30 to 60 s"},
		{"{\"control\":\"haul\"", "{\"control\":\"cubic\"", "flow 1 is \"cubic\" and not \"haul\""},
		{"\"queue_p95_ms\":99.2,", "", "window 1: missing queue_p95_ms"},
		{"\"sent\":24590", "\"sent\":-1", "window 1: negative sent"},
		{"\"sent\":24590,", "", "window 1: missing sent"},
		{"\"sent\":24590", "\"sent\":\"many\"", "read JSON: json: cannot unmarshal string into Go struct field .over.flows.sent of type float64"},
		{"]}]}", "]}]}{}", "more than one JSON object"},
		{",\n            {\"goodput_bps\":9480000,\"arrived_bps\":9471000,\"sent\":24590,\"delivered\":24520}", "", "window 1 has figures of 1 flows for a path of 2"},
	} {
		text := strings.Replace(string(good), c.old, c.new, 1)
		if text == string(good) {
			t.Fatalf("%q is not in the recorded JSON", c.old)
		}
		_, err := parseOutcome([]byte(text), p, over)
		if err == nil || err.Error() != c.want {
			t.Errorf("%q in place of %q: got %v, not %s", c.new, c.old, err, c.want)
		}
	}
	if _, err := parseOutcome(good, path{flows: p.flows[:1]}, over); err == nil || err.Error() != "figures of 2 flows for a path of 1" {
		t.Errorf("flows of another path: %v", err)
	}
}

// FuzzParseOutcome: whatever haulsim prints, what is read has figures for every
// window and flow, and none is negative.
func FuzzParseOutcome(f *testing.F) {
	good, err := os.ReadFile("testdata/cubic.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"flows":null,"over":[null]}`))
	p, over := path{flows: []flow{{control: "haul"}, {control: "cubic"}}}, []window{{30, 60}}
	f.Fuzz(func(t *testing.T, text []byte) {
		o, err := parseOutcome(text, p, over)
		if err != nil {
			return
		}
		if len(o.over) != 1 || len(o.over[0].flows) != 2 {
			t.Fatalf("read %+v", o)
		}
		for _, flow := range o.over[0].flows {
			if flow.sent < 0 || flow.delivered < 0 || flow.goodputBps < 0 || flow.arrivedBps < 0 {
				t.Fatalf("read %+v", o)
			}
		}
	})
}

func TestRounder(t *testing.T) {
	for _, v := range []float64{0.0317, 1.356, 11.8, 63, 97, 100.5, 355, 812.4} {
		list := rounder(v)
		if len(list) == 0 {
			t.Errorf("nothing is rounder than %v", v)
		}
		for _, r := range list {
			if digits(r) >= digits(v) || r < v/3 || r > v*3 {
				t.Errorf("%v is given for %v", r, v)
			}
		}
	}
	if list := rounder(100); len(list) > 0 {
		t.Errorf("%v are given for 100", list)
	}
}

// TestShrink shrinks paths with simulators that fail by a rule that is known, to
// the simplest path that the rule leaves.
func TestShrink(t *testing.T) {
	// broken makes a simulator in which haul gets nothing if the rule says so.
	broken := func(rule func(path) bool) simulate {
		return func(p path, over ...window) (outcome, error) {
			f := flowFigures{goodputBps: 90e6, arrivedBps: 90e6, sent: 1000, delivered: 1000}
			if rule(p) {
				f.goodputBps, f.arrivedBps = 1e6, 1e6
			}
			return flat(f, 1, 96e6)(p, over...)
		}
	}
	for _, c := range []struct {
		name, kind string
		from       path
		rule       func(path) bool
		want       string
	}{
		{
			"anything fails", "alone",
			path{settings: settings{{"rate", 31.7}, {"rtt", 83.1}, {"queue", 1.37}, {"loss", 0.0123}, {"place", placeAfter},
				{"jitter", 2.2}, {"time", 47}, {"seed", 8123}}, flows: []flow{{control: "haul"}}},
			func(path) bool { return true },
			"haulsim rate=50 rtt=100 queue=1 time=20 haul over=10:20",
		}, {
			"some loss is needed", "alone",
			path{settings: settings{{"rate", 31.7}, {"rtt", 83.1}, {"queue", 1.37}, {"loss", 0.0123}, {"jitter", 2.2}, {"time", 47}, {"seed", 8123}},
				flows: []flow{{control: "haul"}}},
			func(p path) bool { return p.loss() > 0.011 },
			"haulsim rate=50 rtt=100 queue=1 loss=0.02 time=20 haul over=10:20",
		}, {
			"one of two disturbances", "disturbed",
			path{settings: settings{{"rate", 31.7}, {"rtt", 83.1}, {"queue", 1.37}, {"loss", 0.0123}, {"time", 117}, {"seed", 8123}},
				flows:   []flow{{control: "haul"}, {control: "cubic", beginS: 57, settings: settings{{"until", 66}}}},
				changes: []change{{27, 41, settings{{"rtt", 122}}}}},
			func(p path) bool { return len(p.changes) == 1 && p.changes[0].settings[0].value > p.rttMs() },
			"", // as below
		}, {
			"fewer flows", "group",
			path{settings: settings{{"rate", 97.1}, {"rtt", 63.1}, {"queue", 1.37}, {"time", 60}, {"seed", 8123}},
				flows: slices.Repeat([]flow{{control: "haul", beginS: 1.2}}, 31)},
			func(p path) bool { return p.count("haul") >= 5 },
			"haulsim rate=100 rtt=50 queue=1 time=60 haul haul haul haul haul over=30:60",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			k, run := mustKind(t, c.kind), broken(c.rule)
			if err := k.holds(c.from); err != nil {
				t.Fatal(err)
			}
			figures, err := k.judge(c.from, run)
			if err != nil {
				t.Fatal(err)
			}
			at := slices.IndexFunc(figures, figure.broken)
			if at < 0 {
				t.Fatalf("the path does not fail: %+v", figures)
			}
			runs := 0
			simplest, f, err := shrink(k, c.from, figures[at], func(p path, over ...window) (outcome, error) {
				runs++
				return run(p, over...)
			})
			if err != nil {
				t.Fatal(err)
			}
			if !c.rule(simplest) || !f.broken() || f.bound != figures[at].bound {
				t.Errorf("%s does not break %s", simplest.command(), figures[at].bound.name)
			}
			if err := k.holds(simplest); err != nil {
				t.Errorf("%v: %s", err, simplest.command())
			}
			if runs > shrinkRuns {
				t.Errorf("%d runs", runs)
			}
			got := simplest.command(f.over)
			t.Logf("%d runs: %s", runs, got)
			if c.want != "" && got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if c.want == "" && (len(simplest.flows) != 1 || len(simplest.changes) != 1 || simplest.loss() != 0) {
				t.Errorf("got %s", got)
			}
		})
	}
}

// TestShrinkEnds: whatever fails, each step makes the path simpler, so that
// shrinking ends, and no run changes the path that it came from.
func TestShrinkEnds(t *testing.T) {
	for _, k := range kinds {
		for n := range 20 {
			p := k.draw(random(3, k.name, n))
			before := p.command()
			candidates := 0
			for c := range simpler(p) {
				candidates++
				if c.complexity().compare(p.complexity()) >= 0 {
					t.Fatalf("%s is not simpler than %s", c.command(), p.command())
				}
			}
			if p.command() != before {
				t.Fatalf("%s has become %s", before, p.command())
			}
			if candidates == 0 {
				t.Errorf("nothing is simpler than %s", before)
			}
		}
	}
}

// TestShrinkKeepsReason: a path on which haul gets nothing does not become one on
// which it gets a little less than it should.
func TestShrinkKeepsReason(t *testing.T) {
	p := path{settings: settings{{"rate", 31.7}, {"rtt", 83.1}, {"queue", 1.37}, {"loss", 0.0123}, {"time", 47}}, flows: []flow{{control: "haul"}}}
	run := func(p path, over ...window) (outcome, error) {
		f := flowFigures{goodputBps: 47e6}
		if p.loss() > 0 {
			f.goodputBps = 0
		}
		return flat(f, 1, 96e6)(p, over...)
	}
	simplest, f, err := shrink(alone, p, figure{bound: boundStuck, limit: 0.5}, run)
	if err != nil || f.value != 0 || simplest.loss() == 0 {
		t.Errorf("%v: %v at %s", err, f.value, simplest.command())
	}
}

// TestShrinkStops: an interrupted shrinking returns what it has.
func TestShrinkStops(t *testing.T) {
	p := path{settings: settings{{"rate", 31.7}, {"rtt", 83.1}, {"queue", 1.37}, {"loss", 0.0123}, {"time", 47}}, flows: []flow{{control: "haul"}}}
	runs := 0
	run := func(p path, over ...window) (outcome, error) {
		if runs++; runs == 2 {
			return outcome{}, context.Canceled
		}
		return flat(flowFigures{}, 1, 96e6)(p, over...)
	}
	simplest, _, err := shrink(alone, p, figure{bound: boundStuck, limit: 0.5}, run)
	if !errors.Is(err, context.Canceled) || simplest.loss() != 0 || simplest.rateMbps() != 31.7 {
		t.Errorf("%v: %s", err, simplest.command())
	}
}

// fails is a simulator in which all is well but for haul beyond 100 ms.
func fails(_ context.Context, p path, over ...window) (outcome, error) {
	f := flowFigures{goodputBps: 95e6, arrivedBps: 95e6, sent: 1000, delivered: 1000}
	if p.rttMs() > 100 && p.flows[0].control == "haul" {
		f.goodputBps, f.arrivedBps = p.rttMs(), p.rttMs()
	}
	return flat(f, 1, 96e6)(p, over...)
}

// TestSearch: the number of workers changes nothing in the result.
func TestSearch(t *testing.T) {
	nettest.CheckLeaks(t)
	var texts []string
	for _, workers := range []int{1, 7} {
		s := search{kinds: kinds, seed: 5, paths: 600, workers: workers, keep: 8, shrink: true, run: fails, progress: func(int, int) {}}
		r, err := s.do(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if r.Paths != 600 || r.Failed == 0 || len(r.Failures) == 0 || !r.exceeded() || r.Interrupted {
			t.Errorf("%d paths, %d failed, %d failures", r.Paths, r.Failed, len(r.Failures))
		}
		r.Seconds = 0
		var text bytes.Buffer
		if err := errors.Join(writeJSON(&text, r), r.writeText(&text)); err != nil {
			t.Fatal(err)
		}
		texts = append(texts, text.String())
	}
	if texts[0] != texts[1] {
		t.Errorf("one worker:\n%s\nseven:\n%s", texts[0], texts[1])
	}
	_, text, _ := strings.Cut(texts[0], "\n}\n")
	for line := range strings.Lines(text) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > columns {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	t.Log(text)
}

// TestSearchOfOneKind: a kind has the paths that it has among others.
func TestSearchOfOneKind(t *testing.T) {
	commands := func(kinds []kind, paths int) map[string]bool {
		seen := map[string]bool{}
		s := search{kinds: kinds, seed: 5, paths: paths, workers: 1, progress: func(int, int) {},
			run: func(ctx context.Context, p path, over ...window) (outcome, error) {
				seen[p.command()] = true
				return fails(ctx, p, over...)
			}}
		if _, err := s.do(t.Context()); err != nil {
			t.Fatal(err)
		}
		return seen
	}
	among := commands(kinds, 20*len(kinds))
	for c := range commands([]kind{disturbed}, 20) {
		if !among[c] {
			t.Errorf("not among the paths of all kinds: %s", c)
		}
	}
}

// TestSearchEnds: an interrupt and the end of the time leave the result so far, an
// error of the simulator ends the search.
func TestSearchEnds(t *testing.T) {
	nettest.CheckLeaks(t)
	ctx, cancel := context.WithCancel(t.Context())
	s := search{kinds: kinds, seed: 5, paths: 1 << 40, workers: 2, keep: 3, shrink: true, run: fails}
	s.progress = func(paths, _ int) {
		if paths == 100 {
			cancel()
		}
	}
	r, err := s.do(ctx)
	if err != nil || !r.Interrupted || r.Paths < 100 || r.Failed == 0 || len(r.Failures) != 3 || r.Failures[0].Simplest.Command == "" {
		t.Errorf("interrupted: %v, %+v", err, r)
	}
	s.progress, s.time = func(int, int) {}, 1 // over before it begins
	if r, err = s.do(t.Context()); err != nil || r.Interrupted || r.Paths > 10 {
		t.Errorf("end of time: %v, %d paths", err, r.Paths)
	}
	crash := errors.New("signal: segmentation fault")
	s.time = 0
	s.run = func(context.Context, path, ...window) (outcome, error) { return outcome{}, crash }
	if _, err := s.do(t.Context()); !errors.Is(err, crash) {
		t.Errorf("simulator that fails: %v", err)
	}
}

// TestAllowed: a bound is exceeded above its share and not at it.
func TestAllowed(t *testing.T) {
	p := path{flows: []flow{{control: "haul"}}}
	for _, c := range []struct {
		bound        *bound
		good, broken int
		want         bool
	}{
		{boundStuck, 1000, 0, false}, {boundStuck, 999, 1, true},
		{boundQueue, 99, 1, false}, {boundQueue, 98, 2, true}, {boundQueue, 0, 0, false},
	} {
		count := tally{bound: c.bound, Allowed: c.bound.allowed}
		good, broken := figure{bound: c.bound, value: 1, limit: 1}, figure{bound: c.bound, value: 2, limit: 1}
		if c.bound.atLeast {
			broken.value = 0.5
		}
		for n := range c.good {
			count.add(p, n, good)
		}
		for n := range c.broken {
			count.add(p, c.good+n, broken)
		}
		if got := count.finish(); got.Exceeded != c.want || got.Failures != c.broken {
			t.Errorf("%s, %d of %d: %+v", c.bound.name, c.broken, c.good+c.broken, got)
		}
	}
}

func TestCommandLine(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--paths 0", "--paths and --workers take 1 or more"},
		{"--workers -1", "--paths and --workers take 1 or more"},
		{"--time -1s", "--keep and --time take 0 or more"},
		{"--time soon", `invalid value "soon" for flag -time: parse error; see --help`},
		{"--kind alone,queer", `unknown kind "queer": choose from alone, slow, disturbed, cubic, group, hosts, crowd, policed`},
		{"--control vegas", `unknown control "vegas": use haul, bbr, bbr3, cubic or reno`},
		{"--like me", `unknown --like "me": use users`},
		{"--like users --kind alone --known known.json", "--like users has no --kind, --known"},
		{"--rivals before.json", "--rivals needs --like users"},
		{"--rules --keep 3 --time 1s", "--rules has no --keep, --time"},
		{"--like users --rivals known.json", "--rivals known.json: json: cannot unmarshal array into Go value of type main.usersResult; use the output of --like users --json"},
		{"--swift", "flag provided but not defined: -swift; see --help"},
		{"now", `unexpected argument "now"; see --help`},
	} {
		var out bytes.Buffer
		err := run(t.Context(), strings.Fields(c.args), &out, &out)
		var wrong usageError
		if !errors.As(err, &wrong) || err.Error() != c.want || out.Len() > 0 {
			t.Errorf("%s: %v %s", c.args, err, out.String())
		}
	}
	var out, stderr bytes.Buffer
	if err := run(t.Context(), []string{"--help"}, &out, &stderr); err != nil || stderr.Len() > 0 {
		t.Errorf("--help: %v %s", err, stderr.String())
	}
	for line := range strings.Lines(out.String()) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > columns {
			t.Errorf("--help has %d columns: %s", n, line)
		}
	}
	a, err := parseArgs(nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := parseArgs(nil)
	if err != nil || a.seed == b.seed {
		t.Errorf("%v: the seed %d is drawn twice", err, a.seed)
	}
	if s, err := parseArgs(strings.Fields("--seed 0 --kind cubic --json --no-shrink")); err != nil || s.seed != 0 || len(s.kinds) != 1 || !s.asJSON || s.shrink {
		t.Errorf("%v: %+v", err, s)
	}
}

// TestInstead: flows of haul run with another control, and the path stays as it is.
func TestInstead(t *testing.T) {
	p := path{flows: []flow{{control: "haul"}, {control: "cubic", beginS: 2}, {control: "haul", beginS: 3}}}
	var ran path
	_, err := instead("cubic", func(_ context.Context, p path, _ ...window) (outcome, error) {
		ran = p
		return outcome{}, nil
	})(t.Context(), p)
	if err != nil || ran.count("cubic") != 3 || p.count("haul") != 2 || ran.flows[2].beginS != 3 {
		t.Errorf("%v: %+v of %+v", err, ran, p)
	}
}

// TestMissingCompiler: without gcc the error names the package.
func TestMissingCompiler(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("TMPDIR", t.TempDir())
	err := run(t.Context(), nil, &bytes.Buffer{}, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "apt-get install gcc") {
		t.Errorf("got %v", err)
	}
	nothingLeft(t)
}

// nothingLeft fails if the directory for temporary files has any.
func nothingLeft(t *testing.T) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("%v: left behind: %v", err, left)
	}
}

// TestSimulator searches a few short paths with the simulator of this tree.
func TestSimulator(t *testing.T) {
	nettest.RequireProgram(t, "gcc", "gcc")
	nettest.CheckLeaks(t)
	t.Setenv("TMPDIR", t.TempDir())
	var out, stderr bytes.Buffer
	err := run(t.Context(), strings.Fields("--seed 1 --paths 24 --keep 1 --no-shrink --json"), &out, &stderr)
	var r result
	if decodeErr := json.Unmarshal(out.Bytes(), &r); decodeErr != nil {
		t.Fatalf("%v %v %s", err, decodeErr, stderr.String())
	}
	if (err != nil) != r.exceeded() {
		t.Errorf("%v, exceeded %v", err, r.exceeded())
	}
	if r.Paths != 24 || r.Seed != 1 || stderr.String() != "seed 1, 24 paths\n" {
		t.Errorf("%d paths, seed %d, %q", r.Paths, r.Seed, stderr.String())
	}
	judged := 0
	for _, b := range r.Bounds {
		judged += b.Paths
		if b.Worst != nil && (math.IsNaN(*b.Worst) || *b.Worst < 0) {
			t.Errorf("%s %s: %v", b.Kind, b.Bound, *b.Worst)
		}
	}
	if judged < 2*24 {
		t.Errorf("%d figures of %d paths", judged, r.Paths)
	}
	nothingLeft(t)
}

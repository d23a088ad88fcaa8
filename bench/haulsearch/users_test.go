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

// TestDrawUsers: a path of a seed and a number is the same in every run, each class has its
// share of them, and a path takes a bearable time to simulate.
func TestDrawUsers(t *testing.T) {
	const paths = 5000
	count, packets, seen := map[string]int{}, 0.0, map[string]bool{}
	var all strings.Builder
	for n := range paths {
		u := drawUsers(7, n)
		if again := drawUsers(7, n); again.alone.command() != u.alone.command() || again.along.command() != u.along.command() {
			t.Fatalf("path %d is\n%s\nand then\n%s", n, u.along.command(), again.along.command())
		}
		count[u.class]++
		seen[u.alone.command()] = true
		all.WriteString(u.along.command() + "\n")
		packets += u.alone.timeS() * u.alone.rateMbps() * 1e6 / 8 / packetBytes
		if u.alone.queuePackets() < leastUsersPackets*(1-1e-9) || len(u.alone.flows) != 1 || len(u.along.flows) != 2 || u.alone.timeS() < 10 || u.alone.timeS() > 60 {
			t.Errorf("path %d: %s", n, u.along.command())
		}
	}
	weights := 0.0
	for _, c := range classes {
		weights += c.weight
		want := paths * c.weight
		if deviation := 4 * math.Sqrt(want*(1-c.weight)); math.Abs(float64(count[c.name])-want) > deviation {
			t.Errorf("%s: %d paths, not about %.0f", c.name, count[c.name], want)
		}
	}
	if math.Abs(weights-1) > 1e-9 || len(seen) != paths {
		t.Errorf("weights of %v, %d of %d paths differ", weights, len(seen), paths)
	}
	for _, word := range []string{" loss=", "burst=", "codel=5", "fade=", "wander=", "aggregate=", "handover=15", "gap=", "shift=", "policer=", "bucket=", "haul@", "cubic@"} {
		if !strings.Contains(all.String(), word) {
			t.Errorf("no path has %q", word)
		}
	}
	if packets/paths > 300e3 {
		t.Errorf("%.0f packets a path", packets/paths)
	}
}

// simulateUsers gives controls alone fixed shares of 100 Mb/s, and the first of two flows
// its share of what is left.
func simulateUsers(shares map[string]float64) runner {
	return func(_ context.Context, p path, over ...window) (outcome, error) {
		first := shares[p.flows[0].control]
		w := windowFigures{queueP95Ms: 100 * first, capacityBps: 100e6, flows: []flowFigures{{goodputBps: 100e6 * first}}}
		if len(p.flows) > 1 {
			w.flows = append(w.flows, flowFigures{goodputBps: 100e6 * (1 - first)})
		}
		return outcome{over: []windowFigures{w}}, nil
	}
}

func TestSearchUsers(t *testing.T) {
	nettest.CheckLeaks(t)
	shares := map[string]float64{"haul": 0.7, "bbr": 0.9, "bbr3": 0.8, "cubic": 0.2, "reno": 0.95}
	search := func(s usersSearch) (usersResult, string) {
		t.Helper()
		s.progress = func(int, int) {}
		r, err := s.do(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r.Seconds = 0
		var text bytes.Buffer
		if err := errors.Join(writeJSON(&text, r), r.writeText(&text)); err != nil {
			t.Fatal(err)
		}
		return r, text.String()
	}
	one, text := search(usersSearch{search: search1(5, 300, 1, simulateUsers(shares)), simulator: "x"})
	_, seven := search(usersSearch{search: search1(5, 300, 7, simulateUsers(shares)), simulator: "x"})
	if text != seven {
		t.Errorf("one worker:\n%s\nseven:\n%s", text, seven)
	}
	all := one.Classes[len(one.Classes)-1]
	near := func(got, want float64) bool { return math.Abs(got-want) < 1e-9 }
	// The best of bbr, bbr3 and CUBIC is 0.9; Reno does not count.
	if all.Paths != 300 || !near(all.OfBest, 0.7/0.9) || all.Below90 != 1 || all.Below70 != 0 || !near(all.Mean["cubic"], 0.2) ||
		!near(all.P10["bbr"], 0.9) || !near(all.MedianQueueP95Ms["bbr3"], 80) || !near(all.Kept, 0.3/0.8) || all.KeptBelowHalf != 1 {
		t.Errorf("%+v", all)
	}
	_, shown, _ := strings.Cut(text, "\n}\n")
	for line := range strings.Lines(shown) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > columns {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	t.Log(shown)

	// With the rivals' figures only haul runs, on fewer paths as well.
	shares["haul"] = 0.85
	ran := map[string]int{}
	counted := func(ctx context.Context, p path, over ...window) (outcome, error) {
		ran[p.flows[0].control]++
		return simulateUsers(shares)(ctx, p, over...)
	}
	later, _ := search(usersSearch{search: search1(5, 200, 1, counted), simulator: "x", stored: &one})
	all = later.Classes[len(later.Classes)-1]
	if len(ran) != 1 || ran["haul"] != 400 || all.Paths != 200 || !near(all.OfBest, 0.85/0.9) || !near(all.Kept, 0.15/0.8) || !near(all.Mean["reno"], 0.95) {
		t.Errorf("ran %v: %+v", ran, all)
	}
}

func search1(seed uint64, paths, workers int, run runner) search {
	return search{seed: seed, paths: paths, workers: workers, run: run}
}

// TestRivalsOfAnother: figures of another seed, another simulator or fewer paths are refused.
func TestRivalsOfAnother(t *testing.T) {
	s := usersSearch{search: search1(5, 20, 1, simulateUsers(nil)), simulator: "x"}
	s.progress = func(int, int) {}
	stored, err := s.do(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		change func(*usersSearch)
		want   string
	}{
		{func(s *usersSearch) { s.simulator = "y" }, "--rivals: the simulator has changed since; run it again without --rivals"},
		{func(s *usersSearch) { s.seed = 6 }, "--rivals: paths of --seed 5, not of 6"},
		{func(s *usersSearch) { s.paths = 21 }, "--rivals: 20 paths, fewer than --paths 21"},
		{func(s *usersSearch) { s.paths, s.stored.Results[18].Number, s.stored.Results[19].Number = 20, 19, 20 },
			"--rivals: not all of the first 20 paths: the run ended before; run it again"},
		{func(s *usersSearch) { s.stored.Results[7].Command += " jitter=1" }, "--rivals: path 7 is another; run it again without --rivals"},
	} {
		other, of := s, stored
		of.Results = slices.Clone(stored.Results)
		other.stored = &of
		c.change(&other)
		if _, err := other.do(t.Context()); err == nil || err.Error() != c.want {
			t.Errorf("got %v, not %s", err, c.want)
		}
	}
}

// TestSearchUsersEnds: an interrupt leaves the result so far, an error of the simulator ends
// the search.
func TestSearchUsersEnds(t *testing.T) {
	nettest.CheckLeaks(t)
	ctx, cancel := context.WithCancel(t.Context())
	s := usersSearch{search: search1(5, 1<<40, 2, simulateUsers(nil))}
	s.progress = func(paths, _ int) {
		if paths == 50 {
			cancel()
		}
	}
	r, err := s.do(ctx)
	if err != nil || !r.Interrupted || r.Paths < 50 || len(r.Results) != r.Paths {
		t.Errorf("interrupted: %v, %d paths", err, r.Paths)
	}
	crash := errors.New("signal: segmentation fault")
	s.progress = func(int, int) {}
	s.run = func(context.Context, path, ...window) (outcome, error) { return outcome{}, crash }
	if _, err := s.do(t.Context()); !errors.Is(err, crash) {
		t.Errorf("simulator that fails: %v", err)
	}
}

// TestSimulatorOfUsers runs a few paths with the simulator of this tree, and then haul alone
// on the same: its figures are the same.
func TestSimulatorOfUsers(t *testing.T) {
	nettest.RequireProgram(t, "gcc", "gcc")
	nettest.CheckLeaks(t)
	dir := t.TempDir()
	t.Setenv("TMPDIR", t.TempDir())
	search := func(args string) (usersResult, []byte) {
		t.Helper()
		var out, stderr bytes.Buffer
		if err := run(t.Context(), append(strings.Fields("--like users --seed 1 --paths 3 --json"), strings.Fields(args)...), &out, &stderr); err != nil {
			t.Fatal(err)
		}
		var r usersResult
		if err := json.Unmarshal(out.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		return r, out.Bytes()
	}
	first, text := search("")
	name := filepath.Join(dir, "before.json")
	if err := os.WriteFile(name, text, 0o644); err != nil {
		t.Fatal(err)
	}
	again, _ := search("--rivals " + name)
	for n, f := range first.Results {
		a, _ := json.Marshal(f)
		b, _ := json.Marshal(again.Results[n])
		if string(a) != string(b) {
			t.Errorf("%s\nand then\n%s", a, b)
		}
		for _, control := range append([]string{"haul"}, rivals...) {
			if share := f.Share[control]; share <= 0 || share > 1.01 {
				t.Errorf("%s: %s gets %v", f.Command, control, share)
			}
		}
	}
	nothingLeft(t)
}

package main

import (
	"flag"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"longhaul/bench/kit/congestion"
	"longhaul/lab"
	"longhaul/lab/experiment"
	"longhaul/lab/link"
	"longhaul/lab/tracemodel"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var update = flag.Bool("update", false, "write the golden files")

func haul() subject { return subject{name: "haul", rivals: usualRivals()} }

// Every item has a family or a reason, every family an item, and every cell claims that
// only name its roles.
func TestFamiliesAreComplete(t *testing.T) {
	covered := map[string]bool{}
	names := map[string]bool{}
	for _, f := range haul().families() {
		if names[f.name] || f.title == "" || f.about == "" || len(f.items) == 0 || len(f.cells) == 0 {
			t.Errorf("family %s is incomplete, or its name is taken", f.name)
		}
		names[f.name] = true
		for _, section := range f.items {
			if !slices.ContainsFunc(items, func(it item) bool { return it.Section == section }) {
				t.Errorf("%s names section %s, which is no item", f.name, section)
			}
			covered[section] = true
		}
		cells := map[string]bool{}
		for _, c := range f.cells {
			where := f.name + "/" + c.name
			if cells[c.name] || c.about == "" || len(c.claims) == 0 {
				t.Errorf("%s is incomplete, or its name is taken", where)
			}
			cells[c.name] = true
			bounds := 0
			for name, trial := range c.trials {
				if err := trial.Path.Check(); err != nil {
					t.Errorf("%s %s: %v", where, name, err)
				}
				if trial.lasts() <= 0 || trial.Groups[0].Algorithm == "" {
					t.Errorf("%s %s has no time, or no algorithm", where, name)
				}
			}
			for _, cl := range c.claims {
				if _, ok := c.trials[cl.of]; cl.of != "" && !ok {
					t.Errorf("%s: %s is about %s, which is no trial", where, cl.title, cl.of)
				}
				for _, p := range cl.parts {
					if p.least != nil || p.most != nil {
						bounds++
					}
					if v := p.value(runs{}); v == v && !math.IsInf(v, 0) {
						t.Errorf("%s: %s is %v without a run", where, cl.title, v)
					}
				}
			}
			if bounds == 0 {
				t.Errorf("%s has no bound", where)
			}
		}
	}
	for _, it := range items {
		if !covered[it.Section] && it.Reason == "" {
			t.Errorf("item %s has neither a family nor a reason", it.Section)
		}
	}
}

// The quick cells stay within 10 minutes.
func TestQuickIsQuick(t *testing.T) {
	c := &command{algorithm: "haul", rivals: usualRivals(), quick: true}
	families, err := c.choose(haul())
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := plan(families, store{t.TempDir(), maxLateMs}, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if took := remaining(tasks, quickParallel); took > 10*time.Minute {
		t.Errorf("%d runs take %v", len(tasks), took)
	}
}

// Trials that several cells need are run once, every trial before any is repeated, and
// cells whose algorithms the kernel lacks not at all.
func TestPlan(t *testing.T) {
	s := store{t.TempDir(), maxLateMs}
	var families []family
	for _, f := range haul().families() {
		if f.name == "harm-cubic" || f.name == "beside-bbr" || f.name == "overload" {
			families = append(families, f)
		}
	}
	all, err := plan(families, s, 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	perSeed := map[uint64]int{}
	for i, task := range all {
		perSeed[task.seed]++
		if task.Path.Seed != task.seed || i > 0 && task.seed < all[i-1].seed {
			t.Fatalf("run %d has seed %d of %d", i, task.Path.Seed, task.seed)
		}
	}
	// Cells share trials, such as that of CUBIC alone.
	if perSeed[1] != perSeed[2] || perSeed[1] >= 30*3+30*4+9*3 {
		t.Errorf("runs by seed: %v", perSeed)
	}
	without, err := plan(families, s, 1, lacks{"bbr": "is not there"})
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range without {
		if strings.Contains(task.file, "bbr") {
			t.Errorf("%s is planned without bbr", task.name)
		}
	}
	if overload := families[0]; lacks.ofCell(lacks{"bbr": "is not there"}, overload.cells[0]) != "" {
		t.Errorf("%s needs bbr, which only stands beside", overload.name)
	}
}

func TestIdentity(t *testing.T) {
	one := alone(clean(20e6, 40*time.Millisecond, 1), "haul", time.Minute)
	changed := func(change func(*trial)) string {
		other := one
		other.Groups = slices.Clone(one.Groups)
		change(&other)
		id, err := other.identity()
		if err != nil {
			t.Fatal(err)
		}
		return string(id)
	}
	same := changed(func(*trial) {})
	if got := changed(func(t *trial) { t.Path.Seed = 7 }); got != same {
		t.Errorf("the seed is part of the identity: %s", got)
	}
	for name, change := range map[string]func(*trial){
		"rate":      func(t *trial) { t.Path.RateBps++ },
		"loss":      func(t *trial) { t.Path.Loss.Probability = 0.01 },
		"AQM":       func(t *trial) { t.Path.AQM.Algorithm = link.PIE },
		"time":      func(t *trial) { t.Time++ },
		"algorithm": func(t *trial) { t.Groups[0].Algorithm = "bbr" },
		"leg":       func(t *trial) { t.Groups[0].Leg = congestion.BothLinks },
		"ECN":       func(t *trial) { t.Path.HostECN = lab.HostECNOn },
		"fault":     func(t *trial) { t.Fault = "outage" },
		"warm":      func(t *trial) { t.Warm = true },
		"trace":     func(t *trial) { t.Path.Trace = model("lte", tracemodel.WriteLTE, 1, 1e6) },
		"media":     func(t *trial) { t.Media.RateBps = 1e6 },
		"change":    func(t *trial) { t.Changes = []congestion.Change{{At: 1, To: t.Path}} },
	} {
		if changed(change) == same {
			t.Errorf("%s is no part of the identity", name)
		}
	}
	if strings.Contains(same, "Policer") || !strings.Contains(same, `"RateBps":20000000`) {
		t.Errorf("the identity has fields that are not set, or lacks some: %s", same)
	}
}

func TestFlags(t *testing.T) {
	parse := func(args string) error {
		run := Experiment().New()
		flags := pflag.NewFlagSet("dossier", pflag.ContinueOnError)
		run.Flags(flags)
		if err := flags.Parse(strings.Fields(args)); err != nil {
			return err
		}
		return run.Check(flags)
	}
	for _, good := range []string{"", "--quick", "--item 5", "--item 5.2.1,7", "--case pantheon", "--case harm-cubic/q1-1v1,cpu", "--cc bbr", "--render"} {
		if err := parse(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for args, want := range map[string]string{
		"--item 8":                  `unknown item "8"`,
		"--item 5.2.11":             `unknown item "5.2.11"`,
		"--case harm-cubic/q9":      `no cell "harm-cubic/q9"`,
		"--case cpu --item 5.1.1":   `no cell "cpu"`,
		"--item 7.5 --quick":        "no cell is in all of these",
		"--cc cubic,bbr":            "a dossier is of one algorithm",
		"--repeat 0":                "choose 1 or more",
		"--parallel 0":              "choose 1 or more",
		"--list --render":           "choose one",
		"--out /run/x":              "/run",
		"--quick --doc /run/doc.md": "/run",
	} {
		if err := parse(args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", args, err, want)
		}
	}
}

// A run is continued: what is stored is not run again, and the document is the same when
// it is made again from what is stored.
func TestDossierResumes(t *testing.T) {
	nettest.RequireSandbox(t)
	nettest.CheckLeaks(t)
	dir := t.TempDir()
	p := clean(10e6, 10*time.Millisecond, 1)
	tiny := family{name: "tiny", title: "Tiny", about: "Two flows.", items: []string{"5.1.4"}, cells: []cell{{
		name: "two", about: p.String(),
		trials: map[role]trial{ours: flows(p, time.Second, group("reno", 1), group("cubic", 1)), theirs: alone(p, "cubic", time.Second)},
		claims: []claim{
			atLeast("goodput", mbps, median(ours, goodput(0)), constant(1)),
			{title: "cubic", parts: []part{{unit: mbps, value: median(theirs, goodput(0))}}},
		},
	}}}
	kept := store{filepath.Join(dir, "runs"), congestion.None} // the machine may be busy
	tasks, err := plan([]family{tiny}, kept, 2, nil)
	if err != nil || len(tasks) != 4 {
		t.Fatalf("%d tasks: %v", len(tasks), err)
	}
	made := func() int {
		files, err := filepath.Glob(filepath.Join(kept.dir, "*.json"))
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	if err := measure(t.Context(), tasks[:1], kept, options{parallel: 1}); err != nil || made() != 1 {
		t.Fatalf("%d runs made: %v", made(), err)
	}
	first, err := os.Stat(tasks[0].file)
	if err != nil {
		t.Fatal(err)
	}
	if err := measure(t.Context(), tasks, kept, options{parallel: 3}); err != nil || made() != 4 {
		t.Fatalf("%d runs made: %v", made(), err)
	}
	if again, err := os.Stat(tasks[0].file); err != nil || again.ModTime() != first.ModTime() {
		t.Error("a stored run is made again")
	}
	results, from, err := judgeAll([]family{tiny}, kept, 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c := results[0].Cells[0]; c.Verdict != Pass || c.Runs != 2 || from.Count != 4 || from.Parallel != 3 {
		t.Errorf("%+v from %+v", c, from)
	}
	strict := store{kept.dir, -1}
	results, from, err = judgeAll([]family{tiny}, strict, 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c := results[0].Cells[0]; c.Verdict != NotRun || !strings.Contains(c.Reason, "ran late") || from.Count != 0 || from.Disturbed != 4 {
		t.Errorf("disturbed runs count: %+v from %+v", c, from)
	}
	if err := os.WriteFile(tasks[0].file, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := judgeAll([]family{tiny}, kept, 2, nil); err == nil || !strings.Contains(err.Error(), "or remove it") {
		t.Errorf("a cut result: %v", err)
	}
}

// The experiment's cases are its families.
func TestExperiment(t *testing.T) {
	e := Experiment()
	var names []string
	for _, f := range haul().families() {
		names = append(names, f.name)
	}
	if !slices.Equal(e.Cases, names) {
		t.Errorf("cases %v, want %v", e.Cases, names)
	}
	c := e.New().(*command)
	c.cases = []string{"harm-reno"}
	flags := pflag.NewFlagSet("dossier", pflag.ContinueOnError)
	c.Flags(flags)
	if err := c.Check(flags); err != nil {
		t.Fatal(err)
	}
	var user experiment.AlgorithmUser = c
	if got := user.Algorithms().Names; !slices.Equal(got, []string{"haul", "reno"}) {
		t.Errorf("the algorithms of harm-reno are %v", got)
	}
}

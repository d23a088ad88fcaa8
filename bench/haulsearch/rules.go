package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"os/exec"
	"strings"
	"time"

	"longhaul/internal/words/stats"
)

// A rule is a part of haul that the simulator can switch off.
type rule struct{ name, says string }

// rules lists them, as "haulsim rules" does: name and sentence, with a tab between.
func (s *simulator) rules(ctx context.Context) ([]rule, error) {
	out, err := exec.CommandContext(ctx, s.binary, "rules").Output()
	if err != nil {
		return nil, fmt.Errorf("haulsim rules: %w", err)
	}
	var list []rule
	for line := range strings.Lines(string(bytes.TrimSpace(out))) {
		name, says, found := strings.Cut(strings.TrimSpace(line), "\t")
		if !found {
			return nil, fmt.Errorf("haulsim rules: %q has no tab", line)
		}
		list = append(list, rule{name, says})
	}
	return list, nil
}

// A cell is one path with a figure that each rule is held against beside the search.
type cell struct {
	name, says string
	path       path
	over       window
	figure     func(w windowFigures) float64 // as a share
}

var cells = []cell{
	{"lossy", "100 Mb/s, 300 ms, 10 % lost, of the path in 60 s", cellPath(100, 300, 1, 0.1, 0, "haul"), window{0, 60}, firstShare},
	{"four", "four on it, together", cellPath(100, 300, 1, 0.1, 0, "haul", "haul", "haul", "haul"), window{20, 60}, allShare},
	{"geo", "50 Mb/s, 600 ms, of the path in 60 s", cellPath(50, 600, 1, 0, 0, "haul"), window{0, 60}, firstShare},
	{"short", "100 Mb/s, 63 ms, a queue of 0.1 BDP, of the path", cellPath(100, 63, 0.1, 0, 0, "haul"), window{20, 60}, firstShare},
	{"low", "20 Mb/s, 60 ms, 0.1 % lost, of the path", cellPath(20, 60, 1, 0.001, 0, "haul"), window{0, 60}, firstShare},
	{"jitter", "the same with jitter of 5 ms", cellPath(20, 60, 1, 0.001, 5, "haul"), window{0, 60}, firstShare},
	{"cubic", "100 Mb/s, 63 ms, what a CUBIC beside haul gets of the path", cellPath(100, 63, 1, 0, 0, "haul", "cubic"), window{30, 60},
		func(w windowFigures) float64 { return shareOf(w.flows[1].goodputBps, w.capacityBps) }},
}

func cellPath(mbps, rttMs, queueBDP, loss, jitterMs float64, controls ...string) path {
	p := path{settings: settings{{"rate", mbps}, {"rtt", rttMs}, {"queue", queueBDP}, {"loss", loss}, {"jitter", jitterMs}, {"time", 60}, {"seed", 1}}}
	for _, control := range controls {
		p.flows = append(p.flows, flow{control: control})
	}
	return p
}

func firstShare(w windowFigures) float64 { return shareOf(w.flows[0].goodputBps, w.capacityBps) }

func allShare(w windowFigures) float64 { return shareOf(totalGoodput(w.flows), w.capacityBps) }

// measure runs a cell with some seeds and returns the median.
func (c cell) measure(ctx context.Context, run runner) (float64, error) {
	var got []float64
	for seed := range 3 {
		p := c.path.clone()
		p.settings.set("seed", float64(1+seed))
		o, err := run(ctx, p, c.over)
		if err != nil {
			return 0, err
		}
		got = append(got, c.figure(o.over[0]))
	}
	return stats.Median(got, func(v float64) float64 { return v }), nil
}

// An effect is what haul does with a rule switched off. The first of a list is of all rules on.
type effect struct {
	Rule   string `json:"rule"` // empty: all are on
	Says   string `json:"says"`
	Paths  int    `json:"paths"`
	Broken int    `json:"broken"` // paths that break a bound
	// Paths that break one only without the rule, and only with it.
	New    int                `json:"new"`
	Mended int                `json:"mended"`
	Cells  map[string]float64 `json:"cells"`
}

func (e effect) off() string { return cmp.Or(e.Rule, "(none)") }

// A rulesResult is what a search of rules found.
type rulesResult struct {
	Seed        uint64   `json:"seed"`
	Interrupted bool     `json:"interrupted"`
	Effects     []effect `json:"effects"`
}

// searchRules runs the search and the cells with all rules on, and then with each off. off
// simulates with a rule switched off, or with none.
func (s *search) searchRules(ctx context.Context, rules []rule, off func(rule string) runner) (rulesResult, error) {
	r := rulesResult{Seed: s.seed}
	var base map[broken]bool
	began, passes := time.Now(), append([]rule{{says: "all are on"}}, rules...)
	for i, rule := range passes {
		one := *s
		one.progress = func(paths, failed int) { s.progress(i*s.paths+paths, failed) }
		one.run, one.keep, one.shrink = off(rule.name), math.MaxInt, false
		found, err := one.do(ctx)
		if err != nil {
			return r, err
		}
		e := effect{Rule: rule.name, Says: rule.says, Paths: found.Paths, Cells: map[string]float64{}}
		now := map[broken]bool{}
		for _, f := range found.Failures {
			now[broken{f.Kind, f.Number}] = true
		}
		if i == 0 {
			base = now
		}
		e.Broken, e.New, e.Mended = len(now), missing(now, base), missing(base, now)
		shares, errs := make([]float64, len(cells)), make([]error, len(cells))
		s.each(ctx, len(cells), func(i int) { shares[i], errs[i] = cells[i].measure(ctx, one.run) })
		for i, c := range cells {
			if e.Cells[c.name] = shares[i]; errs[i] != nil && ctx.Err() == nil {
				return r, errs[i]
			}
		}
		if ctx.Err() != nil { // a rule that is not whole says nothing
			r.Interrupted = true
			return r, nil
		}
		r.Effects = append(r.Effects, e)
		if s.notes != nil {
			fmt.Fprintf(s.notes, "%d of %d, off: %s: %d paths break a bound (+%d -%d)%s\n", i+1, len(passes), e.off(), e.Broken, e.New, e.Mended,
				left(time.Since(began), i+1, len(passes), 0))
		}
	}
	return r, nil
}

// broken is a path of a kind that breaks a bound.
type broken struct {
	kind   string
	number int
}

// missing counts those of a that are not in b.
func missing(a, b map[broken]bool) int {
	n := 0
	for one := range a {
		if !b[one] {
			n++
		}
	}
	return n
}

func (r rulesResult) verdict() error { return whole(r.Interrupted) }

// writeText prints a line for each rule; a cell that is as with all rules on is "=".
func (r rulesResult) writeText(w io.Writer) error {
	fmt.Fprintf(w, "%-14s %5s %4s %4s", "rule off", "broke", "+", "-")
	for _, c := range cells {
		fmt.Fprintf(w, " %6s", c.name)
	}
	fmt.Fprintln(w)
	for _, e := range r.Effects {
		fmt.Fprintf(w, "%-14s %5d %4d %4d", e.off(), e.Broken, e.New, e.Mended)
		for _, c := range cells {
			if e.Rule != "" && e.Cells[c.name] == r.Effects[0].Cells[c.name] {
				fmt.Fprintf(w, " %6s", "=")
				continue
			}
			fmt.Fprintf(w, " %6.1f", 100*e.Cells[c.name])
		}
		fmt.Fprintln(w)
	}
	paths := 0
	if len(r.Effects) > 0 {
		paths = r.Effects[0].Paths
	}
	fmt.Fprintf(w, "\nbroke: of %d paths, those that break a bound; seed %d. +: new ones, -: mended\n", paths, r.Seed)
	for _, c := range cells {
		fmt.Fprintf(w, "%s: %s, %%\n", c.name, c.says)
	}
	fmt.Fprintln(w)
	for _, e := range r.Effects {
		if e.Rule != "" {
			fmt.Fprintf(w, "%s: %s\n", e.Rule, e.Says)
		}
	}
	if r.Interrupted {
		fmt.Fprintln(w, "\ninterrupted before the end")
	}
	return nil
}

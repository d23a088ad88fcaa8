package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"longhaul/internal/words/stats"
)

// rivals are simulated in haul's place on each path of users. haul is held against the best
// of those that are bestOf.
var (
	rivals = []string{"bbr", "bbr3", "cubic", "reno"}
	bestOf = rivals[:3]
)

// A usersResult is what a search of users' paths found.
type usersResult struct {
	Seed uint64 `json:"seed"`
	// Simulator is the hash of all but haul that it was simulated with.
	Simulator   string       `json:"simulator"`
	Paths       int          `json:"paths"`
	Interrupted bool         `json:"interrupted"`
	Seconds     float64      `json:"seconds"`
	Classes     []classFound `json:"classes"` // the last is of all
	Results     []pathFound  `json:"results"`

	keep int // of the worst to show
}

// A pathFound is what one path of users showed.
type pathFound struct {
	Number  int    `json:"number"`
	Class   string `json:"class"`
	Command string `json:"command"`
	// Of each control alone: goodput as a share of what the path could carry, from its
	// begin, and the 95th percentile of the queue's delay.
	Share      map[string]float64 `json:"share"`
	QueueP95Ms map[string]float64 `json:"queue_p95_ms"`
	// Of a CUBIC in the second half: its share of the path beside haul, and beside CUBIC.
	BesideHaul  float64 `json:"cubic_beside_haul"`
	BesideCubic float64 `json:"cubic_beside_cubic"`
}

// ofBest is haul's share as a part of the best of the rivals'.
func (f pathFound) ofBest() float64 {
	best := 0.0
	for _, control := range bestOf {
		best = max(best, f.Share[control])
	}
	return part(f.Share["haul"], best)
}

// kept is what a CUBIC beside haul gets, as a part of what it gets beside a CUBIC.
func (f pathFound) kept() float64 { return part(f.BesideHaul, f.BesideCubic) }

// part is a ÷ b; of nothing, everything.
func part(a, b float64) float64 {
	if b <= 0 {
		return 1
	}
	return min(a/b, mostExcess)
}

// A classFound has the figures of a class of paths.
type classFound struct {
	Class string `json:"class"`
	Paths int    `json:"paths"`
	// Shares of the path, and medians of the queue's delay.
	Mean             map[string]float64 `json:"mean_share"`
	P10              map[string]float64 `json:"p10_share"`
	MedianQueueP95Ms map[string]float64 `json:"median_queue_p95_ms"`
	// haul's share as a part of the best rival's: mean, and the shares of paths below.
	OfBest  float64 `json:"mean_of_best"`
	Below90 float64 `json:"below_0.9_of_best"`
	Below70 float64 `json:"below_0.7_of_best"`
	// What a CUBIC beside haul keeps: median, and the share of paths below half.
	Kept          float64 `json:"median_cubic_keeps"`
	KeptBelowHalf float64 `json:"cubic_keeps_below_half"`
}

// usersSearch searches paths of users.
type usersSearch struct {
	search
	simulator string       // as in usersResult
	stored    *usersResult // of an earlier run, for the rivals; nil: they are simulated
}

// readRivals reads an earlier run's JSON.
func readRivals(name string) (*usersResult, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("--rivals: %w", err)
	}
	defer f.Close()
	r := &usersResult{}
	if err := json.NewDecoder(f).Decode(r); err != nil {
		return nil, fmt.Errorf("--rivals %s: %w; use the output of --like users --json", name, err)
	}
	return r, nil
}

// check says why the stored rivals are not those of this search.
func (s *usersSearch) check() error {
	switch r := s.stored; {
	case r == nil:
		return nil
	case r.Simulator != s.simulator:
		return errors.New("--rivals: the simulator has changed since; run it again without --rivals")
	case r.Seed != s.seed:
		return fmt.Errorf("--rivals: paths of --seed %d, not of %d", r.Seed, s.seed)
	case len(r.Results) < s.paths:
		return fmt.Errorf("--rivals: %d paths, fewer than --paths %d", len(r.Results), s.paths)
	case r.Results[s.paths-1].Number != s.paths-1: // they are in order
		return fmt.Errorf("--rivals: not all of the first %d paths: the run ended before; run it again", s.paths)
	}
	return nil
}

// do simulates the paths until all are done, the time is over or ctx ends.
func (s *usersSearch) do(ctx context.Context) (usersResult, error) {
	began := time.Now()
	r := usersResult{Seed: s.seed, Simulator: s.simulator, keep: s.keep}
	if err := s.check(); err != nil {
		return r, err
	}
	searching, cancel := context.WithCancel(ctx)
	defer cancel()
	if s.time > 0 {
		searching, cancel = context.WithTimeout(ctx, s.time)
		defer cancel()
	}
	var lock sync.Mutex // of what follows, and r
	var broken error
	below := 0
	s.each(searching, s.paths, func(n int) {
		found, err := s.path(searching, n)
		if searching.Err() != nil {
			return
		}
		lock.Lock()
		defer lock.Unlock()
		if err != nil {
			broken = cmp.Or(broken, err)
			cancel()
			return
		}
		r.Results = append(r.Results, found)
		if found.ofBest() < 0.9 {
			below++
		}
		s.progress(len(r.Results), below)
	})
	if broken != nil {
		return r, broken
	}
	slices.SortFunc(r.Results, func(a, b pathFound) int { return cmp.Compare(a.Number, b.Number) })
	for _, c := range classes {
		of := slices.DeleteFunc(slices.Clone(r.Results), func(f pathFound) bool { return f.Class != c.name })
		if len(of) > 0 {
			r.Classes = append(r.Classes, summary(c.name, of))
		}
	}
	if len(r.Results) > 0 {
		r.Classes = append(r.Classes, summary("all", r.Results))
	}
	r.Paths = len(r.Results)
	r.Interrupted = ctx.Err() != nil
	r.Seconds = time.Since(began).Seconds()
	return r, nil
}

// path simulates all of one path.
func (s *usersSearch) path(ctx context.Context, n int) (pathFound, error) {
	u := drawUsers(s.seed, n)
	found := pathFound{Number: n, Class: u.class, Command: u.alone.command(), Share: map[string]float64{}, QueueP95Ms: map[string]float64{}}
	controls := []string{"haul"}
	if s.stored == nil {
		controls = append(controls, rivals...)
	} else {
		stored := s.stored.Results[n]
		if stored.Command != found.Command {
			return found, fmt.Errorf("--rivals: path %d is another; run it again without --rivals", n)
		}
		for _, control := range rivals {
			found.Share[control], found.QueueP95Ms[control] = stored.Share[control], stored.QueueP95Ms[control]
		}
		found.BesideCubic = stored.BesideCubic
	}
	for _, control := range controls {
		o, err := instead(control, s.run)(ctx, u.alone, window{0, u.alone.timeS()})
		if err != nil {
			return found, err
		}
		w := o.over[0]
		found.Share[control], found.QueueP95Ms[control] = shareOf(w.flows[0].goodputBps, w.capacityBps), w.queueP95Ms
	}
	beside := func(control string) (float64, error) {
		o, err := instead(control, s.run)(ctx, u.along, secondHalf(u.along))
		if err != nil {
			return 0, err
		}
		return shareOf(o.over[0].flows[1].goodputBps, o.over[0].capacityBps), nil
	}
	var err error
	if found.BesideHaul, err = beside("haul"); err == nil && s.stored == nil {
		found.BesideCubic, err = beside("cubic")
	}
	return found, err
}

// summary sums up paths.
func summary(name string, of []pathFound) classFound {
	c := classFound{Class: name, Paths: len(of), Mean: map[string]float64{}, P10: map[string]float64{}, MedianQueueP95Ms: map[string]float64{}}
	mean := func(value func(pathFound) float64) float64 {
		sum := 0.0
		for _, f := range of {
			sum += value(f)
		}
		return sum / float64(len(of))
	}
	below := func(value func(pathFound) float64, limit float64) float64 {
		return mean(func(f pathFound) float64 {
			if value(f) < limit {
				return 1
			}
			return 0
		})
	}
	for _, control := range append([]string{"haul"}, rivals...) {
		share := func(f pathFound) float64 { return f.Share[control] }
		c.Mean[control], c.P10[control] = mean(share), stats.Quantile(of, 0.1, share)
		c.MedianQueueP95Ms[control] = stats.Median(of, func(f pathFound) float64 { return f.QueueP95Ms[control] })
	}
	c.OfBest = mean(pathFound.ofBest)
	c.Below90, c.Below70 = below(pathFound.ofBest, 0.9), below(pathFound.ofBest, 0.7)
	c.Kept, c.KeptBelowHalf = stats.Median(of, pathFound.kept), below(pathFound.kept, 0.5)
	return c
}

func (r usersResult) verdict() error { return whole(r.Interrupted) }

// writeText prints the classes and the paths on which haul is farthest below the best.
func (r usersResult) writeText(w io.Writer) error {
	fmt.Fprintf(w, "%-8s %5s  %-29s  %s\n", "", "", "mean share of the path", "haul ÷ best of bbr, bbr3, cubic")
	fmt.Fprintf(w, "%-8s %5s %5s %5s %5s %5s %5s  %6s %8s %8s\n", "class", "n", "haul", "bbr", "bbr3", "cubic", "reno", "mean", "< 0.9", "< 0.7")
	for _, c := range r.Classes {
		fmt.Fprintf(w, "%-8s %5d", c.Class, c.Paths)
		writeShares(w, c.Mean, "%6.2f")
		fmt.Fprintf(w, "  %6.2f %8s %8s\n", c.OfBest, percent(c.Below90), percent(c.Below70))
	}
	fmt.Fprintf(w, "\n%-14s  %-29s  %s\n", "", "median of queue p95, ms", "a CUBIC beside haul keeps")
	fmt.Fprintf(w, "%-14s %5s %5s %5s %5s %5s  %9s %12s\n", "class", "haul", "bbr", "bbr3", "cubic", "reno", "median", "below half")
	for _, c := range r.Classes {
		fmt.Fprintf(w, "%-14s", c.Class)
		writeShares(w, c.MedianQueueP95Ms, "%6.1f")
		fmt.Fprintf(w, "  %9.2f %12s\n", c.Kept, percent(c.KeptBelowHalf))
	}
	if n := len(r.Classes); n > 0 {
		fmt.Fprintf(w, "\n%-14s", "p10 of share")
		writeShares(w, r.Classes[n-1].P10, "%6.2f")
		fmt.Fprintln(w)
	}
	low := slices.Clone(r.Results)
	slices.SortStableFunc(low, func(a, b pathFound) int { return cmp.Compare(a.ofBest(), b.ofBest()) })
	for i, f := range low[:min(r.keep, len(low))] {
		if i == 0 {
			fmt.Fprint(w, toRun)
		}
		fmt.Fprintf(w, "\n%s, path %d: haul %.2f, bbr %.2f, bbr3 %.2f, cubic %.2f\n%s\n", f.Class, f.Number,
			f.Share["haul"], f.Share["bbr"], f.Share["bbr3"], f.Share["cubic"], wrap("  ", f.Command, "    "))
	}
	interrupted := ""
	if r.Interrupted {
		interrupted = "interrupted: "
	}
	_, err := fmt.Fprintf(w, "\n%s%d paths of users, seed %d, %.0f s\n", interrupted, r.Paths, r.Seed, r.Seconds)
	return err
}

func writeShares(w io.Writer, of map[string]float64, format string) {
	for _, control := range append([]string{"haul"}, rivals...) {
		fmt.Fprintf(w, format, of[control])
	}
}

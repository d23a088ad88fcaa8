package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A runner simulates a path.
type runner func(ctx context.Context, p path, over ...window) (outcome, error)

// A search draws paths, runs them and judges them.
type search struct {
	kinds   []kind
	seed    uint64
	paths   int
	time    time.Duration // 0: until all paths are done
	workers int
	keep    int // failures to show
	shrink  bool
	known   []known
	run     runner
	control string // that is simulated in place of haul
	// progress reports how many paths are done and how many of them have failed.
	progress func(paths, failed int)
	notes    io.Writer // lines about a search that takes long; nil: none
}

// A result is what a search found.
type result struct {
	Seed        uint64    `json:"seed"`
	Paths       int       `json:"paths"`
	Failed      int       `json:"failed"` // paths that break a bound or more
	Interrupted bool      `json:"interrupted"`
	Seconds     float64   `json:"seconds"`
	Bounds      []tally   `json:"bounds"`
	Failures    []failure `json:"failures"`

	known []known
}

// A tally is a bound with the paths that it was held against.
type tally struct {
	Kind       string   `json:"kind"`
	Bound      string   `json:"bound"`
	Says       string   `json:"says"`
	Unit       string   `json:"unit,omitempty"`
	AtLeast    bool     `json:"at_least"`
	Paths      int      `json:"paths"`
	Failures   int      `json:"failures"`
	Share      float64  `json:"share"`
	Allowed    float64  `json:"allowed_share"`
	Exceeded   bool     `json:"exceeded"`
	Worst      *float64 `json:"worst,omitempty"`
	WorstLimit *float64 `json:"worst_limit,omitempty"`
	WorstPath  string   `json:"worst_path,omitempty"`

	bound       *bound
	worst       figure
	worstNumber int
}

// A failure is a path that broke a bound.
type failure struct {
	Kind   string `json:"kind"`
	Number int    `json:"number"` // of the path among those of its kind, from 0
	Bound  string `json:"bound"`
	// The path as it was found, and the simplest that was tried and breaks the bound.
	Found     shown `json:"found"`
	Simplest  shown `json:"simplest"`
	SameAs    int   `json:"same_as"` // failures that shrank to the same path
	kind      kind
	path      path
	figure    figure
	seenFirst int // order of the search
}

// shown is a path with what it showed.
type shown struct {
	Command   string  `json:"command"`
	Reference string  `json:"reference,omitempty"` // the path it was compared with
	Value     float64 `json:"value"`
	Limit     float64 `json:"limit"`
}

func show(p path, f figure) shown {
	s := shown{Command: p.command(f.over), Value: f.value, Limit: f.limit}
	if f.reference != nil {
		s.Reference = f.reference.command(f.over)
	}
	return s
}

// do searches until all paths are done, the time is over or ctx ends. An error is
// that of the simulator.
func (s *search) do(ctx context.Context) (result, error) {
	began := time.Now()
	r := result{Seed: s.seed, known: s.known}
	tallies := map[*kind]map[*bound]*tally{}
	for i := range s.kinds {
		k := &s.kinds[i]
		tallies[k] = map[*bound]*tally{}
		for _, b := range k.bounds {
			tallies[k][b] = &tally{Kind: k.name, Bound: b.name, Says: b.says, Unit: b.unit, AtLeast: b.atLeast, Allowed: b.allowed, bound: b}
		}
	}
	var failures []failure
	var broken error // of the simulator

	searching, cancel := context.WithCancel(ctx)
	defer cancel()
	if s.time > 0 {
		searching, cancel = context.WithTimeout(ctx, s.time)
		defer cancel()
	}
	var lock sync.Mutex // of all above
	s.each(searching, s.paths, func(i int) {
		k, n := &s.kinds[i%len(s.kinds)], i/len(s.kinds)
		p := k.draw(random(s.seed, k.name, n))
		figures, err := k.judge(p, func(p path, over ...window) (outcome, error) { return s.run(searching, p, over...) })
		if searching.Err() != nil {
			return
		}
		lock.Lock()
		if err != nil {
			broken = cmp.Or(broken, err)
			cancel()
			lock.Unlock()
			return
		}
		r.Paths++
		failed := false
		for _, f := range figures {
			t := tallies[k][f.bound]
			t.add(p, n, f)
			if f.broken() {
				failed = true
				failures = append(failures, failure{Kind: k.name, Number: n, Bound: f.bound.name, kind: *k, path: p, figure: f, seenFirst: i})
			}
		}
		if failed {
			r.Failed++
		}
		paths, failedPaths := r.Paths, r.Failed
		lock.Unlock()
		s.progress(paths, failedPaths)
	})
	if broken != nil {
		return r, broken
	}
	for i := range s.kinds {
		for _, b := range s.kinds[i].bounds {
			r.Bounds = append(r.Bounds, tallies[&s.kinds[i]][b].finish())
		}
	}
	r.Failures = pick(failures, s.keep)
	if s.shrink && ctx.Err() == nil {
		broken = s.shrinkAll(ctx, r.Failures)
	}
	for i := range r.Failures {
		f := &r.Failures[i]
		if f.Simplest.Command == "" {
			f.Found = show(f.path, f.figure)
			f.Simplest = f.Found
		}
	}
	r.Failures = distinct(r.Failures)
	r.Interrupted = ctx.Err() != nil
	r.Seconds = time.Since(began).Seconds()
	return r, broken
}

// add counts a figure. Which one is the worst does not depend on their order.
func (t *tally) add(p path, n int, f figure) {
	t.Paths++
	if f.broken() {
		t.Failures++
	}
	if t.Paths == 1 || f.excess() > t.worst.excess() || f.excess() == t.worst.excess() && n < t.worstNumber {
		t.worst, t.worstNumber, t.WorstPath = f, n, p.command(f.over)
	}
}

func (t *tally) finish() tally {
	if t.Paths > 0 {
		t.Share = float64(t.Failures) / float64(t.Paths)
		t.Worst, t.WorstLimit = &t.worst.value, &t.worst.limit
	}
	t.Exceeded = t.Share > t.Allowed
	return *t
}

// pick chooses the failures to show: of each bound in turn, in the order drawn.
func pick(failures []failure, most int) []failure {
	slices.SortStableFunc(failures, func(a, b failure) int { return cmp.Compare(a.seenFirst, b.seenFirst) })
	type row struct{ kind, bound string }
	rank := map[row]int{}
	ranks := make([]int, len(failures))
	for i, f := range failures {
		ranks[i] = rank[row{f.Kind, f.Bound}]
		rank[row{f.Kind, f.Bound}]++
	}
	order := make([]int, len(failures))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(ranks[a], ranks[b]) })
	picked := make([]failure, 0, min(most, len(order)))
	for _, i := range order[:min(most, len(order))] {
		picked = append(picked, failures[i])
	}
	return picked
}

// each calls do with the numbers below n in turn, several at a time, until ctx ends.
func (s *search) each(ctx context.Context, n int, do func(i int)) {
	var next atomic.Int64
	var workers sync.WaitGroup
	for range s.workers {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	workers.Wait()
}

// shrinkAll shrinks failures, several at a time.
func (s *search) shrinkAll(ctx context.Context, failures []failure) error {
	shrinking, cancel := context.WithCancel(ctx)
	defer cancel()
	var lock sync.Mutex // of broken
	var broken error
	s.each(shrinking, len(failures), func(i int) {
		f := &failures[i]
		f.Found = show(f.path, f.figure)
		simplest, figure, err := shrink(f.kind, f.path, f.figure, func(p path, over ...window) (outcome, error) {
			return s.run(shrinking, p, over...)
		})
		f.Simplest = show(simplest, figure)
		if err != nil && !errors.Is(err, context.Canceled) {
			lock.Lock()
			broken = cmp.Or(broken, err)
			lock.Unlock()
			cancel()
		}
	})
	return broken
}

// distinct leaves one of those failures that shrank to the same path.
func distinct(failures []failure) []failure {
	var list []failure
	for _, f := range failures {
		at := slices.IndexFunc(list, func(g failure) bool { return g.Bound == f.Bound && g.Simplest.Command == f.Simplest.Command })
		if at >= 0 {
			list[at].SameAs++
			continue
		}
		list = append(list, f)
	}
	return list
}

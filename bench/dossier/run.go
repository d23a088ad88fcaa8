package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"longhaul/bench/kit/congestion"
	"longhaul/lab"
	"longhaul/lab/progress"
)

// options choose what is run.
type options struct {
	parallel int // trials at once; those of fast paths run alone
	report   progress.Reporter
}

// task is one run of a trial that cells need.
type task struct {
	trial
	file string
	seed uint64
	name string // of a cell that needs it
	json []byte // its identity
}

// plan returns the runs of all cells, each once: first one run of every trial, then the
// second.
func plan(families []family, s store, repeat int, missing lacks) ([]task, error) {
	var tasks []task
	known := map[string]bool{}
	for run := range repeat {
		seed := uint64(run + 1)
		for _, f := range families {
			for _, c := range f.cells {
				if missing.ofCell(c) != "" {
					continue
				}
				for _, name := range c.roles() {
					t := c.trials[name]
					if missing.ofTrial(t) != "" {
						continue
					}
					identity, err := t.identity()
					if err != nil {
						return nil, err
					}
					file := s.file(t, identity, seed)
					if !known[file] {
						known[file] = true
						tasks = append(tasks, task{t.withSeed(seed), file, seed, fmt.Sprintf("%s/%s %s", f.name, c.name, name), identity})
					}
				}
			}
		}
	}
	return tasks, nil
}

// setup is about the time that a run takes beside its flows.
const setup = 700 * time.Millisecond

// remaining returns about how long tasks take.
func remaining(tasks []task, parallel int) time.Duration {
	var shared, alone time.Duration
	for _, t := range tasks {
		if t.isAlone() {
			alone += t.lasts() + setup
		} else {
			shared += t.lasts() + setup
		}
	}
	return alone + shared/time.Duration(parallel)
}

// measure makes the runs that the store lacks. A run that fails costs its cells, not the
// others.
func measure(ctx context.Context, tasks []task, s store, o options) error {
	var missing []task
	for _, t := range tasks {
		known, err := s.load(t.file)
		if err != nil {
			return err
		}
		if known == nil || known.isDisturbed(s.maxLateMs) {
			missing = append(missing, t)
		}
	}
	o.report.Notef("%d of %d runs are to be made, %d at once: about %s", len(missing), len(tasks), o.parallel, inWords(remaining(missing, o.parallel)))
	alone := func(t task) bool { return t.isAlone() }
	watchCtx, stop := context.WithCancel(ctx)
	defer stop()
	w := work{store: s, o: o, of: len(missing), left: remaining(missing, o.parallel)}
	go w.machine.watch(watchCtx)
	if err := w.run(ctx, slices.DeleteFunc(slices.Clone(missing), alone), o.parallel); err != nil {
		return err
	}
	return w.run(ctx, slices.DeleteFunc(missing, func(t task) bool { return !alone(t) }), 1)
}

// work counts what is done.
type work struct {
	store store
	o     options
	of    int

	machine machine

	mu   sync.Mutex
	done int
	left time.Duration
}

// run makes runs, some at once, until all are made or the context ends.
func (w *work) run(ctx context.Context, tasks []task, parallel int) error {
	queue := make(chan task)
	failed := make(chan error, parallel)
	var workers sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for range parallel {
		workers.Go(func() {
			for t := range queue {
				if err := w.one(ctx, t, parallel); err != nil {
					failed <- err
					cancel()
					return
				}
			}
		})
	}
	for _, t := range tasks {
		select {
		case queue <- t:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(queue)
	workers.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return context.Cause(ctx)
	}
}

// one makes a run and stores it. An error ends all runs.
func (w *work) one(ctx context.Context, t task, parallel int) error {
	before, began := readCPU(), time.Now()
	m, err := t.measure(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err == nil {
		err = w.store.save(t.file, record{Trial: json.RawMessage(t.json), Seed: t.seed, Kernel: lab.KernelRelease(), At: began.UTC().Truncate(time.Second),
			Parallel: parallel, MachineBusy: readCPU().busySince(before), LateP99Ms: w.machine.lateP99Ms(began), Measured: m})
		if err != nil {
			return err
		}
	} else {
		w.o.report.Notef("%s: %v", t.name, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done++
	took := t.lasts() + setup
	if !t.isAlone() {
		took /= time.Duration(w.o.parallel)
	}
	w.left -= took
	w.o.report.Step(w.done, w.of, "%d/%d, %s left: %s, run %d", w.done, w.of, inWords(w.left), t.name, t.seed)
	return nil
}

// measure makes one run.
func (t task) measure(ctx context.Context) (m measured, err error) {
	if t.Fault != "" {
		var r congestion.FaultResult
		r, err = congestion.RunFault(ctx, t.Path, t.Fault, t.Groups[0].Algorithm, congestion.Options{})
		m.Fault = &r
		return m, err
	}
	m.Outcome, err = t.Run(ctx, t.name, congestion.Options{})
	return m, err
}

func inWords(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", max(d.Seconds(), 0))
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	}
	return fmt.Sprintf("%.1f h", d.Hours())
}

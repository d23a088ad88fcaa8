// Command soak runs relays for a long time under everything at once, and
// checks that they never lie about an ending and that they hold no more at
// the end than before.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"longhaul/lab/progress"
)

// The parts of a soak.
const (
	PartMixed = "mixed"
	PartSlow  = "slow-reader"
	PartChurn = "churn"
)

// Parts are all of them.
func Parts() []string { return []string{PartMixed, PartSlow, PartChurn} }

// Options are the options of a run. All except Seed are required.
type Options struct {
	Program     string // the longhaul binary that is tested
	Parts       []string
	Seed        uint64        // of the flows and of what happens to the relays; 0 draws one
	Time        time.Duration // of mixed: for how long flows are begun
	Flows       int           // of mixed: at the same time
	Slow        time.Duration // of slow-reader: for how long it is slow
	Connections int64         // of churn
	Reloads     int           // of churn, of all relays together

	Report progress.Reporter

	without []eventKind // of mixed
}

// events are those of the mixed run.
func (o Options) events() []event {
	return slices.DeleteFunc(schedule(o.Seed, o.Time), func(e event) bool { return slices.Contains(o.without, e.kind) })
}

// Check returns an error for invalid options.
func (o Options) Check() error {
	if o.Time <= 0 || o.Slow <= 0 || o.Flows < 1 || o.Connections < 1 || o.Reloads < 1 {
		return errors.New("times and numbers must be above 0")
	}
	return nil
}

// Result has the results of the parts of a soak.
type Result struct {
	Mixed *MixedResult `json:"mixed,omitempty"`
	Slow  *SlowResult  `json:"slow_reader,omitempty"`
	Churn *ChurnResult `json:"churn,omitempty"`
}

// Violations counts those of all parts.
func (r Result) Violations() (n int) {
	if r.Mixed != nil {
		n += len(r.Mixed.Violations)
	}
	if r.Slow != nil {
		n += len(r.Slow.Violations)
	}
	if r.Churn != nil {
		n += len(r.Churn.Violations)
	}
	return n
}

// WriteText prints a table for each part.
func (r Result) WriteText(w io.Writer) error {
	if r.Mixed != nil {
		r.Mixed.write(w)
	}
	if r.Slow != nil {
		r.Slow.write(w)
	}
	if r.Churn != nil {
		r.Churn.write(w)
	}
	return nil
}

// Run runs the parts, each with relays of its own. The process must be inside
// a sandbox.
func Run(ctx context.Context, o Options) (Result, error) {
	var r Result
	if err := o.Check(); err != nil {
		return r, err
	}
	if o.Seed == 0 {
		o.Seed = 1 + rand.Uint64()%1_000_000
	}
	for _, part := range o.Parts {
		w, err := newWorld(ctx, o.Program, o.Seed, part == PartMixed)
		if err != nil {
			return r, err
		}
		switch part {
		case PartMixed:
			o.Report.Linef("%s: %v, %d flows at the same time, seed %d", part, o.Time, o.Flows, o.Seed)
			var m MixedResult
			m, err = runMixed(ctx, w, o.Seed, o.Time, o.events(), o.Flows, func(p mixedProgress) { o.Report.Linef("%s", p) })
			r.Mixed = &m
		case PartSlow:
			o.Report.Linef("%s: %v", part, o.Slow)
			var s SlowResult
			s, err = runSlow(ctx, w, o.Seed, o.Slow)
			r.Slow = &s
		case PartChurn:
			o.Report.Linef("%s: %d connections, %d reloads", part, o.Connections, o.Reloads)
			var c ChurnResult
			c, err = runChurn(ctx, w, o.Seed, o.Connections, o.Reloads)
			r.Churn = &c
		default:
			err = errors.New("no such part")
		}
		if err == nil {
			err = w.stop(ctx)
		}
		w.Close()
		if err != nil {
			return r, fmt.Errorf("%s: %w", part, err)
		}
	}
	return r, nil
}

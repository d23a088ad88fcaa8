package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"
)

// TestDrainSteps goes through drains event by event, a second apart, and holds the deadlines that
// they set and what they ask of older processes.
func TestDrainSteps(t *testing.T) {
	signal := func(sig os.Signal) func(*drain, time.Time) {
		return func(w *drain, now time.Time) { w.signal(now, sig) }
	}
	asked := func(within time.Duration, usual, follows bool) func(*drain, time.Time) {
		return func(w *drain, now time.Time) {
			w.asked(now, finishRequest{within: within, usual: usual, answer: make(chan finished, 1)}, follows)
		}
	}
	const usual, without = 60 * time.Second, -1
	type steps []func(*drain, time.Time)
	for name, c := range map[string]struct {
		stopping bool
		within   time.Duration
		steps    steps
		want     []string // deadlines after the begin, and times of older processes
	}{
		"nothing happens":           {true, usual, nil, []string{"ends at 1m0s"}},
		"no bound":                  {true, without, nil, nil},
		"a second signal":           {true, usual, steps{signal(syscall.SIGTERM)}, []string{"ends at 1m0s", "ends at 1s", "older within 0s"}},
		"a second signal, no bound": {true, without, steps{signal(syscall.SIGINT)}, []string{"ends at 1s", "older within 0s"}},
		"SIGHUP":                    {true, usual, steps{signal(syscall.SIGHUP)}, []string{"ends at 1m0s"}},
		"asked for less":            {true, usual, steps{asked(5*time.Second, false, false)}, []string{"ends at 1m0s", "older within 5s", "ends at 6s"}},
		"asked for more":            {true, usual, steps{asked(time.Hour, false, false)}, []string{"ends at 1m0s", "older within 1h0m0s"}},
		"asked for the usual time":  {true, 9 * time.Second, steps{asked(usual, true, false)}, []string{"ends at 9s"}},
		"replaced, then a signal":   {false, without, steps{signal(syscall.SIGTERM)}, []string{"ends at 1m1s"}},
		"replaced, two signals": {false, without, steps{signal(syscall.SIGTERM), signal(syscall.SIGTERM)},
			[]string{"ends at 1m1s", "ends at 2s", "older within 0s"}},
		"replaced, asked by the successor": {false, time.Hour, steps{asked(usual, false, true)}, []string{"ends at 1h0m0s", "ends at 1m1s"}},
		"asked by the successor again": {false, without, steps{asked(usual, false, true), asked(0, false, true)},
			[]string{"ends at 1m1s", "ends at 2s"}},
		"replaced, asked with the usual time": {false, without, steps{asked(usual, true, false)}, []string{"ends at 1m1s"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			begin := time.Unix(0, 0)
			w := &drain{log: slog.New(slog.DiscardHandler), usual: usual, stopping: c.stopping,
				setDeadline: func(end time.Time) { got = append(got, fmt.Sprint("ends at ", end.Sub(begin))) },
				askOlder:    func(within time.Duration) { got = append(got, fmt.Sprint("older within ", within)) },
			}
			w.limit(begin, c.within)
			for i, step := range c.steps {
				step(w, begin.Add(time.Duration(i+1)*time.Second))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestDrainOutcome holds what a drain ends with, for itself and for those who asked.
func TestDrainOutcome(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		own, older finished
		want       Leftovers
		err        error // nil: flows that had not ended, if any
	}{
		"all ended":            {},
		"own flows were reset": {own: finished{Leftovers: Leftovers{Reset: 2, Bytes: 5, Most: "a"}}, want: Leftovers{Reset: 2, Bytes: 5, Most: "a"}},
		"both": {own: finished{Leftovers: Leftovers{Reset: 1, Bytes: 5, Most: "a"}}, older: finished{Leftovers: Leftovers{Left: 1, Bytes: 6, Most: "b"}},
			want: Leftovers{Reset: 1, Left: 1, Bytes: 11, Most: "b"}},
		"an older process does not answer": {older: finished{err: context.Canceled}},
		"it breaks":                        {own: finished{err: broken}, err: broken},
	} {
		t.Run(name, func(t *testing.T) {
			answer := make(chan finished, 1)
			w := &drain{log: slog.New(slog.DiscardHandler), waiting: 2, askers: []finishRequest{{answer: answer}}}
			w.ended(c.own)
			w.ended(c.older)
			err := w.conclude()
			if w.waiting != 0 || (<-answer).Leftovers != c.want {
				t.Errorf("%d wait, got %+v, want %+v", w.waiting, w.all, c.want)
			}
			undrained, isUndrained := errors.AsType[*UndrainedError](err)
			switch {
			case c.want != Leftovers{}:
				if !isUndrained || undrained.Leftovers != c.want {
					t.Errorf("%v", err)
				}
			case !errors.Is(err, c.err):
				t.Errorf("%v, want %v", err, c.err)
			}
		})
	}
}

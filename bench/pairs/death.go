package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"longhaul/bench/kit"
)

const (
	deadFor     = 2 * time.Second // the far relay is away
	resetWithin = time.Second     // of the new process's answer: the flows of the dead one
	watchedFor  = 5 * time.Second // from the answer on
)

// reasonRestarted is what the near relay's log says of these flows.
const reasonRestarted = "peer-restarted"

// death kills the far relay, and starts it again.
func death(ctx context.Context, o kit.Options, way string, run int, note func(kit.Measured)) error {
	w, c, err := crowded(ctx, o, way, crowdOptions{flows: kit.Pick(o, 300, 60), opening: 2 * time.Second, minLife: time.Hour, maxLife: time.Hour,
		once: true, pace: steady, seed: o.SeedOf(run)})
	if err != nil {
		return err
	}
	defer w.close()
	if err := w.far().Kill(); err != nil {
		return err
	}
	if err := kit.Pause(ctx, deadFor); err != nil {
		return err
	}
	if err := w.startRelay(ctx, w.far()); err != nil {
		return err
	}
	answers := time.Now()
	served := w.tryNew(ctx, c, answers.Add(watchedFor))
	if err := ctx.Err(); err != nil {
		return err
	}
	w.noteResets(c, answers, note)
	noteServed(served, answers, note)
	return nil
}

// noteResets notes when the flows of the dead relay were reset, and whether the near
// relay says why.
func (w *world) noteResets(c *crowd, answers time.Time, note func(kit.Measured)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	hanging, unnamed, slowest, example := 0, 0, time.Duration(0), ""
	for _, f := range c.flows {
		if !f.client.failed() {
			hanging++
			continue
		}
		slowest = max(slowest, f.client.failedAt.Sub(answers))
		lines := w.heard(f.local)
		if !slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, reasonRestarted) }) {
			unnamed++
			example = fmt.Sprintf("%s: %q", f.local, lines)
		}
	}
	note(kit.Measured{Name: "flows", Value: float64(len(c.flows))})
	note(kit.Measured{Name: "flows not reset", Value: float64(hanging), Bound: kit.AtMost(0), Exact: true})
	note(kit.Measured{Name: "reset after its answer, slowest", Unit: "s", Value: slowest.Seconds(), Bound: kit.AtMost(resetWithin.Seconds()), Exact: true})
	if ours(w.way) {
		note(kit.Measured{Name: "resets without " + reasonRestarted + " logged", Value: float64(unnamed), Bound: kit.AtMost(0), Exact: true, Example: example})
	}
}

// attempt is a new flow.
type attempt struct {
	began time.Time
	took  time.Duration
	err   error
}

// tryNew begins new flows at an even rate until a moment, and waits for all of them.
func (w *world) tryNew(ctx context.Context, c *crowd, until time.Time) []attempt {
	const every = 50 * time.Millisecond
	var (
		mu  sync.Mutex
		all []attempt
		wg  sync.WaitGroup
	)
	for time.Now().Before(until) && ctx.Err() == nil {
		wg.Go(func() {
			a := attempt{began: time.Now()}
			a.err = w.echoOnce(ctx)
			a.took = time.Since(a.began)
			mu.Lock()
			all = append(all, a)
			mu.Unlock()
		})
		_ = kit.Pause(ctx, every) // the loop's condition has its error
	}
	wg.Wait()
	return all
}

// echoOnce runs a short flow to the crowd's target.
func (w *world) echoOnce(ctx context.Context) error {
	conn, err := w.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	said := slices.Concat((&flow{number: echoNumber}).header(), []byte("longhaul"))
	if err := errors.Join(conn.SetDeadline(time.Now().Add(patience)), write(conn, said), conn.CloseWrite()); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if err == nil && string(answer) != string(said[headerBytes:]) {
		err = fmt.Errorf("%q: %w", answer, errWrong)
	}
	return err
}

func write(w io.Writer, p []byte) error {
	_, err := w.Write(p)
	return err
}

// noteServed notes when the first new flow was served, and how many failed that began a
// second later than the answer.
func noteServed(all []attempt, answers time.Time, note func(kit.Measured)) {
	first, failed, example := math.NaN(), 0, ""
	for _, a := range all {
		switch {
		case a.err == nil:
			first = fmin(first, a.began.Add(a.took).Sub(answers).Seconds())
		case a.began.After(answers.Add(resetWithin)):
			failed++
			example = fmt.Sprintf("%+.3f s: %v", a.began.Sub(answers).Seconds(), a.err)
		}
	}
	note(kit.Measured{Name: "first new flow served, after its answer", Unit: "s", Value: first})
	note(kit.Measured{Name: "new flows failed, from 1 s after it", Value: float64(failed), Bound: kit.AtMost(0), Exact: true, Example: example})
}

// fmin is the smaller number, or the one that is a number.
func fmin(a, b float64) float64 {
	if math.IsNaN(a) || b < a {
		return b
	}
	return a
}

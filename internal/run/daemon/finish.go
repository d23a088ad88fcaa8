package daemon

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"syscall"
	"time"
)

// drain is the end of a process with flows: it has the deadline, who asked for the end, and what
// became of the flows. Each event is a method.
type drain struct {
	log      *slog.Logger
	usual    time.Duration // the configured time
	stopping bool          // somebody wants the end; otherwise only the successor's time bounds it
	endsAt   time.Time     // when flows are reset; zero: never
	waiting  int           // outcomes to come
	askers   []finishRequest
	all      finished

	setDeadline func(end time.Time)
	askOlder    func(within time.Duration) // has older processes end sooner than they were asked to
}

// limit has the flows reset within a time, unless an earlier time holds. Negative means no bound.
func (w *drain) limit(now time.Time, within time.Duration) {
	if end := now.Add(within); within >= 0 && (w.endsAt.IsZero() || end.Before(w.endsAt)) {
		w.endsAt = end
		w.setDeadline(end)
	}
}

// signal is that of an operator: the first one begins the drain, the second one ends it.
func (w *drain) signal(now time.Time, sig os.Signal) {
	switch {
	case sig == syscall.SIGHUP:
	case w.stopping:
		w.log.Warn("a second signal ends the drain", "signal", sig.String())
		w.limit(now, 0)
		w.askOlder(0)
	default:
		w.log.Info("stopping", "signal", sig.String())
		w.stopping = true
		w.limit(now, w.usual)
	}
}

// asked is a request to end. A process that has a successor, with follows, has no older ones to ask:
// its successor does.
func (w *drain) asked(now time.Time, r finishRequest, follows bool) {
	w.askers = append(w.askers, r)
	if w.stopping && !r.usual && !follows {
		w.askOlder(r.within)
	}
	if !w.stopping || !r.usual {
		w.limit(now, r.within)
	}
	w.stopping = true
}

// ended is the outcome of this process's flows, or of those of the older ones.
func (w *drain) ended(r finished) {
	w.waiting--
	w.all.Leftovers = w.all.and(r.Leftovers)
	if r.err != nil && !errors.Is(r.err, context.DeadlineExceeded) && !errors.Is(r.err, context.Canceled) {
		w.all.err = errors.Join(w.all.err, r.err)
	}
}

// conclude answers the askers and logs the outcome.
func (w *drain) conclude() error {
	for _, r := range w.askers {
		r.answer <- w.all
	}
	all := w.all
	switch {
	case all.Reset > 0:
		w.log.Warn("stopped, flows were reset", "flows", all.Reset, "left_to_kernel", all.Left, "undelivered_bytes", all.Bytes)
		return &UndrainedError{all.Leftovers}
	case all.Left > 0:
		w.log.Warn("stopped before all bytes had arrived", "left_to_kernel", all.Left, "undelivered_bytes", all.Bytes)
		return &UndrainedError{all.Leftovers}
	case all.err != nil:
		return all.err
	}
	w.log.Info("stopped, every flow had ended")
	return nil
}

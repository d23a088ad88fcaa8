package relay

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// pulse is a query whether an event loop still turns. Callers share a pending
// query, so that the mailbox of a stuck loop does not fill.
type pulse struct {
	mu     sync.Mutex
	answer chan struct{} // closed by the loop; nil: no query is pending
}

// ask returns a channel that the loop closes as soon as it can; false after the
// loop has ended.
func (w *worker) ask() (<-chan struct{}, bool) {
	p := &w.pulse
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.answer != nil {
		return p.answer, true
	}
	answer := make(chan struct{})
	posted := w.post(func() {
		p.mu.Lock()
		p.answer = nil
		p.mu.Unlock()
		close(answer)
	})
	if posted {
		p.answer = answer
	}
	return answer, posted
}

// Responsive waits until every event loop has answered, and returns the time
// that the slowest took. It never waits for a reload.
func (r *Relay) Responsive(ctx context.Context) (time.Duration, error) {
	loops := r.loops.Load()
	if loops == nil {
		return 0, ErrClosed
	}
	start := time.Now()
	answers := make([]<-chan struct{}, len(*loops))
	for i, w := range *loops {
		answer, ok := w.ask()
		if !ok {
			return 0, ErrClosed
		}
		answers[i] = answer
	}
	for i, answer := range answers {
		select {
		case <-answer:
		case <-ctx.Done():
			return time.Since(start), fmt.Errorf("event loop %d of %d does not answer: %w", i+1, len(answers), ctx.Err())
		}
	}
	return time.Since(start), nil
}

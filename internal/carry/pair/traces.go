package pair

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"longhaul/internal/carry/pair/wire"
)

// maxTraces bounds the TRACEs of one session, for different flows, that wait for their answer: those of this
// end, and those of the other end.
const maxTraces = 4

var (
	errManyTraces = errors.New("too many traces are under way")
	errTraceCut   = errors.New("the session was lost")
)

// traces are the TRACEs of a session.
type traces struct {
	mu      sync.Mutex
	waiting map[uint64][]chan []byte // for answers of the other end, by flow
	asked   []traceAsked             // by the other end, oldest first
	answers bool                     // a goroutine answers them
}

// traceAsked is a TRACE of the other end.
type traceAsked struct {
	flow  uint64
	until time.Time // the other end waits
}

// ask sends TRACE for a flow and returns the answer; empty: the other end has no such flow.
func (t *traces) ask(ctx context.Context, ctl *control, flow uint64, within time.Duration) ([]byte, error) {
	answer := make(chan []byte, 1)
	t.mu.Lock()
	if t.waiting[flow] == nil && len(t.waiting) >= maxTraces {
		t.mu.Unlock()
		return nil, errManyTraces
	}
	if t.waiting == nil {
		t.waiting = map[uint64][]chan []byte{}
	}
	t.waiting[flow] = append(t.waiting[flow], answer)
	t.mu.Unlock()
	defer t.giveUp(flow, answer)
	ctl.post(wire.Message{Type: wire.MessageTrace, Flow: flow, Within: within})
	select {
	case b := <-answer:
		return b, nil
	case <-ctl.gone:
		return nil, errTraceCut
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (t *traces) giveUp(flow uint64, answer chan []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting[flow] = slices.DeleteFunc(t.waiting[flow], func(c chan []byte) bool { return c == answer })
	if len(t.waiting[flow]) == 0 {
		delete(t.waiting, flow)
	}
}

// answered gives an answer to all who wait for it.
func (t *traces) answered(flow uint64, b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.waiting[flow] {
		select {
		case c <- slices.Clone(b):
		default: // it has one
		}
	}
}

// note takes a TRACE of the other end, unless one for the flow waits already, or too many do: no relay sends
// so many. It reports whether a goroutine is to begin that answers them.
func (t *traces) note(q traceAsked) (begin bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.asked) >= maxTraces || slices.ContainsFunc(t.asked, func(o traceAsked) bool { return o.flow == q.flow }) {
		return false
	}
	t.asked = append(t.asked, q)
	begin = !t.answers
	t.answers = true
	return begin
}

// next returns the TRACE to answer now, or false once all are answered: the goroutine ends then.
func (t *traces) next() (q traceAsked, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.answers = len(t.asked) > 0; !t.answers {
		return q, false
	}
	q = t.asked[0]
	t.asked = slices.Delete(t.asked, 0, 1)
	return q, true
}

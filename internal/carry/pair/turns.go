package pair

import (
	"net/netip"
	"slices"
	"sync"
)

// turns bounds how many handshakes compute at the same time. After an outage hundreds of them are
// ready at once, and the messages with which flows go on meanwhile would wait behind them all.
// Those that have begun come first: a flow gets a lane early that way, in place of all of them
// late. Of those that have not, sources take turns, so that none waits behind all of another. A
// nil one has no bound.
type turns struct {
	mu        sync.Mutex
	free      int
	begun     []chan struct{}                // wait for their next turn
	beginning map[netip.Addr][]chan struct{} // wait for their first one
	order     []netip.Addr                   // of beginning: whose turn is next
}

func newTurns(n int) *turns {
	return &turns{free: max(n, 1), beginning: map[netip.Addr][]chan struct{}{}}
}

// begin waits for the first turn of a handshake with a source; the zero Addr is this host's own.
func (t *turns) begin(source netip.Addr) {
	if t == nil {
		return
	}
	t.wait(func(granted chan struct{}) {
		if len(t.beginning[source]) == 0 {
			t.order = append(t.order, source)
		}
		t.beginning[source] = append(t.beginning[source], granted)
	})
}

// goOn waits for another turn.
func (t *turns) goOn() {
	if t != nil {
		t.wait(func(granted chan struct{}) { t.begun = append(t.begun, granted) })
	}
}

func (t *turns) wait(queue func(granted chan struct{})) {
	t.mu.Lock()
	if t.free > 0 {
		t.free--
		t.mu.Unlock()
		return
	}
	granted := make(chan struct{})
	queue(granted)
	t.mu.Unlock()
	<-granted
}

// give ends a turn.
func (t *turns) give() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case len(t.begun) > 0:
		close(t.begun[0])
		t.begun = t.begun[1:]
	case len(t.order) > 0:
		source := t.order[0]
		waiting := t.beginning[source]
		close(waiting[0])
		if t.order = slices.Delete(t.order, 0, 1); len(waiting) > 1 {
			t.beginning[source] = waiting[1:]
			t.order = append(t.order, source)
		} else {
			delete(t.beginning, source)
		}
	default:
		t.free++
	}
}

package relay

import (
	"fmt"
	"testing"
)

// world is a state machine together with the real state of the bytes.
type world struct {
	e     ending
	ended [2]bool // the leg's peer ended its stream cleanly
	whole [2]bool // and every byte of it was handed over
	shut  [2]bool // the leg's peer has seen the other's end
}

// move is one input of the state machine.
type move struct {
	ev event
	s  side
}

func (m move) String() string {
	return fmt.Sprintf("%s(%s)",
		[...]string{"end", "reset", "broken", "drained", "acked", "abort", "leave"}[m.ev], [...]string{"client", "target"}[m.s])
}

// possible reports whether an event loop can produce the event. It does not
// read a leg whose bytes it discards, or that has no more to read.
func (w *world) possible(m move) bool {
	if w.e.closed {
		return false
	}
	switch m.ev {
	case eventEnd, eventReset:
		return w.e.in[m.s] == inputOpen && !w.e.discarded[m.s]
	case eventDrained:
		return w.e.in[m.s] != inputOpen && !w.e.drained[m.s] && !w.e.discarded[m.s]
	case eventAcked:
		return w.e.awaiting[m.s] && !w.e.acked[m.s]
	case eventBroken:
		return !w.e.broken[m.s]
	case eventAbort, eventLeave:
		return m.s == client
	}
	return false
}

// step applies the event and checks the state machine's actions.
func (w world) step(m move) (world, error) {
	switch m.ev {
	case eventEnd:
		w.ended[m.s] = true
	case eventDrained:
		w.whole[m.s] = w.ended[m.s]
	}
	was := w.e
	a := w.e.step(m.ev, m.s)
	closing := 0
	for s := client; s <= target; s++ {
		o := s.other()
		if a.hasOn(actionShutdown, s) {
			if !w.whole[o] {
				return w, fmt.Errorf("%v: leg %d is shown an end that the other side did not make, or not whole", m, s)
			}
			if w.shut[s] {
				return w, fmt.Errorf("%v: leg %d is shown an end twice", m, s)
			}
			w.shut[s] = true
		}
		clean, reset := a.hasOn(actionCloseClean, s), a.hasOn(actionCloseReset, s)
		if clean && reset {
			return w, fmt.Errorf("%v: leg %d is closed in two ways", m, s)
		}
		if clean || reset {
			closing++
		}
		if clean && !(w.whole[o] && w.ended[s] && w.shut[s]) {
			return w, fmt.Errorf("%v: leg %d is closed cleanly without a clean end of both streams", m, s)
		}
		if reset && w.whole[client] && w.whole[target] && w.shut[s] && (m.ev != eventAbort || w.e.acked[s]) {
			return w, fmt.Errorf("%v: leg %d is reset though both streams ended well", m, s)
		}
		if clean && m.ev != eventLeave && !w.e.broken[s] && !w.e.acked[s] {
			return w, fmt.Errorf("%v: leg %d is closed before its peer has everything", m, s)
		}
		if reset && m.ev != eventAbort && m.ev != eventLeave && !w.e.broken[s] && !(w.e.drained[o] && w.e.acked[s]) {
			return w, fmt.Errorf("%v: leg %d is reset before its peer has all that came before", m, s)
		}
		if a.hasOn(actionDiscard, s) && !w.e.broken[o] {
			return w, fmt.Errorf("%v: bytes of leg %d are dropped though the other leg can be written", m, s)
		}
		if a.hasOn(actionDiscard, s) && was.discarded[s] {
			return w, fmt.Errorf("%v: bytes of leg %d are dropped twice", m, s)
		}
	}
	if w.e.closed != (closing == 2) || closing == 1 {
		return w, fmt.Errorf("%v: %d legs are closed", m, closing)
	}
	if w.e.closed && a.has(actionAwaitAck.on(client)|actionAwaitAck.on(target)|actionDeadline) {
		return w, fmt.Errorf("%v: a closed flow waits", m)
	}
	for s := client; s <= target; s++ {
		hurry := w.e.broken[s] && !w.e.broken[s.other()] && !w.e.finished(s.other())
		if !w.e.closed && hurry && !w.e.deadline {
			return w, fmt.Errorf("%v: a broken flow has no deadline", m)
		}
		if w.e.deadline && w.e.finished(client) && w.e.finished(target) {
			return w, fmt.Errorf("%v: a flow that needs only acknowledgements has a deadline", m)
		}
	}
	return w, nil
}

var allMoves = func() (ms []move) {
	for ev := eventEnd; ev <= eventLeave; ev++ {
		ms = append(ms, move{ev, client}, move{ev, target})
	}
	return ms
}()

// TestEveryEnding visits every state that any sequence of events can reach, and
// applies every event in each.
func TestEveryEnding(t *testing.T) {
	type node struct {
		w   world
		via string
	}
	seen := map[world]bool{{}: true}
	todo := []node{{}}
	closed := 0
	for len(todo) > 0 {
		n := todo[0]
		todo = todo[1:]
		if n.w.e.closed {
			closed++
			for _, m := range allMoves {
				after := n.w.e
				if a := after.step(m.ev, m.s); a != 0 || after != n.w.e {
					t.Errorf("after%s: %v does something to a closed flow", n.via, m)
				}
			}
			continue
		}
		for _, m := range allMoves {
			if !n.w.possible(m) {
				continue
			}
			next, err := n.w.step(m)
			if err != nil {
				t.Fatalf("after%s: %v", n.via, err)
			}
			if !seen[next] {
				seen[next] = true
				todo = append(todo, node{next, n.via + " " + m.String()})
			}
		}
		if end, ok := n.w.settled(); !ok {
			t.Errorf("after%s: the flow never closes, it stays at %+v", n.via, end)
		}
	}
	t.Logf("%d states, %d of them closed", len(seen), closed)
	if len(seen) < 100 {
		t.Errorf("only %d states were reached: the walk is broken", len(seen))
	}
}

// settled applies every event that must follow after both peers have ended or a
// leg is broken, and reports whether the flow closes.
func (w world) settled() (ending, bool) {
	broken := w.e.broken[client] || w.e.broken[target]
	both := w.e.in[client] == inputEnded && w.e.in[target] == inputEnded
	if !broken && !both {
		return w.e, true // it may stay for any time
	}
	for range 10 {
		for s := client; s <= target; s++ {
			for _, ev := range []event{eventReset, eventDrained, eventAcked} {
				m := move{ev, s}
				if ev == eventReset && !w.e.broken[s] {
					continue // only a broken leg's input must end
				}
				if w.possible(m) {
					w, _ = w.step(m)
				}
			}
		}
	}
	return w.e, w.e.closed
}

// TestEndingSequences applies every sequence of up to six events, including
// impossible ones. No fault of an event loop shows a peer an end that did not
// happen.
func TestEndingSequences(t *testing.T) {
	const depth = 6
	count := 0
	var walk func(e ending, made [2]bool, left int)
	walk = func(e ending, made [2]bool, left int) {
		for _, m := range allMoves {
			next, madeNow := e, made
			if m.ev == eventEnd && e.in[m.s] == inputOpen && !e.closed {
				madeNow[m.s] = true
			}
			a := next.step(m.ev, m.s)
			count++
			for s := client; s <= target; s++ {
				if (a.hasOn(actionShutdown, s) || a.hasOn(actionCloseClean, s)) && !madeNow[s.other()] {
					t.Fatalf("%v in %+v shows leg %d an end that was not made", m, e, s)
				}
			}
			if left > 1 {
				walk(next, madeNow, left-1)
			}
		}
	}
	walk(ending{}, [2]bool{}, depth)
	t.Logf("%d events", count)
}

// TestTextbookEndings covers the endings with a name.
func TestTextbookEndings(t *testing.T) {
	c, s := client, target
	tests := []struct {
		name  string
		moves []move
		want  action // of the last move
	}{
		{"half-close up", []move{{eventEnd, c}, {eventDrained, c}}, actionShutdown.on(s)},
		{"an end waits for its bytes", []move{{eventEnd, c}}, 0},
		{"both end", []move{{eventEnd, c}, {eventDrained, c}, {eventEnd, s}, {eventDrained, s}},
			actionShutdown.on(c) | actionAwaitAck.on(c) | actionAwaitAck.on(s)},
		{"and have everything", []move{{eventEnd, c}, {eventDrained, c}, {eventEnd, s}, {eventDrained, s}, {eventAcked, s}, {eventAcked, c}},
			actionCloseClean.on(c) | actionCloseClean.on(s)},
		{"the client resets meanwhile", []move{{eventEnd, c}, {eventDrained, c}, {eventEnd, s}, {eventDrained, s}, {eventBroken, c}},
			actionDiscard.on(s)},
		{"and the target has everything", []move{{eventEnd, c}, {eventDrained, c}, {eventEnd, s}, {eventDrained, s}, {eventBroken, c}, {eventAcked, s}},
			actionCloseClean.on(c) | actionCloseClean.on(s)},
		{"given up before they have", []move{{eventEnd, c}, {eventDrained, c}, {eventEnd, s}, {eventDrained, s}, {eventAcked, s}, {eventAbort, c}},
			actionCloseReset.on(c) | actionCloseClean.on(s)},
		{"left to the kernel before they have", []move{{eventEnd, c}, {eventDrained, c}, {eventEnd, s}, {eventDrained, s}, {eventLeave, c}},
			actionCloseClean.on(c) | actionCloseClean.on(s)},
		{"target resets", []move{{eventReset, s}}, actionDiscard.on(c) | actionDeadline},
		{"its bytes are delivered first", []move{{eventReset, s}, {eventDrained, s}}, actionAwaitAck.on(c)},
		{"then the client is reset", []move{{eventReset, s}, {eventDrained, s}, {eventAcked, c}},
			actionCloseReset.on(c) | actionCloseReset.on(s)},
		{"a write fails, what came before is still read", []move{{eventBroken, s}}, actionDiscard.on(c) | actionDeadline},
		{"target ends, then resets while the client sends", []move{{eventEnd, s}, {eventDrained, s}, {eventBroken, s}},
			actionDiscard.on(c) | actionDeadline | actionAwaitAck.on(c)},
		{"and the client is reset after the end it saw", []move{{eventEnd, s}, {eventDrained, s}, {eventBroken, s}, {eventAcked, c}},
			actionCloseReset.on(c) | actionCloseReset.on(s)},
		{"a complete reply outlives the reset behind it", []move{{eventEnd, s}, {eventBroken, s}, {eventDrained, s}},
			actionShutdown.on(c) | actionAwaitAck.on(c)},
		{"both are gone", []move{{eventBroken, c}, {eventBroken, s}}, actionCloseReset.on(c) | actionCloseReset.on(s)},
		{"abort", []move{{eventAbort, c}}, actionCloseReset.on(c) | actionCloseReset.on(s)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var e ending
			var got action
			for _, m := range tt.moves {
				got = e.step(m.ev, m.s)
			}
			if got != tt.want {
				t.Errorf("got %b, want %b", got, tt.want)
			}
		})
	}
}

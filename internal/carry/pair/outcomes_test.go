package pair

import (
	"cmp"
	"errors"
	"slices"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
)

// TestOutcomes holds what counts as owed, and for how long.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	refused, drained := cause(flow.EndTargetRefused, nil), cause(flow.EndDrain, nil)
	for name, c := range map[string]struct {
		add  func(*outcomes)
		keep time.Duration
		want []uint64 // none: of all flows
		none bool
	}{
		"nothing":        {add: func(*outcomes) {}, none: true},
		"nothing dialed": {add: func(o *outcomes) { o.add(1, drained, time.Hour) }, none: true},
		"three of them": {add: func(o *outcomes) {
			o.add(9, refused, time.Hour)
			o.add(2, stream.Cause{}, time.Hour)
			o.add(5, refused, time.Hour)
		}, want: []uint64{2, 5, 9}},
		"answered":          {add: func(o *outcomes) { o.add(1, refused, time.Hour); o.answered(1) }, none: true},
		"the first counts":  {add: func(o *outcomes) { o.add(1, drained, time.Hour); o.add(1, stream.Cause{}, time.Hour) }, none: true},
		"given up long ago": {add: func(o *outcomes) { o.add(1, stream.Cause{}, time.Hour) }, keep: time.Nanosecond, none: true},
		"refused long ago":  {add: func(o *outcomes) { o.add(1, refused, time.Hour) }, keep: time.Nanosecond, want: []uint64{1}},
		"too many for HELLO": {add: func(o *outcomes) {
			for id := range uint64(1000) {
				o.add(1+id, refused, time.Hour)
			}
		}},
		"too many": {add: func(o *outcomes) {
			for id := range uint64(maxBuried + 1) {
				o.add(1+id, refused, time.Hour)
			}
		}},
		"too many of which nothing was dialed": {add: func(o *outcomes) {
			o.add(1, refused, time.Hour)
			for id := range uint64(maxBuried) {
				o.add(2+id, drained, time.Hour)
			}
		}, want: []uint64{1}},
	} {
		o := &outcomes{}
		c.add(o)
		flows, some := o.owed(time.Now(), cmp.Or(c.keep, time.Hour))
		if got := flows.Numbers(); some == c.none || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v are owed, %v", name, got, some)
		}
	}
}

// TestRefusalsAreBounded holds what a session keeps of refusals that its peer does not read.
func TestRefusalsAreBounded(t *testing.T) {
	t.Parallel()
	var o outcomes
	for id := range uint64(5 * maxBuried) {
		o.add(1+id, cause(flow.EndTargetRefused, errors.New("why")), time.Hour)
	}
	if len(o.flows) > maxBuried || len(o.due) > maxBuried || len(o.texts) > maxTexts {
		t.Errorf("%d refusals, of which %d are due, and %d texts", len(o.flows), len(o.due), len(o.texts))
	}
}

// TestLeftOutcomes holds that a session that begins again has what it had left, and that what does not fit
// has any flow of the peer count as owed.
func TestLeftOutcomes(t *testing.T) {
	t.Parallel()
	n := &Node{uses: map[string]*peerUse{"near": {}}}
	use := n.uses["near"]
	one := func(session uint64) left {
		o := &outcomes{}
		o.add(session, stream.Cause{}, time.Hour)
		return left{near: NearSession{"near", 1, session}, outcomes: o, owesFor: time.Hour}
	}
	check := func(session uint64, want Fate, flows ...uint64) {
		t.Helper()
		fate, got := FateOf(n.Owed(), NearSession{"near", 1, session})
		if fate != want || !slices.Equal(wire.Flows(got).Numbers(), flows) {
			t.Errorf("session %d: %v, and flows %v are owed", session, fate, wire.Flows(got).Numbers())
		}
	}
	for session := range uint64(maxLeft) {
		use.leave(one(1 + session))
	}
	check(1, FateInOrder, 1)
	check(maxLeft+1, FateInOrder)
	if o := use.takeLeft(NearSession{"near", 1, 1}); o == nil || len(o.codes()) != 1 {
		t.Errorf("the session has left %v", o)
	}
	check(1, FateInOrder)
	use.leave(one(1))
	use.leave(one(maxLeft + 1))
	check(1, FateUnknown)
	if fate, _ := FateOf(n.Owed(), NearSession{"other", 1, 1}); fate != FateInOrder {
		t.Errorf("the fate for another peer is %v", fate)
	}
}

// TestDropped holds how many flows that are over a session remembers, and why they were refused.
func TestDropped(t *testing.T) {
	var d dropped
	const n = 5 * maxBuried
	for id := range uint64(n) {
		d.add(id, byte(id%3))
		d.add(id, 0) // the end of the flow comes after its refusal
		if code, known := d.has(id); !known || code != byte(id%3) {
			t.Fatalf("flow %d: %d, %v", id, code, known)
		}
		if kept := len(d.now) + len(d.before); kept > 2*maxBuried {
			t.Fatalf("%d flows are remembered", kept)
		}
	}
	if _, known := d.has(n - maxBuried); !known {
		t.Error("a late flow is forgotten")
	}
}

package pair

import "testing"

// TestFirstLanes holds that a lane goes first to a flow that the far relay does not know:
// nothing of it can go ahead.
func TestFirstLanes(t *testing.T) {
	s, other := &session{}, &session{}
	known, fresh, later := &Flow{s: s}, &Flow{s: s, near: nearPart{needsOpen: true}}, &Flow{s: s}
	l := &Link{waiting: queue{{s: other, near: nearPart{needsOpen: true}}, known, fresh, later}}
	for i, want := range []*Flow{fresh, known, later, nil} {
		if got := l.waiting.take(s); got != want {
			t.Errorf("lane %d goes to another flow", i)
		}
	}
	if len(l.waiting) != 1 {
		t.Errorf("%d flows of the other session wait", len(l.waiting))
	}
}

// TestGaveBack holds that a flow that gave its lane to a crowd has the first one when it needs one again,
// of those that can go ahead, and that it comes to its turn as others do once it had that.
func TestGaveBack(t *testing.T) {
	s := &session{}
	l := &Link{kick: make(chan struct{}, 1), node: &process{}}
	l.setPaths(nil)
	flows := map[string]*Flow{"waits": {s: s, phase: phaseKnown}, "gave back": {s: s, phase: phaseKnown, near: nearPart{gaveBack: true}}, "comes": {s: s}}
	for _, name := range []string{"waits", "gave back", "comes"} {
		l.want(flows[name])
	}
	for _, want := range []string{"comes", "gave back", "waits"} {
		if l.waiting.take(s) != flows[want] {
			t.Errorf("the lane goes to another flow than the one that %s", want)
		}
	}
}

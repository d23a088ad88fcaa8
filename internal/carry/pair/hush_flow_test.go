package pair_test

import (
	"testing"
	"time"

	"longhaul/test/nettest"
)

// TestHush holds that a flow sends nothing for a moment, that a PING looks for the queue then, and
// that the flow goes on.
func TestHush(t *testing.T) {
	t.Parallel()
	s := newStand(t, striped(1))
	s.serve(echo)
	c := s.dial()
	s.roundTrip(c, "hello")
	near := s.flow(0)
	began := time.Now()
	ok, silent := near.Hush(20*time.Millisecond, 1e6)
	if !ok || !silent {
		t.Errorf("the flow is to be silent: %v, and is: %v", ok, silent)
	}
	s.roundTrip(c, "hello again")
	if took := time.Since(began); took < 24*time.Millisecond {
		t.Errorf("the flow was silent for %v, want 24 ms at least", took)
	}
	nettest.Eventually(t, 30*time.Second, func() bool {
		return near.Drained(began, began.Add(time.Minute))
	}, s.dump)
}

package pair

import (
	"testing"
	"time"

	"longhaul/internal/nettest"
)

// TestTakesFlows: a tunnel takes flows while its pair is up and the far relay does not stop.
func TestTakesFlows(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.serve(echo)
	await := func(want bool, when string) {
		t.Helper()
		nettest.Eventually(t, time.Minute, func() bool { return s.near.TakesFlows("up") == want }, func() string { return when })
	}
	await(true, "at first")
	if s.near.TakesFlows("down") || s.farNode().TakesFlows("down") {
		t.Error("a tunnel that is not a near one takes flows")
	}
	s.path.cut(true)
	await(false, "with the path cut")
	s.path.cut(false)
	await(true, "with the path again")
	s.farNode().Drain()
	await(false, "while the far relay takes no new flows")
}

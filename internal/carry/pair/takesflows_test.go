package pair_test

import (
	"testing"

	"longhaul/test/nettest"
)

// TestTakesFlows: a tunnel takes flows while its pair is up and the far relay does not stop.
func TestTakesFlows(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.serve(echo)
	await := func(want bool, when string) {
		t.Helper()
		nettest.Eventually(t, patience, func() bool { return s.link.Taking().Takes == want }, func() string { return when })
	}
	await(true, "at first")
	s.path.cut(true)
	await(false, "with the path cut")
	s.path.cut(false)
	await(true, "with the path again")
	s.farNode().Drain()
	await(false, "while the far relay takes no new flows")
}

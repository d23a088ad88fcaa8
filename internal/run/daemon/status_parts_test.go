package daemon

import (
	"slices"
	"testing"
	"time"

	"longhaul/test/nettest"
)

// A part that does not answer is missing, the others are there. It is not asked again before it
// has answered, and nobody waits for it meanwhile.
func TestSlowParts(t *testing.T) {
	nettest.CheckLeaks(t)
	var parts slowParts
	asked, release := make(chan struct{}, 10), make(chan struct{})
	var quick, slow int
	status := func(late <-chan time.Time) []string {
		quick, slow = 0, 0
		c := parts.collect(late)
		ask(c, "slow", func() int {
			asked <- struct{}{}
			<-release
			return 7
		}, func(v int) { slow = v })
		quickDone := make(chan struct{})
		ask(c, "quick", func() int { defer close(quickDone); return 3 }, func(v int) { quick = v })
		<-quickDone
		<-c.results[1].done
		return c.wait()
	}
	over := make(chan time.Time)
	close(over)
	if missing := status(over); !slices.Equal(missing, []string{"slow"}) || quick != 3 || slow != 0 {
		t.Errorf("missing %q, quick %d, slow %d", missing, quick, slow)
	}
	for range 3 { // of which none is late: there is no time-out
		if missing := status(nil); !slices.Equal(missing, []string{"slow"}) || quick != 3 || slow != 0 {
			t.Errorf("once more: missing %q, quick %d, slow %d", missing, quick, slow)
		}
	}
	if n := len(asked); n > 1 {
		t.Errorf("a slow part is asked %d times", n)
	}
	close(release)
	nettest.Eventually(t, time.Minute, func() bool { return len(status(nil)) == 0 }, func() string { return "it stays missing" })
	if slow != 7 || quick != 3 {
		t.Errorf("quick %d, slow %d", quick, slow)
	}
}

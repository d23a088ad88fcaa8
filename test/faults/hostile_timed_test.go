//go:build timed

package faults

import (
	"fmt"
	"testing"
	"time"

	"longhaul/test/nettest"
)

// Ten thousand hostile connections, a thousand at a time: each is done with in 20 s,
// and flows hardly notice them.
func TestTimedHostileReaders(t *testing.T) {
	nettest.MostOf(t, func() error {
		b := newBesieged(t)
		quiet := useFlows(b.flows)
		time.Sleep(3 * time.Second) // the time over which is measured
		median, p99, longest := spread(quiet.end(t))
		t.Logf("echoes without a flood: median %v, 99 %% within %v, longest %v", median, p99, longest)

		const connections, refusal = 10_000, 20 * time.Second
		cpu := func() time.Duration {
			return cpuTime(t, b.open.cmd.Process.Pid) + cpuTime(t, b.secured.cmd.Process.Pid)
		}
		begin, before := time.Now(), cpu()
		times := b.attack(t, connections, 1000, 2*patience)
		took, spent := time.Since(begin), cpu()-before
		median, p99, longest = spread(times.echoes)
		t.Logf("%d hostile connections in %v, each done with within %v; the relays took %v of CPU", connections, took.Round(time.Millisecond),
			times.attack.Longest.Round(time.Millisecond), spent)
		t.Logf("echoes meanwhile: median %v, 99 %% within %v, longest %v", median, p99, longest)
		t.Logf("the slowest answer to who means well took %v; the updates of the dashboard were at most %v apart", times.slowestAnswer, times.longestPause)
		switch {
		case times.attack.Longest > refusal:
			return fmt.Errorf("a hostile connection was ended after %v, not within %v", times.attack.Longest, refusal)
		case p99 > 2*time.Second || longest > 7500*time.Millisecond:
			return fmt.Errorf("1 %% of the echoes took more than %v, one %v; want 2 s and 7.5 s", p99, longest)
		case times.slowestAnswer > refusal:
			return fmt.Errorf("an answer to who means well took %v, not %v", times.slowestAnswer, refusal)
		}
		return nil
	})
}

//go:build timed

package faults

import (
	"fmt"
	"testing"
	"time"

	"longhaul/test/nettest"
)

// Case 13: keepalive finds an idle peer that has vanished within its time.
func TestTimedIdlePeerVanishes(t *testing.T) {
	for _, v := range idleVanishings {
		t.Run(v.peer, func(t *testing.T) {
			nettest.MostOf(t, func() error { return foundWithin(v.run(t), 10*time.Second) })
		})
	}
}

// Case 14: the user timeout finds a peer that has vanished with data on the way to it
// within its time, and 2 s.
func TestTimedPeerVanishesWithData(t *testing.T) {
	for _, v := range vanishings {
		t.Run(v.name, func(t *testing.T) {
			nettest.MostOf(t, func() error {
				took := v.run(t)
				t.Logf("found after %.1f s", took.Seconds())
				return foundWithin(took, v.timeout+2*time.Second)
			})
		})
	}
}

func foundWithin(took, most time.Duration) error {
	if took > most {
		return fmt.Errorf("a peer that vanished was found after %v, more than %v", took, most)
	}
	return nil
}

// Case 15: a relay that waits for a window uses no processor time. A look at its
// resources each second, and the answers to status, are some 2 %; a relay that asks
// again and again whether the window is open would take 100.
func TestTimedWindowClosedForEver(t *testing.T) {
	const watched, most = 16 * time.Second, 2 * time.Second
	nettest.MostOf(t, func() error {
		w := newClosedWindow(t, "auto")
		w.stayClosed(0)
		pid := w.relay.cmd.Process.Pid
		paused, before := w.written.Load(), cpuTime(t, pid)
		w.stayClosed(watched)
		used := cpuTime(t, pid) - before
		t.Logf("%.0f ms of CPU in %v", used.Seconds()*1e3, watched)
		if used > most {
			return fmt.Errorf("the relay used %v of CPU time in %v of waiting, more than %v", used, watched, most)
		}
		if written := w.written.Load(); written != paused {
			return fmt.Errorf("the client went on, from %d to %d bytes, and nobody had read", paused, written)
		}
		return nil
	})
}

// Case 16: once the window opens the transfer goes on at once where the relay has not
// announced more than it can hold, and else with the client's next retransmission.
func TestTimedWindowOpensLate(t *testing.T) {
	for _, tt := range []struct {
		wanSide      string
		closed, late time.Duration
	}{
		{"none", 3*userTimeout + 2*time.Second, time.Second},
		{"auto", closedFor, closedFor + time.Second},
	} {
		t.Run(tt.wanSide, func(t *testing.T) {
			nettest.MostOf(t, func() error {
				w := newClosedWindow(t, tt.wanSide)
				w.stayClosed(tt.closed)
				took := w.open()
				t.Logf("complete %.1f s after the window had opened", took.Seconds())
				if took > tt.late {
					return fmt.Errorf("with wan_side %s the transfer was complete %v after the window had opened, more than %v", tt.wanSide, took, tt.late)
				}
				return nil
			})
		})
	}
}

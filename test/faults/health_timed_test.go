//go:build timed

package faults

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"longhaul/test/nettest"
)

// Health checks are answered at once within a flood.
func TestTimedHealthUnderFlood(t *testing.T) {
	nettest.MostOf(t, func() error {
		slowest := healthUnderFlood(t)
		t.Logf("the slowest health check took %v", slowest.Round(time.Millisecond))
		if slowest > time.Second {
			return fmt.Errorf("a flood keeps a health check waiting for %v, more than 1 s", slowest)
		}
		return nil
	})
}

// Of a relay that hangs, longhaul ready says so when its time is over.
func TestTimedStuckRelayIsNotReady(t *testing.T) {
	web := nettest.FreeAddress(t, "127.0.0.1")
	relay := startDaemon(t, nil, unsupervised, "http_listen: "+web+"\n"+single(nettest.FreeAddress(t, "127.0.0.1"), echo(t, "127.0.0.1:0"), ""))
	relay.signal(syscall.SIGSTOP)
	nettest.MostOf(t, func() error {
		begin := time.Now()
		command(t, "ready", "main", "--http", web, "--timeout", "300ms")
		if took := time.Since(begin); took > time.Second {
			return fmt.Errorf("longhaul ready --timeout 300ms took %v, more than 1 s", took)
		}
		return nil
	})
	relay.signal(syscall.SIGCONT)
}

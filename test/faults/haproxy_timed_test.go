//go:build timed

package faults

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"longhaul/test/nettest"
)

func TestTimedHAProxyRelayKilled(t *testing.T) {
	nettest.MostOf(t, func() error {
		slowest := newBalanced(t).killRelay()
		t.Logf("50 flows after the kill, each served, the slowest within %v", slowest.Round(time.Millisecond))
		return servedWithin("the kill of a relay", slowest, failoverBound)
	})
}

// HAProxy knows of a host's death after inter, a check that gets no answer within inter,
// fastinter, and one more such check: 3.3 s in the example.
func TestTimedHAProxyHostKilled(t *testing.T) {
	const noticedBound = 3500 * time.Millisecond
	nettest.MostOf(t, func() error {
		b := newBalanced(t)
		time.Sleep(2 * time.Second) // HAProxy takes a server that it has not checked yet for dead after one check
		known := make(chan time.Duration, 1)
		before, since := b.killHost(func(killed string) {
			begin := time.Now()
			go func() {
				for !strings.Contains(b.haproxy.log.String(), "relays/"+killed+" is DOWN") && time.Since(begin) < patience {
					time.Sleep(5 * time.Millisecond) // between two looks at the log
				}
				known <- time.Since(begin)
			}()
		})
		noticed := <-known
		t.Logf("20 flows after the host's death, each served, the slowest within %v; noticed after %v, and then the slowest within %v",
			before.Round(time.Millisecond), noticed.Round(time.Millisecond), since.Round(time.Millisecond))
		if noticed > noticedBound {
			return fmt.Errorf("HAProxy noticed the host's death after %v, more than %v", noticed, noticedBound)
		}
		return servedWithin("the host's death", before, failoverBound)
	})
}

func TestTimedHAProxyRelayDrains(t *testing.T) {
	nettest.MostOf(t, func() error {
		slowest := newBalanced(t).drainRelay()
		t.Logf("50 flows while one relay drains, each served, the slowest within %v", slowest.Round(time.Millisecond))
		return servedWithin("the stop of a relay", slowest, failoverBound)
	})
}

// HAProxy, which asks once a second, turns to the other relay in time when flows go on
// coming, five a second.
func TestTimedHAProxyRelayNearItsLimit(t *testing.T) {
	newBalanced(t).nearLimit(400, func(*daemon, func() bool) { time.Sleep(200 * time.Millisecond) })
}

func servedWithin(after string, took, most time.Duration) error {
	if took > most {
		return fmt.Errorf("after %s a new flow waited %v, more than %v", after, took, most)
	}
	return nil
}

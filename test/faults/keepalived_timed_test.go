//go:build timed

package faults

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// failoverBound is within what new connections must be served again.
const failoverBound = 3 * time.Second

// waitingBound is that of a connection that waits: its SYN is sent again 1, 2 and 3
// seconds after the first, so that it may be served a second late.
const waitingBound = failoverBound + time.Second

// kills is how often something dies for a median.
const kills = 5

func TestTimedKeepalivedRelayKilled(t *testing.T) {
	p := newPair(t, false)
	var took []time.Duration
	for range kills {
		p.killRelay(func(when string, begin time.Time) { took = append(took, p.servedAfter(when, begin)) })
	}
	report(t, "kill -9 of longhaul", took, failoverBound)

	took = nil
	for range kills {
		active := p.active()
		p.moveAddress(func(when string, begin time.Time) { took = append(took, p.servedAfter(when, begin)) })
		p.startKeepalived(active)
	}
	report(t, "keepalived is stopped", took, failoverBound)
}

func TestTimedKeepalivedHostKilled(t *testing.T) {
	var took, waited []time.Duration
	for i := range kills {
		t.Run(fmt.Sprint(i+1), func(t *testing.T) {
			p := newPair(t, true)
			waited = append(waited, p.killHost(func(when string, begin time.Time) { took = append(took, p.servedAfter(when, begin)) }))
		})
	}
	report(t, "the host dies", took, failoverBound)
	report(t, "the host dies, one connection that waits", waited, waitingBound)
}

// servedAfter tries new connections, one after the other, until one echoes, and returns
// how long after begin that was.
func (s *site) servedAfter(when string, begin time.Time) time.Duration {
	s.t.Helper()
	const each = 200 * time.Millisecond
	var last error
	for time.Since(begin) < patience {
		var h held
		if h, last = tryHold(s.t.Context(), s.dial(each), each); last == nil {
			took := time.Since(begin)
			h.Close()
			return took
		}
		time.Sleep(10 * time.Millisecond) // what is measured is time
	}
	s.t.Fatalf("%s: no new connection is served within %v: %v", when, patience, last)
	return 0
}

func report(t *testing.T, what string, took []time.Duration, bound time.Duration) {
	t.Helper()
	slices.Sort(took)
	if len(took) == 0 {
		t.Fatalf("%s: no kill was measured", what)
	}
	m, longest := took[len(took)/2], took[len(took)-1]
	t.Logf("%s: served again after %v, median %v of %v", what, longest.Round(time.Millisecond), m.Round(time.Millisecond), took)
	if m > bound {
		t.Errorf("%s: served again after %v (median), more than %v", what, m, bound)
	}
}

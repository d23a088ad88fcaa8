package pair

import (
	"testing"
	"time"
)

// TestStandingQueue holds which round trips show a queue.
func TestStandingQueue(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name   string
		before time.Duration   // the round trip until a while ago
		ago    time.Duration   // how long
		now    []time.Duration // those of the last second
		want   time.Duration
	}{
		{"none", 60 * ms, time.Minute, []time.Duration{60 * ms, 61 * ms, 60 * ms}, 0},
		{"one that stands", 60 * ms, time.Minute, []time.Duration{90 * ms, 84 * ms, 100 * ms}, 24 * ms},
		{"jitter", 60 * ms, time.Minute, []time.Duration{90 * ms, 61 * ms, 100 * ms}, 0},
		{"too few round trips", 60 * ms, time.Minute, []time.Duration{90 * ms, 84 * ms}, 0},
		{"a short one on a short path", ms, time.Minute, []time.Duration{3 * ms, 3 * ms, 3 * ms}, 0},
		{"a path that became longer", 60 * ms, 2 * delayMemory, []time.Duration{90 * ms, 90 * ms, 91 * ms}, 0},
		{"a path that became longer a while ago", 60 * ms, delayMemory / 2, []time.Duration{90 * ms, 90 * ms, 91 * ms}, 30 * ms},
	} {
		var d delays
		now := time.Now()
		// Round trips of a second each until now, and the last ones.
		for at := now.Add(-2*delayMemory - time.Minute); at.Before(now.Add(-time.Second)); at = at.Add(time.Second) {
			rtt := c.before
			if at.After(now.Add(-c.ago)) {
				rtt = c.now[0]
			}
			d.note(at, rtt)
		}
		for i, rtt := range c.now {
			d.note(now.Add(time.Duration(i-len(c.now))*100*ms), rtt)
		}
		if got := d.standing(now.Add(-time.Second)); got != c.want {
			t.Errorf("%s: a queue of %v stands, want %v", c.name, got, c.want)
		}
	}
}

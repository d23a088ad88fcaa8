package pair

import (
	"testing"
	"time"
)

// TestDelays holds which round trip counts as the one without queues.
func TestDelays(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name   string
		before time.Duration   // the round trip until a while ago
		ago    time.Duration   // how long
		now    []time.Duration // those since then, again and again
		want   time.Duration
	}{
		{"always the same", 60 * ms, time.Minute, []time.Duration{60 * ms}, 60 * ms},
		{"a queue stands", 60 * ms, time.Minute, []time.Duration{90 * ms, 84 * ms}, 60 * ms},
		{"a path that became shorter", 60 * ms, time.Minute, []time.Duration{40 * ms, 41 * ms}, 40 * ms},
		{"a path that became longer", 60 * ms, 2 * delayMemory, []time.Duration{90 * ms, 91 * ms}, 90 * ms},
		{"a path that became longer a while ago", 60 * ms, delayMemory / 2, []time.Duration{90 * ms, 91 * ms}, 60 * ms},
	} {
		var d delays
		now := time.Now()
		for i, at := 0, now.Add(-2*delayMemory-time.Minute); at.Before(now); i, at = i+1, at.Add(time.Second) {
			rtt := c.before
			if at.After(now.Add(-c.ago)) {
				rtt = c.now[i%len(c.now)]
			}
			d.note(at, rtt)
		}
		if got := d.without(); got != c.want {
			t.Errorf("%s: %v without queues, want %v", c.name, got, c.want)
		}
	}
}

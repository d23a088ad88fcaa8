package resources

import (
	"runtime/debug"
	"testing"
	"time"
)

func TestGCPercent(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		own           int
		payload, live int64
		want          int
	}{
		{100, 0, 300 * mib, 100},          // no payload: the rule of the runtime
		{100, 10 * mib, 40 * mib, 100},    // little
		{100, 64 * mib, 80 * mib, 40},     // the spare garbage
		{100, 1000 * mib, 1400 * mib, 28}, // as much as what is no payload
		{100, 1000 * mib, 10 * mib, 3},    // kept since the latest collection
		{100, 1 << 40, 1 << 40, 1},
		{50, 64 * mib, 64 * mib, 50},
		{-1, 64 * mib, 64 * mib, -1}, // switched off by the user
	} {
		if got := gcPercent(c.own, c.payload, c.live); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

// TestCollector holds that payload that has gone leaves no memory behind, and that the setting of
// the process comes back.
func TestCollector(t *testing.T) {
	own := debug.SetGCPercent(77)
	defer debug.SetGCPercent(own)
	var c Collector
	at := time.Now()
	payload := make([]byte, 64<<20)
	for i := range payload {
		payload[i] = 1
	}
	c.Look(int64(len(payload)), at)
	during := debug.SetGCPercent(c.percent)
	// Nobody uses payload any more, so the collector takes it.
	c.Look(0, at.Add(returnPause))
	if live := liveHeap(); live > 32<<20 {
		t.Errorf("%d bytes are live after all payload has gone", live)
	}
	c.Close()
	after := debug.SetGCPercent(own)
	if during > 50 || during < 40 || after != 77 {
		t.Errorf("percent %d with payload and %d in the end, want about 50 and 77", during, after)
	}
}

package resources

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// spareGarbage is the garbage in bytes that the heap may have however much payload it
	// keeps. By its own rule it may have as much as there is payload. A collection does not
	// look into payload, so with much of it more collections cost little.
	spareGarbage = 32 << 20
	// returnPayload is how much payload in bytes must have gone for its memory to be given
	// back at once, and returnPause the least time between two such returns: each is a
	// collection.
	returnPayload = 32 << 20
	returnPause   = 2 * time.Second
)

// Collector keeps the memory that the Go runtime takes close to what is in use, while flows keep
// payload in it. The zero Collector is ready; one goroutine uses it.
type Collector struct {
	percent  int // as set; 0: never
	own      int // of the process before that
	peak     int64
	returned time.Time
}

// Look takes the payload that is kept now, in bytes. The caller looks several times a second.
func (c *Collector) Look(payload int64, now time.Time) {
	if c.percent == 0 {
		c.own = debug.SetGCPercent(100)
		debug.SetGCPercent(c.own)
		c.percent = c.own
	}
	if want := gcPercent(c.own, payload, liveHeap()); want > c.percent*9/8 || want < c.percent*7/8 {
		debug.SetGCPercent(want)
		c.percent = want
	}
	c.peak = max(c.peak, payload)
	if c.peak-payload >= returnPayload && payload < c.peak/2 && now.Sub(c.returned) >= returnPause {
		c.peak, c.returned = payload, now
		runtime.GC() // pools let go of their memory with the second one
		debug.FreeOSMemory()
	}
}

// Close gives the process its own setting back.
func (c *Collector) Close() {
	if c.percent != 0 {
		debug.SetGCPercent(c.own)
	}
}

// gcPercent is the growth of the heap in percent after which it is to be collected, with so many
// bytes of payload and of all that is live. Without much payload it is own.
func gcPercent(own int, payload, live int64) int {
	if own <= 0 || payload < spareGarbage/2 {
		return own
	}
	live = max(live, payload)
	spare := max(spareGarbage, (live-payload)*int64(own)/100)
	return int(min(max(spare*100/live, 1), int64(own)))
}

// liveHeap is the heap that the latest collection found in use, in bytes.
func liveHeap() int64 {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	if s[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return int64(s[0].Value.Uint64())
}

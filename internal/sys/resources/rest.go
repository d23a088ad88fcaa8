package resources

import (
	"runtime/metrics"
	"time"
)

// restAfter is the time without a collection after which a heap with much garbage is collected. At one that fills
// so slowly a collection costs little, and without it the garbage of thousands of flows' beginnings stays until the
// heap has grown to twice what lives.
const restAfter = 30 * time.Second

// A heap has much garbage if it has allocated leastGarbage and a quarter of what lives since its collection.
const leastGarbage = 1 << 20

// rest finds out whether the heap has come to rest with much garbage.
type rest struct {
	cycles uint64 // collections so far, at since
	since  time.Time
}

// heap is the state of the runtime's heap.
type heap struct{ cycles, live, objects uint64 }

func readHeap() heap {
	all := [...]metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}, {Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(all[:])
	return heap{all[0].Value.Uint64(), all[1].Value.Uint64(), all[2].Value.Uint64()}
}

// due reports whether the heap is to be collected now.
func (r *rest) due(h heap, now time.Time) bool {
	if r.since.IsZero() || h.cycles != r.cycles {
		r.cycles, r.since = h.cycles, now
		return false
	}
	return now.Sub(r.since) >= restAfter && h.objects > h.live+max(leastGarbage, h.live/4)
}

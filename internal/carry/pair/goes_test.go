package pair

import (
	"time"
)

// What tests of the search for a number of lanes reach into. It goes with them.

// Hush has the flow send nothing for a moment, and reports whether it does.
func (f *Flow) Hush(queue time.Duration, rate float64) (begun, silent bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.auto = &auto{}
	_, begun = f.hushNow(queue, rate)
	return begun, f.hushes()
}

// Drained reports whether a PING found the queue drained between two moments.
func (f *Flow) Drained(from, to time.Time) bool { return f.s.delays.drained(from, to) }

// LaneBytes are what each lane has carried, each way, the main one first.
func (f *Flow) LaneBytes() (each [2][]LaneBytes) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for way, lanes := range [2][]laneBytes{f.acknowledgedEach(), f.receivedEach()} {
		for _, l := range lanes {
			each[way] = append(each[way], LaneBytes{l.of, l.bytes})
		}
	}
	return each
}

// LaneBytes are what a lane has carried.
type LaneBytes struct {
	Of    any
	Bytes uint64
}

// Pause has the main lane alone carry the flow, or no longer.
func (f *Flow) Pause(alone bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pauseHere(alone, time.Now())
	f.pauseThere(alone)
}

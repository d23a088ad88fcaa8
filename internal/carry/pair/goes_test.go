package pair

import (
	"time"
)

// What tests of the search for lanes and of second copies reach into. It goes with them.

// BePatient has sessions take no lane for dead, so that only a second one can carry what a silent one has.
func (n *Node) BePatient() {
	for _, s := range n.sessions() {
		s.rttvar.Store(int64(time.Minute))
	}
}

// Doubled is how many bytes the node's only session has sent twice.
func (n *Node) Doubled() int64 { return n.sessions()[0].tails.doubled.Load() }

// Settled reports whether the node's only flow has so many lanes, and everything is acknowledged.
func (n *Node) Settled(lanes int) bool {
	f := n.sessions()[0].allFlows()[0]
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.readyStrands() == lanes && !f.sf.Out.Unacknowledged()
}

// MainLane gives the descriptor of the main lane of the node's only flow.
func (n *Node) MainLane(look func(fd int)) {
	n.sessions()[0].allFlows()[0].Inspect(func(_, lane int, _ Counters) { look(lane) })
}

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

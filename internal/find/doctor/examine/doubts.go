package examine

import (
	"fmt"
	"time"

	"longhaul/internal/find/pcap"
)

const (
	// copiesShare is the share of packets that a capture has twice, above which it is
	// said.
	copiesShare = 0.05
	// leastBackward is the least error of the packets' order that is said, and
	// clockBackward shows another clock: pcap sorts packets within it.
	leastBackward, clockBackward = time.Millisecond, time.Second
)

// doubts notes what makes the counts of a connection doubtful.
func (e *Examiner) doubts(c *pcap.Connection) {
	var packets, copies, backward int64
	var by time.Duration
	for i := range c.Directions {
		n := &c.Directions[i].Observation.Capture.Counts
		packets += c.Directions[i].Packets
		copies += n.Copies
		backward += n.BackwardSteps
		by = max(by, n.BackwardBy)
	}
	if float64(copies) > copiesShare*float64(packets) {
		e.Note(fmt.Errorf("the capture has %d of %d packets twice, as one of several interfaces, of a mirror port or of both sides of a router: they count once",
			copies, packets+copies))
	}
	switch {
	case by > clockBackward:
		e.Note(fmt.Errorf("the clock of the capture was set back by %v: the time that passed meanwhile is unknown", by.Round(time.Millisecond)))
	case by > leastBackward:
		e.Note(fmt.Errorf("%d packets were not in the order of time, by up to %v: they were sorted", backward, by.Round(time.Millisecond/10)))
	}
}

package doctor

import (
	"fmt"

	"longhaul/internal/units"
)

// Sentence returns the verdict for a reader without knowledge of TCP.
func (r Report) Sentence() string {
	gets := units.FormatRate(r.GoodputBps)
	could, best := "", 0.0
	for _, remedy := range r.Remedies {
		best = max(best, remedy.PredictedBps)
	}
	if best >= Worthwhile*r.GoodputBps && best > 0 {
		could = fmt.Sprintf(" It could be about %s.", units.FormatRate(best))
	}
	var text string
	switch r.Cause {
	case Healthy:
		return fmt.Sprintf("Nothing to fix: the connection gets %s, which is what the path carries.", gets)
	case Congestion:
		return fmt.Sprintf("Nothing to fix at the hosts: the path is full of other traffic, and the connection gets %s as its share.", gets)
	case Outage:
		return "Nothing of the connection gets through: the path is down, or something on it has forgotten the connection."
	case PairDown:
		p := r.Observation.Pair
		return fmt.Sprintf("The pair of tunnel %s with %s has no session: %s.", p.Tunnel, p.Peer, p.Text)
	case Unexplained:
		return fmt.Sprintf("The connection gets %s, and no figure explains its limit.", gets)
	case Application:
		text = "The programs limit it, not the network: they move only %s."
	case CPU:
		text = "The program limits it, not the network: its busiest thread has no CPU time left at %s."
	case ReceiverWindow:
		text = "The receiving host allows too little data in flight for this distance: that limits it to %s."
	case WindowScaling:
		text = "The two hosts use no window scaling: over this distance that limits a connection to %s."
	case SendBuffer:
		text = "The sending program's socket buffer is too small for this distance: that limits it to %s."
	case RandomLoss:
		text = "The path loses packets. The sender takes that for congestion and slows down to %s."
	case Policer:
		text = "A policer on the path drops packets above a rate. The sender loses more than necessary: it gets %s."
	case Reordering:
		text = "The path reorders packets. The sender takes that for loss and slows down to %s."
	case SegmentSize:
		text = "Packets are smaller than the path carries: that limits it to %s."
	case AsymmetricMTU:
		text = "Packets are as small as the way back requires, though this way carries larger ones: that limits it to %s."
	case BlackHole:
		text = "Large packets vanish on the path, and the sender gets no error: the connection stands still at %s."
	case Pacing:
		text = "The program itself limits the connection to %s."
	case ShortFlow:
		text = "Connections are too short to reach full speed over this distance: they get %s in total."
	}
	return fmt.Sprintf(text, gets) + could
}

package doctor

import (
	"fmt"

	"longhaul/internal/units"
)

// Sentence is the verdict for somebody who knows no TCP.
func (r Report) Sentence() string {
	gets := units.FormatRate(r.GoodputBps)
	could := ""
	if len(r.Findings) > 0 && r.Findings[0].PredictedBps >= Worthwhile*r.GoodputBps {
		could = fmt.Sprintf(" It could be about %s.", units.FormatRate(r.Findings[0].PredictedBps))
	}
	var text string
	switch r.Cause {
	case Healthy:
		return fmt.Sprintf("Nothing to fix: the connection gets %s, which is what the path carries.", gets)
	case Congestion:
		return fmt.Sprintf("Nothing to fix at the hosts: the path is full of other traffic, and the connection gets %s as its share.", gets)
	case Unexplained:
		return fmt.Sprintf("The connection gets %s, and nothing that was seen explains why it is not more.", gets)
	case Application:
		text = "The network is not what limits it: the programs move no more than %s."
	case CPU:
		text = "The network is not what limits it: the program's busiest thread has no CPU time left at %s."
	case ReceiverWindow:
		text = "The receiving host allows too little data under way for this distance, which holds it to %s."
	case WindowScaling:
		text = "The two hosts use no window scaling, which holds a connection over this distance to %s."
	case SendBuffer:
		text = "The sending program's socket buffer is too small for this distance, which holds it to %s."
	case RandomLoss:
		text = "The path loses packets, and the sender takes that for congestion and slows down to %s."
	case Policer:
		text = "Something on the path drops what exceeds a rate, and the sender loses more by it than it must: it gets %s."
	case Reordering:
		text = "The path changes the order of packets, and the sender takes that for loss and slows down to %s."
	case SegmentSize:
		text = "Packets are smaller than the path carries, which holds it to %s."
	case AsymmetricMTU:
		text = "Packets are as small as the way back needs them, though this way carries larger ones; that holds it to %s."
	case BlackHole:
		text = "Large packets vanish on the path, and nobody tells the sender: the connection stands still at %s."
	case Pacing:
		text = "The program itself holds the connection to %s."
	case ShortFlow:
		text = "Connections are too short to get up to speed over this distance: they get %s together."
	}
	return fmt.Sprintf(text, gets) + could
}

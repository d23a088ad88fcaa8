// Package congestion measures how congestion control algorithms do on emulated
// paths: alone on a lossy long fat one, over a grid of paths, beside each
// other, through faults, and on short transfers. Senders and receivers are the
// kernel's own TCP; every algorithm gets the same buffers.
//
//	one run:  host-a ──LAN── relay-a ══WAN══ relay-b ──LAN── host-b
//	          sender         router          router         receiver
package congestion

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"longhaul/lab"
	"longhaul/lab/progress"
)

// Path is the path between the sites, with the window that the hosts' TCP may use.
type Path struct {
	lab.Conditions
	// WindowBDP bounds a connection's data in flight by the buffers of both ends,
	// in bandwidth-delay products. Retransmissions that are lost again stall the
	// window: below 5 a sender that repairs 10 % loss perfectly does not fill the
	// path.
	WindowBDP float64
}

// LossyLFN is the path of the report on zone transfers to far name servers,
// with a bottleneck of 100 Mb/s.
func LossyLFN() Path {
	return Path{WindowBDP: 6, Conditions: lab.LossyConditions()}
}

// BDPBytes returns the path's bandwidth-delay product in bytes of IP packets.
func (p Path) BDPBytes() float64 { return float64(p.RateBps) / 8 * p.RTT.Seconds() }

// minBuffer is the minimum buffer. Below it the buffers' granularity would limit a path
// with a small product.
const minBuffer = 1 << 20

// bufferBytes returns the size of the socket buffers for the path's window. The kernel
// charges a packet's overhead to them. Packets that wait behind gaps in a receiver are
// charged several times their payload. At 10 % loss and 300 ms the receiver's window
// limited a sender 13 % of the time with twice the window, and 1 % with four times.
func (p Path) bufferBytes() int {
	return int(min(max(4*p.WindowBDP*p.BDPBytes(), minBuffer), math.MaxInt32/2))
}

// unsentBytes bounds the unsent data of the send buffer: a quarter of a second's worth,
// so that a sender that is scheduled late does not run dry.
func (p Path) unsentBytes() int { return int(max(float64(p.RateBps)/8/4, 1<<18)) }

// Check returns an error if the path is invalid for an experiment.
func (p Path) Check() error {
	switch {
	case p.RateBps == 0:
		return errors.New("the path has no bound on its rate: choose one, such as 100Mbit")
	case p.RTT <= 0:
		return errors.New("the path has no delay: choose an RTT, such as 300ms")
	case !(p.WindowBDP > 0):
		return fmt.Errorf("a window of %g bandwidth-delay products carries nothing: choose more than 0", p.WindowBDP)
	}
	ab, ba := p.Directions()
	return errors.Join(ab.Validate(), ba.Validate())
}

// Options are the options of an experiment.
type Options struct {
	Algorithms []string      // congestion controls; empty means all that the kernel has
	Time       time.Duration // of each run
	Repeat     int           // runs of each case, from 1
	Warm       bool          // another connection has used the path just before
	Report     progress.Reporter
}

// warmUp is the time of the connection that uses a path before a warm run. At 600 ms and
// 1 Gb/s haul's start-up takes 9 s.
func (p Path) warmUp() time.Duration { return 5*time.Second + 20*p.RTT }

// String describes the path as the tables' captions do.
func (p Path) String() string {
	var b strings.Builder
	if p.Trace != nil {
		fmt.Fprintf(&b, "trace %s: ", p.Trace.Name())
	}
	fmt.Fprintf(&b, "%s, %.4g ms RTT, ", Rate(float64(p.RateBps)), milliseconds(p.RTT))
	if p.Loss.Probability == 0 {
		b.WriteString("no random loss")
	} else {
		fmt.Fprintf(&b, "%g %% lost %s the bottleneck", 100*p.Loss.Probability, p.LossPlace)
		if p.LossBurstPackets > 1 {
			fmt.Fprintf(&b, " in bursts of %g", p.LossBurstPackets)
		}
	}
	if p.LossBA.Probability > 0 {
		fmt.Fprintf(&b, ", %g %% of ACKs lost", 100*p.LossBA.Probability)
	}
	if l := p.RateLoss; l.Share > 0 {
		fmt.Fprintf(&b, ", %g %% lost at %s and none up to %s", 100*l.Share, Rate(float64(l.ToBps)), Rate(float64(l.FromBps)))
	}
	if p.ACKThinning > 1 {
		fmt.Fprintf(&b, ", one of %d ACKs passes", p.ACKThinning)
	}
	if p.Aggregate+p.AggregateBack > 0 {
		fmt.Fprintf(&b, ", bursts of %g and %g ms", milliseconds(p.Aggregate), milliseconds(p.AggregateBack))
	}
	if p.Jitter > 0 {
		fmt.Fprintf(&b, ", ±%g ms jitter", milliseconds(p.Jitter))
	}
	if p.QueueBytes > 0 {
		fmt.Fprintf(&b, ", queue of %d bytes", p.QueueBytes)
	} else {
		fmt.Fprintf(&b, ", queue of %g BDP", p.QueueBDP)
	}
	if aqm := p.AQM.String(); aqm != "" {
		b.WriteString(" with " + aqm)
	}
	if p.MarkAbove > 0 {
		fmt.Fprintf(&b, ", marks above %g ms", milliseconds(p.MarkAbove))
	}
	if p.HostECN != lab.HostECNDefault {
		fmt.Fprintf(&b, ", hosts with ECN %s", p.HostECN)
	}
	return b.String()
}

// Rate writes a rate in bits per second with a unit.
func Rate(bps float64) string {
	switch {
	case bps >= 1e9:
		return fmt.Sprintf("%.4g Gb/s", bps/1e9)
	case bps >= 1e6:
		return fmt.Sprintf("%.4g Mb/s", bps/1e6)
	}
	return fmt.Sprintf("%.4g kb/s", bps/1e3)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

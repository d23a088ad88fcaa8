// Package diagnosis has the doctor look at connections of which the lab knows
// what limits them.
//
// A scenario is a path, two hosts and a program, with one hindrance or two. What
// limits it is not taken from how it was made, but found out: the hindrance is
// taken away, and what then brings more is the cause. So a label is what a
// remedy does.
package diagnosis

import (
	"fmt"
	"time"

	"longhaul/internal/doctor"
	"longhaul/internal/lab"
)

// Scenario is a connection with something in its way.
type Scenario struct {
	Name string
	// Hindrances are what was put in its way; none for a healthy one.
	Hindrances []doctor.Cause
	setup
}

// setup is all that a scenario consists of.
type setup struct {
	conditions lab.Conditions
	traffic    Traffic

	readBps     int64 // that the receiving program takes; 0 is all
	windowBytes int   // most that the receiver announces; 0 is what Linux does
	// receiveBufferBytes is the receiving program's SO_RCVBUF.
	receiveBufferBytes int

	noScaling     bool // the receiver knows no window scaling
	announcedMSS  int  // by the receiver; 0 is what its device carries
	blockICMP     bool // at the routers
	others        int  // bulk connections on the same path
	initialWindow int  // segments; 0 is what Linux does
	betweenRouter bool // the ends of the path itself send and receive

	tolerant string // congestion control that the remedy of losses sets
	program  string // the longhaul binary
}

// without is the setup with a hindrance removed, as its remedy does.
func (s setup) without(cause doctor.Cause) setup {
	switch cause {
	case doctor.Application:
		s.traffic.OfferBps, s.traffic.ChunkBytes, s.readBps = 0, 0, 0
	case doctor.ReceiverWindow:
		s.windowBytes, s.receiveBufferBytes = 0, 0
	case doctor.WindowScaling:
		s.noScaling = false
	case doctor.SendBuffer:
		s.traffic.SendBufferBytes = 0
	case doctor.RandomLoss, doctor.Reordering, doctor.Policer:
		s.traffic.CongestionControl = s.tolerant
	case doctor.SegmentSize, doctor.AsymmetricMTU:
		s.announcedMSS = s.conditions.MTUAB - 40
	case doctor.BlackHole:
		s.announcedMSS = s.conditions.MTUAB - 40
	case doctor.Pacing:
		s.traffic.PacingBps = 0
	case doctor.ShortFlow:
		s.initialWindow = 40
	case doctor.CPU:
		s.traffic.WorkPerMB = 0
	}
	return s
}

// topology is the lab of the setup.
func (s setup) topology() lab.Topology {
	t := lab.TwoSites(s.conditions)
	from, to := s.ends()
	for i := range t.Hosts {
		h := &t.Hosts[i]
		switch h.Name {
		case from:
			h.TCP.InitialWindow = s.initialWindow
		case to:
			h.TCP.AdvMSS = s.announcedMSS
			if s.noScaling {
				h.Sysctls = append(append([]lab.Sysctl{}, h.Sysctls...), lab.Sysctl{Name: "net.ipv4.tcp_window_scaling", Value: "0"})
			}
		}
	}
	return t
}

func (s setup) ends() (from, to string) {
	if s.betweenRouter {
		return "relay-a", "relay-b"
	}
	return "host-a", "host-b"
}

// String is the setup in a line.
func (s Scenario) String() string {
	c := s.conditions
	text := fmt.Sprintf("%s: %.0f Mb/s, %v, queue %.1f BDP", s.Name, float64(c.RateBps)/1e6, c.RTT.Round(time.Millisecond), c.QueueBDP)
	add := func(when bool, format string, args ...any) {
		if when {
			text += fmt.Sprintf(", "+format, args...)
		}
	}
	t := s.traffic
	add(c.Loss.Probability > 0, "%.3g %% lost in bursts of %.0f", 100*c.Loss.Probability, max(c.LossBurstPackets, 1))
	add(c.Policer.RateBps > 0, "policed to %.1f Mb/s with bursts of %d kB", float64(c.Policer.RateBps)/1e6, c.Policer.BurstBytes/1000)
	add(c.Reorder.Probability > 0, "%.1f %% held back for %v", 100*c.Reorder.Probability, c.Reorder.Hold.Round(time.Millisecond))
	add(c.PacketsPerSecond > 0, "%d packets/s", c.PacketsPerSecond)
	add(c.MTUAB != 1500 || c.MTUBA != 1500, "MTU %d and back %d", c.MTUAB, c.MTUBA)
	add(s.blockICMP, "no ICMP")
	add(s.windowBytes > 0, "window %d kB", s.windowBytes/1000)
	add(s.receiveBufferBytes > 0, "SO_RCVBUF %d kB", s.receiveBufferBytes/1000)
	add(s.noScaling, "no window scaling")
	add(s.announcedMSS > 0, "MSS %d", s.announcedMSS)
	add(s.readBps > 0, "read at %.1f Mb/s", float64(s.readBps)/1e6)
	add(t.OfferBps > 0, "offered %.1f Mb/s in %d kB", float64(t.OfferBps)/1e6, t.ChunkBytes/1000)
	add(t.WorkPerMB > 0, "%v of CPU per MB", t.WorkPerMB.Round(time.Millisecond))
	add(t.TransferBytes > 0, "transfers of %d kB", t.TransferBytes/1000)
	add(t.SendBufferBytes > 0, "SO_SNDBUF %d kB", t.SendBufferBytes/1000)
	add(t.PacingBps > 0, "paced at %.1f Mb/s", float64(t.PacingBps)/1e6)
	add(s.others > 0, "%d others", s.others)
	add(t.CongestionControl != "", "%s", t.CongestionControl)
	return text
}

// bdp is the bandwidth-delay product in bytes.
func (s setup) bdp() float64 { return float64(s.conditions.RateBps) / 8 * s.conditions.RTT.Seconds() }

// Command diagnosis has the doctor diagnose connections whose limit the lab knows.
//
// A scenario is a path, two hosts and a program, with one or two hindrances. The lab
// measures its cause: it removes each hindrance, and the removal that brings more shows
// the cause. So a label is the effect of a remedy.
package main

import (
	"fmt"
	"slices"
	"time"

	"longhaul/internal/find/doctor"
	"longhaul/lab"
)

// Scenario is a connection with hindrances.
type Scenario struct {
	Name string
	// Hindrances limit the connection; none for a healthy one.
	Hindrances []doctor.Cause
	setup
}

// setup has all settings of a scenario.
type setup struct {
	conditions lab.Conditions
	traffic    Traffic

	readBps     int64 // maximum of the receiving program; 0 is no bound
	windowBytes int   // maximum that the receiver announces; 0 is Linux's default
	// receiveBufferBytes is the receiving program's SO_RCVBUF.
	receiveBufferBytes int

	noScaling     bool // the receiver has no window scaling
	announcedMSS  int  // by the receiver; 0 is its device's
	blockICMP     bool // at the routers
	others        int  // bulk connections on the same path
	initialWindow int  // segments; 0 is Linux's default
	betweenRouter bool // the routers themselves send and receive

	hostWindowBytes     int  // maximum window of every receiver of the host
	hostSendBufferBytes int  // maximum data of every sender of the host
	relays              bool // a relay at each site

	tolerant string // congestion control of the remedy of losses
	program  string // the longhaul binary
}

// without returns the setup without a hindrance, as after its remedy.
func (s setup) without(cause doctor.Cause) setup {
	switch cause {
	case doctor.Application:
		s.traffic.OfferBps, s.traffic.ChunkBytes = 0, 0
	case doctor.Reader:
		s.readBps = 0
	case doctor.ReceiverWindow:
		s.windowBytes, s.receiveBufferBytes, s.hostWindowBytes = 0, 0, 0
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

// topology returns the lab of the setup.
func (s setup) topology() lab.Topology {
	t := lab.TwoSites(s.conditions)
	from, to := s.ends()
	for i := range t.Hosts {
		h := &t.Hosts[i]
		switch h.Name {
		case from:
			h.TCP.InitialWindow = s.initialWindow
			if n := 2 * s.hostSendBufferBytes; n > 0 { // half of it holds data
				set(h, "net.ipv4.tcp_wmem", fmt.Sprintf("4096 %d %d", min(n, 16384), n))
			}
		case to:
			h.TCP.AdvMSS = s.announcedMSS
			if s.noScaling {
				set(h, "net.ipv4.tcp_window_scaling", "0")
			}
			if n := 2 * s.hostWindowBytes; n > 0 { // half of it is window
				set(h, "net.ipv4.tcp_rmem", fmt.Sprintf("4096 %d %[1]d", n))
			}
		}
	}
	return t
}

// set adds a sysctl to a host.
func set(h *lab.HostSpec, name, value string) {
	h.Sysctls = append(slices.Clone(h.Sysctls), lab.Sysctl{Name: name, Value: value})
}

func (s setup) ends() (from, to string) {
	if s.betweenRouter {
		return "relay-a", "relay-b"
	}
	return "host-a", "host-b"
}

// String describes the setup in a line.
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
	add(s.hostWindowBytes > 0, "tcp_rmem for %d kB", s.hostWindowBytes/1000)
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

// bdp returns the bandwidth-delay product in bytes.
func (s setup) bdp() float64 { return float64(s.conditions.RateBps) / 8 * s.conditions.RTT.Seconds() }

// Package doctor names what limits a TCP connection, says by which figures it
// knows, and predicts what each remedy would bring.
//
// What was seen of a connection is an Observation: samples of the kernel's
// account of it, taken while it runs. Figures are computed from that once
// (Measure), and every finding's rule is a pure function of the figures.
package doctor

import (
	"net/netip"
	"time"

	"longhaul/internal/tcpinfo"
)

// Cause is what limits a connection.
type Cause string

// The causes. Healthy stands for a connection that fills its path: nothing is
// to be fixed. Congestion is a path that is full of other connections' data.
const (
	Healthy        Cause = "healthy"
	Application    Cause = "application"
	ReceiverWindow Cause = "receiver-window"
	WindowScaling  Cause = "window-scaling"
	SendBuffer     Cause = "send-buffer"
	RandomLoss     Cause = "random-loss"
	Congestion     Cause = "congestion"
	Policer        Cause = "policer"
	Reordering     Cause = "reordering"
	SegmentSize    Cause = "segment-size"
	BlackHole      Cause = "black-hole"
	AsymmetricMTU  Cause = "asymmetric-mtu"
	Pacing         Cause = "pacing"
	ShortFlow      Cause = "short-flow"
	CPU            Cause = "cpu"
	Unexplained    Cause = "unexplained"
)

// Sample is what is known of a connection's sending end at one moment. What is
// not known of the fields beside Info is negative.
type Sample struct {
	At   time.Duration `json:"at_ns"` // since the observation began
	Info tcpinfo.Info  `json:"tcp_info"`
	// SendBuffer is the bound on the socket's memory for data that were
	// written and not yet acknowledged, overhead included, and SendQueued what
	// is used of it; bytes.
	SendBuffer int64 `json:"send_buffer"`
	SendQueued int64 `json:"send_queued"`
	// CPU is how long the busiest thread of the sending program has been
	// running, or waiting for a CPU.
	CPU time.Duration `json:"cpu_ns"`
}

// Observation is what was seen of one connection.
type Observation struct {
	Local, Remote     netip.AddrPort
	CongestionControl string
	Samples           []Sample // of the end that sends, in the order of time
	Path              Path
}

// Path is what is known of the way between the two hosts, in bytes of whole IP
// packets. Zero is unknown.
type Path struct {
	MTU        int `json:"mtu,omitempty"`         // largest packet that gets to the receiver
	ReverseMTU int `json:"reverse_mtu,omitempty"` // largest packet that gets back
	DeviceMTU  int `json:"device_mtu,omitempty"`  // of the sender's device
}

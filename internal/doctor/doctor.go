// Package doctor names what limits a TCP connection, says by which figures it
// knows, and predicts what each remedy would bring.
//
// An [Observation] has samples of the kernel's account of a connection, taken
// while it runs, and the known properties of its path. Figures are computed from
// that once ([Observation.Figures]), and every finding's rule is a pure function
// of the figures ([Diagnose]). Package examine makes observations.
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

// Causes are all of them.
func Causes() []Cause {
	return []Cause{Healthy, Application, ReceiverWindow, WindowScaling, SendBuffer, RandomLoss, Congestion, Policer,
		Reordering, SegmentSize, BlackHole, AsymmetricMTU, Pacing, ShortFlow, CPU, Unexplained}
}

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
	// RecvQueue is what has arrived and was not read by the program, bytes.
	RecvQueue int64 `json:"recv_queue"`
	// CPU is how long the busiest thread of the program has been running, or
	// waiting for a CPU.
	CPU time.Duration `json:"cpu_ns"`
}

// Observation is what was seen of one connection.
type Observation struct {
	Local             netip.AddrPort `json:"local"`
	Remote            netip.AddrPort `json:"remote"`
	Program           string         `json:"program,omitempty"`
	CongestionControl string         `json:"congestion_control,omitempty"`
	Samples           []Sample       `json:"samples,omitempty"` // in the order of time
	// Ended: the connection was closed while it was observed.
	Ended bool `json:"ended,omitempty"`
	// FromStart: the first sample is of the connection's first moments.
	FromStart bool `json:"from_start,omitempty"`
	// Connections is how many connections with data there were between the two
	// addresses while they were observed; this is the one that moved the most.
	// TotalBytes is what all of them moved, and Time how long it was observed.
	Connections int           `json:"connections,omitempty"`
	TotalBytes  int64         `json:"total_bytes,omitempty"`
	Time        time.Duration `json:"time_ns,omitempty"`

	// Elsewhere: another host sends than this one. Local is its end.
	Elsewhere bool `json:"elsewhere,omitempty"`
	Path      Path `json:"path"`
	// Capacity is what several connections at once got across, after the
	// observation, and SmallSegments what they did with half the segment size.
	Capacity      *Trial `json:"capacity,omitempty"`
	SmallSegments *Trial `json:"small_segments,omitempty"`
}

// Path is what is known of the way between the two hosts, in bytes of whole IP
// packets. Zero is unknown.
type Path struct {
	MTU        int `json:"mtu,omitempty"`         // largest packet that gets to the receiver
	ReverseMTU int `json:"reverse_mtu,omitempty"` // largest packet that gets back
	DeviceMTU  int `json:"device_mtu,omitempty"`  // of the sender's device
	// Answers: small packets were answered while the connection stood still.
	Answers bool `json:"answers,omitempty"`
}

// Trial is what a test found on the same path.
type Trial struct {
	Streams           int     `json:"streams"`
	CongestionControl string  `json:"congestion_control"`
	SegmentBytes      float64 `json:"segment_bytes"` // of data in a segment, mean of all that the path carried
	GoodputBps        float64 `json:"goodput_bps"`   // of all together, once they were up to speed
	PacketsPerSecond  float64 `json:"packets_per_second"`
	LossShare         float64 `json:"loss_share"` // segments sent again ÷ segments sent
	// WindowLimited: the peers' windows held the connections back, so that the
	// path may carry more.
	WindowLimited bool          `json:"window_limited,omitempty"`
	MinRTT        time.Duration `json:"min_rtt_ns"`
	RTT           time.Duration `json:"rtt_ns"` // median of the smoothed
}

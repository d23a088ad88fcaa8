// Package doctor names the limit of a TCP connection with its evidence, and predicts
// the gain of each remedy.
//
// An [Observation] has samples of the kernel's figures of a running connection, and
// the known properties of its path. [Observation.Figures] computes the figures once.
// Every finding's rule is a pure function of the figures ([Diagnose]). Package examine
// makes observations.
package doctor

import (
	"net/netip"
	"time"

	"longhaul/internal/sys/tcpinfo"
)

// Sample is the state of a connection's sending end at one moment. Unknown fields
// beside Info are negative.
type Sample struct {
	At   time.Duration `json:"at_ns"` // since the observation began
	Info tcpinfo.Info  `json:"tcp_info"`
	// SendBuffer is the bound on the socket's memory for unacknowledged data,
	// including overhead. SendQueued is the used part. Both in bytes.
	SendBuffer int64 `json:"send_buffer"`
	SendQueued int64 `json:"send_queued"`
	// RecvQueue is arrived data that the program has not read, in bytes.
	RecvQueue int64 `json:"recv_queue"`
	// CPU is the time for which the program's busiest thread has been running or
	// waiting for a CPU.
	CPU time.Duration `json:"cpu_ns"`
}

// Observation is the observed data of one connection.
type Observation struct {
	Local             netip.AddrPort `json:"local"`
	Remote            netip.AddrPort `json:"remote"`
	Program           string         `json:"program,omitempty"`
	CongestionControl string         `json:"congestion_control,omitempty"`
	Samples           []Sample       `json:"samples,omitempty"` // in the order of time
	// Ended: the connection was closed while it was observed.
	Ended bool `json:"ended,omitempty"`
	// FromStart: the first sample is from the connection's start.
	FromStart bool `json:"from_start,omitempty"`
	// Connections is the number of connections with data between the two
	// addresses; the observed one moved the most. TotalBytes is the sum of their
	// data, and Time the duration of the observation.
	Connections int           `json:"connections,omitempty"`
	TotalBytes  int64         `json:"total_bytes,omitempty"`
	Time        time.Duration `json:"time_ns,omitempty"`

	// Own: doctor made the connection. Its programs write and read at once.
	Own bool `json:"own,omitempty"`
	// Elsewhere: another host sends. Local is its end.
	Elsewhere bool `json:"elsewhere,omitempty"`
	Path      Path `json:"path"`
	// Capacity is the trial of several connections after the observation.
	// SmallSegments is the same with half the segment size.
	Capacity      *Trial `json:"capacity,omitempty"`
	SmallSegments *Trial `json:"small_segments,omitempty"`
	// MoreStreams is that of twice as many connections, if those of Capacity lost packets
	// without a queue: a policer may limit each, or all together.
	MoreStreams *Trial `json:"more_streams,omitempty"`
	// Pair is the pair of relays that the connection belongs to; nil: none that is
	// known.
	Pair *Pair `json:"pair,omitempty"`
	// Capture describes the capture that has the samples; nil: a kernel has them.
	Capture *Capture `json:"capture,omitempty"`
}

// Capture describes a capture of a connection. It shows packets, and no state of the
// hosts.
type Capture struct {
	AtSender  bool `json:"at_sender"` // taken at the sending host
	Handshake bool `json:"handshake"` // with both SYNs, which announce windows
	// AgreedMSS is the data of a full segment by the handshake, and SenderMSS that
	// which the sender announces for itself, both in bytes; 0: unknown.
	AgreedMSS int `json:"agreed_mss,omitempty"`
	SenderMSS int `json:"sender_mss,omitempty"`
	// Bursts counts segments sent at once, which the path's slowest link spread
	// out. BurstBps is the goodput at which they crossed it; 0: unknown.
	Bursts   int     `json:"bursts,omitempty"`
	BurstBps float64 `json:"burst_bps,omitempty"`
	Counts   Counts  `json:"counts"`
}

// Path has the sizes of IP packets on the path between the two hosts, in bytes. Zero
// is unknown.
type Path struct {
	MTU        int `json:"mtu,omitempty"`         // largest packet that gets to the receiver
	ReverseMTU int `json:"reverse_mtu,omitempty"` // largest packet that gets back
	DeviceMTU  int `json:"device_mtu,omitempty"`  // of the sender's device
	// Answers: the far host answered small packets while the connection stood still.
	Answers bool `json:"answers,omitempty"`
}

// Trial is the result of a test on the same path.
type Trial struct {
	Streams           int     `json:"streams"`
	CongestionControl string  `json:"congestion_control"`
	SegmentBytes      float64 `json:"segment_bytes"` // of data in a segment, mean of all that the path carried
	GoodputBps        float64 `json:"goodput_bps"`   // of all together, once they were up to speed
	PacketsPerSecond  float64 `json:"packets_per_second"`
	LossShare         float64 `json:"loss_share"` // retransmitted segments ÷ segments sent
	// WindowLimited: the peers' windows limited the connections. The path may
	// carry more.
	WindowLimited bool `json:"window_limited,omitempty"`
	// PeerWindow is the largest window of a peer, in bytes; 0: unknown.
	PeerWindow float64       `json:"peer_window,omitempty"`
	MinRTT     time.Duration `json:"min_rtt_ns"`
	RTT        time.Duration `json:"rtt_ns"` // median of the smoothed
}

// DropsWithoutQueue reports whether the path dropped packets before they had to wait, as a
// policer does.
func (t *Trial) DropsWithoutQueue() bool { return t.LossShare > 0.01 && trialQueue(t) < 0.25 }

// each is the goodput of one of the trial's connections.
func (t *Trial) each() float64 { return t.GoodputBps / float64(max(t.Streams, 1)) }

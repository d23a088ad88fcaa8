// Package tcpinfo reads the kernel's state of TCP connections. It reads on
// Linux only; the results can be decoded on any system.
//
// The kernel's tcp_info has grown at its end for twenty years, and an older
// kernel returns less of it. A field is unknown if the kernel did not return it
// or has no sample yet. Info.Has reports that; the value of an unknown field is
// meaningless, not zero.
package tcpinfo

import (
	"math"
	"time"
)

// Unlimited is the value of a rate without a bound.
const Unlimited int64 = math.MaxInt64

// Info is the kernel's state of one connection at one moment. Packet counts are
// segments on the wire, before offload merges them. Comments name the first
// kernel that reports a field; fields without one are older than Linux 3.15.
type Info struct {
	State   State
	CAState CAState
	Options Options

	Retransmits uint8 // current consecutive retransmission timeouts
	Probes      uint8 // current unanswered zero-window and keepalive probes
	Backoff     uint8 // current doublings of the timer

	SndWScale uint8 // shift of the peer's announced window
	RcvWScale uint8 // shift of this host's announced window

	RTO time.Duration // retransmission timeout
	ATO time.Duration // delayed acknowledgement timeout

	SndMSS uint32 // largest payload sent, in bytes, without TCP options
	RcvMSS uint32 // estimate of the largest payload the peer sends, in bytes
	AdvMSS uint32 // announced to the peer, in bytes
	PMTU   uint32 // path MTU from the route and ICMP, in bytes

	Unacked    uint32 // packets sent and not yet acknowledged
	Sacked     uint32 // of these, acknowledged selectively
	Lost       uint32 // of these, considered lost
	Retrans    uint32 // of these, retransmitted and not acknowledged
	Reordering uint32 // estimate of the path's reordering, in packets

	LastDataSent time.Duration // time since
	LastDataRecv time.Duration // time since
	LastAckRecv  time.Duration // time since

	RTT    time.Duration // smoothed; unknown before the first sample
	RTTVar time.Duration // mean deviation of the RTT
	RcvRTT time.Duration // the receiver's estimate; unknown before the first sample
	MinRTT time.Duration // minimum of the last 300 s by default; Linux 4.6

	SndCwnd     uint32 // congestion window, in packets
	SndSSThresh uint32 // slow start threshold, in packets; at least 0x7fffffff means none yet
	RcvSSThresh uint32 // current bound of the announced window, in bytes
	RcvSpace    uint32 // bytes read in the last RTT, for window autotuning
	SndWnd      uint32 // the peer's announced window, scaled, in bytes; Linux 5.4
	RcvWnd      uint32 // the window announced to the peer, scaled, in bytes; Linux 6.2

	TotalRetrans uint32 // packets retransmitted over the connection's life

	PacingRateBps    int64 // in bits per second, or Unlimited; Linux 3.15
	MaxPacingRateBps int64 // SO_MAX_PACING_RATE in bits per second, or Unlimited; Linux 3.15

	BytesAcked    uint64 // payload acknowledged by the peer, plus one for the SYN; Linux 4.1
	BytesReceived uint64 // payload received in order; Linux 4.1
	SegsOut       uint32 // Linux 4.2
	SegsIn        uint32 // Linux 4.2

	NotsentBytes uint32 // written, but not yet sent even once; Linux 4.6
	DataSegsIn   uint32 // Linux 4.6
	DataSegsOut  uint32 // with retransmissions; Linux 4.6

	// DeliveryRateBps is the latest sample of the rate at which the peer
	// acknowledges, in bits per second; Linux 4.9. DeliveryRateAppLimited means
	// that the application offered no more.
	DeliveryRateBps        int64
	DeliveryRateAppLimited bool

	// Time with data to send, and the parts of it in which the peer's window or
	// the send buffer limited the sender. The resolution is a tick of the
	// kernel's clock (1 to 10 ms); Linux 4.10.
	BusyTime      time.Duration
	RwndLimited   time.Duration
	SndbufLimited time.Duration

	Delivered   uint32 // packets received by the peer, including out of order; Linux 4.18
	DeliveredCE uint32 // of these, with an ECN mark; Linux 4.18

	BytesSent    uint64 // payload with retransmissions; Linux 4.19
	BytesRetrans uint64 // payload retransmitted; Linux 4.19
	DSACKDups    uint32 // duplicate segments that the peer reported; Linux 4.19
	ReordSeen    uint32 // events of reordering; Linux 4.19

	RcvOOOPack uint32 // packets received out of order; Linux 5.4
	Rehash     uint32 // changes of the flow's hash after timeouts; Linux 6.2

	TotalRTO           uint16        // retransmission timeouts; Linux 6.7
	TotalRTORecoveries uint16        // recoveries from a run of timeouts; Linux 6.7
	TotalRTOTime       time.Duration // spent in those; Linux 6.7

	known uint64 // bit per Field
}

// Missed counts the retransmitted packets without those that the peer reported to have
// had already (RFC 2883).
func (i *Info) Missed() uint32 {
	return i.TotalRetrans - min(i.DSACKDups, i.TotalRetrans)
}

// Has reports whether the field is known.
func (i *Info) Has(f Field) bool { return i.known&(1<<f) != 0 }

// Package transport sets the socket options of a relayed flow's legs, so that
// each leg can fill its path. The options are congestion control, buffers,
// pacing, segment size, keepalive, user timeout, DSCP.
//
// A leg is a LAN leg or a WAN leg. Both get keepalive. A WAN leg also gets a
// congestion control and buffers for its path, as far as the process is
// allowed. A missing setting is reported once, with the remedy (Tunnel.Lacks).
package transport

import "time"

// Options are the settings of one kind of leg. The zero value of a field lets
// longhaul choose, as the field's comment describes.
type Options struct {
	// CongestionControl is the algorithm's name. Empty: on a WAN leg the best
	// that this kernel offers; on a LAN leg the kernel's default, or the next
	// best if that paces.
	CongestionControl string

	// PathRateBps is the path's capacity in bits per second; it determines the
	// buffers of a WAN leg. 0 means 1 Gb/s.
	PathRateBps int64

	// PacingRateBps caps the sending rate, in bits per second; 0 means no cap.
	PacingRateBps int64

	// SendBuffer and ReceiveBuffer are sizes in bytes as passed to SO_SNDBUF
	// and SO_RCVBUF. 0 means a size for the path on a WAN leg, and autotuning
	// on a LAN leg.
	SendBuffer    int
	ReceiveBuffer int

	// MSS is the largest segment in bytes that is announced and sent; 0 means
	// the route's value. It is announced before the round-trip time is known,
	// so with WANAuto both kinds of leg need the same value.
	MSS int

	// MTUProbing makes the sender find the path's segment size by itself when
	// full segments vanish without an ICMP error (RFC 4821). The kernel has one
	// setting for it per network namespace; if that is off, Tunnel.Lacks
	// reports it.
	MTUProbing bool

	Keepalive Keepalive

	// UserTimeout bounds the time that sent data may stay unacknowledged (RFC
	// 5482) before the connection is reset; 0 means the kernel's retransmission
	// limit, about 15 minutes.
	//
	// A peer that acknowledges but keeps its window closed is not reset if the
	// kernel can distinguish it. That needs Linux 6.15 and at least 15.4 s.
	// Otherwise TCP_USER_TIMEOUT is set, which also ends connections with a
	// closed window; Tunnel.Lacks reports that.
	UserTimeout time.Duration

	// DSCP is the differentiated services code point, 0 to 63 (RFC 2474). Nil
	// leaves the mark unchanged.
	DSCP *uint8
}

// Keepalive configures the detection of dead peers. The zero value means the
// defaults of 60 s idle, 10 s interval, 6 probes.
type Keepalive struct {
	Disabled bool
	Idle     time.Duration
	Interval time.Duration
	Count    int
}

// WANSide selects the legs of a tunnel that cross the WAN.
type WANSide string

// The WAN sides. With WANAuto or "", a leg is a WAN leg if its handshake's
// round trip exceeds 2 ms.
const (
	WANAuto    WANSide = "auto"
	WANListen  WANSide = "listen"  // the accepted legs
	WANForward WANSide = "forward" // the dialed legs
	WANBoth    WANSide = "both"
	WANNone    WANSide = "none"
)

// The two kinds of leg, as Established returns them.
const (
	LAN = "lan"
	WAN = "wan"
)

// Package transport sets the socket options of a relayed flow's legs, so that
// each leg can fill its path: congestion control, buffers, pacing, segment
// size, keepalive, user timeout, DSCP.
//
// A leg is a LAN leg or a WAN leg. Both get what every relayed connection
// needs (no Nagle delay, keepalive). A WAN leg also gets a congestion control
// and buffers that fit its path, within what this process may do; what it may
// not is reported once, with the remedy (Tunnel.Lacks).
package transport

import "time"

// Options are the settings of one kind of leg. The zero value of a field
// means that longhaul chooses, as the field's comment says.
type Options struct {
	// CongestionControl is the algorithm's name. Empty: on a WAN leg the best
	// that this kernel offers, on a LAN leg the kernel's default, or the next
	// best where that is a kind of BBR.
	CongestionControl string

	// PathRateBps is what the path carries, in bits per second; it sizes the
	// buffers of a WAN leg. 0 means 1 Gb/s.
	PathRateBps int64

	// PacingRateBps caps the sending rate, in bits per second; 0 means no cap.
	PacingRateBps int64

	// SendBuffer and ReceiveBuffer are sizes in bytes as an application would
	// pass them to SO_SNDBUF and SO_RCVBUF; 0 means sized for the path on a
	// WAN leg, and left to the kernel's autotuning on a LAN leg.
	SendBuffer    int
	ReceiveBuffer int

	// MSS is the largest segment in bytes that is announced and sent; 0 means
	// what the route says. It is announced before the round-trip time is
	// known, so with WANAuto both kinds of leg must have the same.
	MSS int

	// MTUProbing has the sender find out by itself how large segments the
	// path carries, where full ones vanish and no router tells (RFC 4821).
	// The kernel has one setting for it in each network namespace; where that
	// is off, Tunnel.Lacks says so.
	MTUProbing bool

	Keepalive Keepalive

	// UserTimeout is how long sent data may stay unacknowledged (RFC 5482)
	// before the connection is reset; 0 leaves it to the kernel's
	// retransmission limit, about 15 minutes.
	//
	// A peer that acknowledges but keeps its window closed is not reset,
	// where the kernel can tell (Linux 6.15, and 15.4 s or more).
	// Otherwise TCP_USER_TIMEOUT is set, which ends a closed window too, and
	// Tunnel.Lacks says so.
	UserTimeout time.Duration

	// DSCP is the differentiated services code point, 0 to 63 (RFC 2474).
	// Nil leaves the mark alone.
	DSCP *uint8
}

// Keepalive is how a silent peer is found dead. The zero value means the
// defaults of 60 s idle, 10 s interval, 6 probes.
type Keepalive struct {
	Disabled bool
	Idle     time.Duration
	Interval time.Duration
	Count    int
}

// WANSide says which legs of a tunnel cross the WAN.
type WANSide string

// The WAN sides. With WANAuto (or the empty string) a leg is a WAN leg if the
// round trip of its handshake takes more than 2 ms.
const (
	WANAuto    WANSide = "auto"
	WANListen  WANSide = "listen"  // the accepted legs do
	WANForward WANSide = "forward" // the dialed legs do
	WANBoth    WANSide = "both"
	WANNone    WANSide = "none"
)

// The two kinds of leg, as Established returns them.
const (
	LAN = "lan"
	WAN = "wan"
)

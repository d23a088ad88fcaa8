package transport

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// The kernel's bounds.
const (
	minMSS       = 88    // TCP_MIN_MSS
	maxMSS       = 32767 // MAX_TCP_WINDOW
	maxKeepalive = 32767 * time.Second
	maxProbes    = 127
	maxNameLen   = 15 // of a congestion control
	maxSockBuf   = math.MaxInt32/2 - 1
)

func (o Options) validate() error {
	if n := o.CongestionControl; len(n) > maxNameLen || strings.ContainsAny(n, " \t\r\n\x00") {
		return fmt.Errorf("congestion control %q: a name has up to %d characters and no spaces", n, maxNameLen)
	}
	if o.PathRateBps < 0 {
		return fmt.Errorf("path rate %d b/s: use a positive rate, or 0 for 1 Gb/s", o.PathRateBps)
	}
	if r := o.PacingRateBps; r < 0 || r > 0 && r < 8 {
		return fmt.Errorf("pacing rate %d b/s: use 8 b/s or more, or 0 for no cap", r)
	}
	if b := o.SendBuffer; b < 0 || b > maxSockBuf {
		return fmt.Errorf("send buffer of %d bytes: use up to %d, or 0 to have it sized", b, maxSockBuf)
	}
	if b := o.ReceiveBuffer; b < 0 || b > maxSockBuf {
		return fmt.Errorf("receive buffer of %d bytes: use up to %d, or 0 to have it sized", b, maxSockBuf)
	}
	if o.MSS != 0 && (o.MSS < minMSS || o.MSS > maxMSS) {
		return fmt.Errorf("maximum segment of %d bytes: use %d to %d, or 0 for what the route says", o.MSS, minMSS, maxMSS)
	}
	if t := o.UserTimeout; t < 0 || t > 0 && t < time.Millisecond || t.Milliseconds() > math.MaxInt32 {
		return fmt.Errorf("user timeout %v: use 1ms or more, or 0 for the kernel's limit", t)
	}
	if o.DSCP != nil && *o.DSCP > 63 {
		return fmt.Errorf("dscp %d: use 0 to 63", *o.DSCP)
	}
	return o.Keepalive.validate()
}

func (k Keepalive) validate() error {
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"idle time", k.Idle}, {"interval", k.Interval}} {
		if d.value != 0 && (d.value < time.Second || d.value > maxKeepalive) {
			return fmt.Errorf("keepalive %s %v: use 1s to %v, or 0 for the default", d.name, d.value, maxKeepalive)
		}
	}
	if k.Count < 0 || k.Count > maxProbes {
		return fmt.Errorf("keepalive count %d: use 1 to %d, or 0 for the default", k.Count, maxProbes)
	}
	return nil
}

// validate checks both kinds of leg and their combination.
func validate(lan, wan Options, side WANSide) error {
	if err := lan.validate(); err != nil {
		return fmt.Errorf("lan: %w", err)
	}
	if err := wan.validate(); err != nil {
		return fmt.Errorf("wan: %w", err)
	}
	switch side {
	case WANListen, WANForward, WANBoth, WANNone:
	case WANAuto:
		if lan.MSS != wan.MSS {
			return fmt.Errorf("maximum segments of %d bytes (lan) and %d (wan): the segment is announced before the round-trip time "+
				"tells which kind of leg it is, so say which side is the wan, or set both alike", lan.MSS, wan.MSS)
		}
	default:
		return fmt.Errorf("wan side %q: use auto, listen, forward, both or none", side)
	}
	return nil
}

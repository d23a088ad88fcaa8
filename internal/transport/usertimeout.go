package transport

import (
	"math/bits"
	"time"
)

// Bounds of TCP_RTO_MAX_MS.
const (
	leastRTOMax   = time.Second
	defaultRTOMax = 120 * time.Second
)

// rtoMin is the kernel's TCP_RTO_MIN, from which its model of the time that
// retransmissions take starts.
const rtoMin = 200 * time.Millisecond

// retransmissionLimit is how long the kernel retransmits before it gives up:
// the time that retries timeouts would take which start at rtoMin and double
// up to rtoMax. The kernel computes the same from tcp_retries2 and the bound
// of the timeout, whatever the connection's real timeouts are.
func retransmissionLimit(retries int, rtoMax time.Duration) time.Duration {
	doublings := bits.Len(uint(rtoMax/rtoMin)) - 1
	if retries <= doublings {
		return (2<<retries - 1) * rtoMin
	}
	return (2<<doublings-1)*rtoMin + time.Duration(retries-doublings)*rtoMax
}

// rtoMaxFor returns the bound of the retransmission timeout with which the
// kernel gives up on a peer that is silent for the given time. ok is false
// where none is small enough.
//
// The kernel looks at the clock when a timer fires, and so at most one
// timeout late: that much is taken off.
func rtoMaxFor(timeout time.Duration, retries int) (rtoMax time.Duration, ok bool) {
	fits := func(m time.Duration) bool { return retransmissionLimit(retries, m)+m <= timeout }
	if !fits(leastRTOMax) {
		return 0, false
	}
	low, high := leastRTOMax, defaultRTOMax
	if fits(high) {
		return high, true
	}
	for high-low > time.Millisecond {
		if middle := (low + high) / 2; fits(middle) {
			low = middle
		} else {
			high = middle
		}
	}
	return low.Truncate(time.Millisecond), true
}

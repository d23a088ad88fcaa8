package transport

import (
	"math/bits"
	"time"
)

// Bounds of TCP_RTO_MAX_MS.
const (
	minRTOMax     = time.Second
	defaultRTOMax = 120 * time.Second
)

// rtoMin is TCP_RTO_MIN, the first timeout in the kernel's model of
// retransmissions.
const rtoMin = 200 * time.Millisecond

// retransmissionLimit is the time that the kernel retransmits before it gives
// up. It sums retries timeouts that begin at rtoMin and double up to rtoMax.
// The kernel computes it from tcp_retries2 and the bound of the timeout,
// regardless of the connection's real timeouts.
func retransmissionLimit(retries int, rtoMax time.Duration) time.Duration {
	doublings := bits.Len(uint(rtoMax/rtoMin)) - 1
	if retries <= doublings {
		return (2<<retries - 1) * rtoMin
	}
	return (2<<doublings-1)*rtoMin + time.Duration(retries-doublings)*rtoMax
}

// rtoMaxFor returns the bound of the retransmission timeout that makes the
// kernel give up on a silent peer after timeout. ok is false if no bound is
// small enough.
//
// The kernel checks the time when a timer fires, so at most one timeout late;
// rtoMaxFor subtracts that.
func rtoMaxFor(timeout time.Duration, retries int) (rtoMax time.Duration, ok bool) {
	fits := func(m time.Duration) bool { return retransmissionLimit(retries, m)+m <= timeout }
	if !fits(minRTOMax) {
		return 0, false
	}
	low, high := minRTOMax, defaultRTOMax
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

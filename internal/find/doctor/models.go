package doctor

import (
	"math"
	"time"

	"longhaul/internal/words/ccnames"
)

// cubicC and cubicBeta are CUBIC's constants (RFC 9438, 4.1 and 4.6), the first
// in segments per second cubed.
const (
	cubicC    = 0.4
	cubicBeta = 0.7
)

// renoBps returns the goodput of a NewReno connection at a rate of loss events per
// segment: mss/RTT·sqrt(3/2)/sqrt(p) (M. Mathis et al., "The
// macroscopic behavior of the TCP congestion avoidance algorithm", 1997).
func renoBps(mss int, rtt time.Duration, p float64) float64 {
	return bps(mss, rtt) * math.Sqrt(1.5/p)
}

// cubicBps returns the goodput of CUBIC: its average window in its own region is
// (C·(3+β)/(4·(1-β)))^¼ · (RTT/p)^¾ segments (RFC 9438, 5.1), and at least Reno's
// (4.3).
func cubicBps(mss int, rtt time.Duration, p float64) float64 {
	window := math.Pow(cubicC*(3+cubicBeta)/(4*(1-cubicBeta)), 0.25) * math.Pow(rtt.Seconds()/p, 0.75)
	return max(bps(mss, rtt)*window, renoBps(mss, rtt, p))
}

// lossBoundBps returns an algorithm's goodput at a rate of loss events; +Inf for one
// that does not treat loss as congestion.
func lossBoundBps(algorithm string, mss int, rtt time.Duration, p float64) float64 {
	if p <= 0 || rtt <= 0 {
		return math.Inf(1)
	}
	switch ccnames.First(algorithm) {
	case "bbr", "haul", "brutal":
		return math.Inf(1)
	case "bbr3":
		if p < 0.02 { // its loss threshold: draft-ietf-ccwg-bbr-06, BBR.LossThresh
			return math.Inf(1)
		}
	case "cubic", "":
		return cubicBps(mss, rtt, p)
	}
	return renoBps(mss, rtt, p)
}

// bps returns the rate of a number of bytes per round trip, in bits per second.
func bps(bytes int, rtt time.Duration) float64 { return float64(bytes) * 8 / rtt.Seconds() }

// firstPeerWindow is the initial window of a Linux receiver, in bytes. The window
// stays below it in the second round trip, and doubles after that.
const firstPeerWindow = 65535

// slowStartTime returns the duration of a transfer that begins with a window of some
// segments and doubles it every round trip (RFC 5681, 3.1), up to the receiver's
// window. It counts one round trip for the handshake and one for every window,
// including the last. It adds the time at the path's rate once the window reaches it.
func slowStartTime(bytes int64, mss, initialWindow int, rtt time.Duration, capacityBps float64) time.Duration {
	elapsed := rtt // the handshake
	begun := float64(initialWindow * mss)
	left := float64(bytes)
	for round := 1; left > 0; round++ {
		peer := float64(firstPeerWindow)
		if round > 2 {
			peer = math.Ldexp(peer, round-2)
		}
		window := min(begun, peer)
		if capacityBps > 0 && bps(int(window), rtt) >= capacityBps {
			// After this the path sends without a pause.
			return elapsed + time.Duration(left*8/capacityBps*float64(time.Second)) + rtt
		}
		left -= window
		elapsed += rtt
		begun *= 2
	}
	return elapsed
}

package doctor

import (
	"math"
	"time"
)

// Way is a path by its properties alone, without an observation.
type Way struct {
	RateBps float64       // of IP packets
	RTT     time.Duration // without a queue
	Loss    float64       // share of packets, each lost by itself before the bottleneck
	MTU     int           // bytes
}

// headersBytes are the headers of a full packet: IPv4's, and TCP's with timestamps.
const headersBytes = 20 + 32

// MSS is the data of a full packet in bytes, with timestamps.
func (w Way) MSS() int { return w.MTU - headersBytes }

// LimitBps is the goodput that the way carries in segments of mss bytes.
func (w Way) LimitBps(mss int) float64 {
	return w.RateBps * float64(mss) / float64(mss+headersBytes)
}

// GoodputBps is the predicted goodput of a long transfer in segments of mss bytes. known
// is false for an algorithm without a model on a way with loss.
func (w Way) GoodputBps(algorithm string, mss int) (bps float64, known bool) {
	limit := w.LimitBps(mss)
	switch {
	case w.Loss <= 0:
		return limit, true
	case algorithm != "cubic" && algorithm != "reno":
		return 0, false
	}
	return min(limit, lossBoundBps(algorithm, mss, w.RTT, w.Loss)), true
}

// WindowBps is the goodput that a window, or a buffer, of some bytes allows: one per
// round trip.
func (w Way) WindowBps(bytes int) float64 {
	return min(w.LimitBps(w.MSS()), bps(bytes, w.RTT))
}

// WithoutSACKBps bounds the goodput without selective acknowledgements: the sender finds
// one lost segment per round trip (RFC 6582).
func (w Way) WithoutSACKBps() float64 {
	limit := w.LimitBps(w.MSS())
	if w.Loss <= 0 {
		return limit
	}
	return min(limit, bps(w.MSS(), w.RTT)/w.Loss)
}

// TransferBps is the goodput of one transfer that ends within slow start, with its
// handshake.
func (w Way) TransferBps(bytes int64, initialWindow int) float64 {
	return float64(bytes) * 8 / slowStartTime(bytes, w.MSS(), initialWindow, w.RTT, w.LimitBps(w.MSS())).Seconds()
}

// WindowNeeded is the size of a window or buffer that fills the way, in bytes: two
// bandwidth-delay products, or six where loss makes data wait for retransmissions
// (docs/design/transport.md).
func (w Way) WindowNeeded() int {
	products := 2.0
	if w.Loss >= 0.01 {
		products = 6
	}
	return int(math.Ceil(products * w.RateBps / 8 * w.RTT.Seconds()))
}

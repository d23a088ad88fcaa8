package link

import (
	"math"
	"time"
)

// RateLoss is a loss that grows with the rate that arrives, as on a satellite path
// whose modem or shaper gives up packets long before its queue is full. Up to FromBps
// nothing is lost, from ToBps up Share, and in between the share grows linearly. The
// rate is an exponential mean over 100 ms. The zero value loses nothing.
type RateLoss struct {
	FromBps, ToBps int64 // of whole IP packets
	Share          float64
}

const rateLossMean = 100 * time.Millisecond

// ShareAt is the share that is lost at a rate, in bits per second.
func (l RateLoss) ShareAt(bps float64) float64 {
	if l.Share == 0 {
		return 0
	}
	return l.Share * min(max((bps-float64(l.FromBps))/float64(l.ToBps-l.FromBps), 0), 1)
}

// rateMeter is the exponential mean of a rate.
type rateMeter struct {
	bps float64
	at  int64 // ns
}

// add counts bytes that arrive now, and returns the rate.
func (m *rateMeter) add(now int64, bytes int) float64 {
	if now > m.at {
		m.bps *= math.Exp(-float64(now-m.at) / float64(rateLossMean))
		m.at = now
	}
	m.bps += float64(bytes) * 8 / rateLossMean.Seconds()
	return m.bps
}

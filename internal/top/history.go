package top

// HistoryLen is how many intervals a history goes back.
const HistoryLen = 60

// History is what a connection did in the last intervals.
type History struct {
	points [HistoryLen]point
	count  int // how many there have been
}

// point is one interval. (32 bits: ten thousand connections have a history.)
type point struct{ sent, received, rtt, retransmitted float32 }

func (h *History) add(p point) {
	h.points[h.count%HistoryLen] = p
	h.count++
}

// each gives a figure of all points, the oldest first.
func (h *History) each(figure func(point) float32) []float64 {
	n := min(h.count, HistoryLen)
	figures := make([]float64, n)
	for i := range figures {
		figures[i] = float64(figure(h.points[(h.count-n+i)%HistoryLen]))
	}
	return figures
}

// The courses of the figures, the oldest first; NaN where one was not known.
func (h *History) SentBps() []float64 { return h.each(func(p point) float32 { return p.sent }) }

// ReceivedBps is the goodput of what came in.
func (h *History) ReceivedBps() []float64 {
	return h.each(func(p point) float32 { return p.received })
}

// RTT is in seconds.
func (h *History) RTT() []float64 { return h.each(func(p point) float32 { return p.rtt }) }

// Retransmitted is the part of what was sent that was sent again.
func (h *History) Retransmitted() []float64 {
	return h.each(func(p point) float32 { return p.retransmitted })
}

package top

// HistoryLen is the number of intervals in a history.
const HistoryLen = 60

// History has the figures of a connection's last intervals.
type History struct {
	points [HistoryLen]point
	count  int // number of intervals so far
}

// point is one interval. (32 bits: ten thousand connections have a history.)
type point struct{ sent, received, rtt, retransmitted float32 }

func (h *History) add(p point) {
	h.points[h.count%HistoryLen] = p
	h.count++
}

// each returns a figure of all points, the oldest first.
func (h *History) each(figure func(point) float32) []float64 {
	n := min(h.count, HistoryLen)
	figures := make([]float64, n)
	for i := range figures {
		figures[i] = float64(figure(h.points[(h.count-n+i)%HistoryLen]))
	}
	return figures
}

// The figures over time, the oldest first; NaN if unknown.
func (h *History) SentBps() []float64 { return h.each(func(p point) float32 { return p.sent }) }

// ReceivedBps is the received goodput.
func (h *History) ReceivedBps() []float64 {
	return h.each(func(p point) float32 { return p.received })
}

// RTT is in seconds.
func (h *History) RTT() []float64 { return h.each(func(p point) float32 { return p.rtt }) }

// Retransmitted is the share of sent data that was retransmitted.
func (h *History) Retransmitted() []float64 {
	return h.each(func(p point) float32 { return p.retransmitted })
}

package webfake

import (
	"math"
	"slices"
	"time"

	"longhaul/internal/monitor"
)

// Records returns n records of the last two weeks, oldest first. The flows of
// the last week are faster.
func (m *Monitor) Records(n int) []monitor.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []monitor.Record
	now := time.Now()
	for i := range n {
		f := m.newFlow()
		end := now.Add(-time.Duration(i)*14*24*time.Hour/time.Duration(n) - time.Second)
		bytes := math.Exp(m.random.NormFloat64()*1.2) * 40e6
		goodput := math.Exp(m.random.NormFloat64()*0.7) * 9e6
		if now.Sub(end) < 7*24*time.Hour {
			goodput *= 14
			if i%3 > 0 {
				f.Cause = ""
			}
		}
		f.BytesUp, f.BytesDown = int64(bytes), int64(bytes/80)
		f.Legs[0].BytesSent, f.Legs[1].BytesSent, f.Legs[1].BytesRetransmitted = f.BytesDown, f.BytesUp*1001/1000, f.BytesUp/1000
		f.Start = end.Add(-time.Duration(bytes * 8 / goodput * float64(time.Second))).Truncate(time.Millisecond)
		all = append(all, m.record(f, end))
	}
	slices.Reverse(all)
	return all
}

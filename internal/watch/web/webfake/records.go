package webfake

import (
	"math"
	"slices"
	"time"

	"longhaul/internal/watch/monitor"
	"longhaul/internal/words/units"
)

// Records returns n records of the last two weeks, oldest first. The flows of
// the last week are faster. A pair resumed some.
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
		r := m.record(f, end)
		if i%7 == 0 {
			r.Resumes, r.Outage = int64(1+i%3), units.Seconds(time.Duration(1+i%40)*time.Second)
		}
		all = append(all, r)
	}
	slices.Reverse(all)
	return all
}

package webfake

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"longhaul/internal/doctor"
	"longhaul/internal/monitor"
	"longhaul/internal/web"
)

// History is a past of records that were never written.
type History struct{ Records []monitor.Record }

// NewHistory makes the records of some days up to now, which became faster on
// the way.
func (m *Monitor) NewHistory(records int) *History {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := &History{}
	now := time.Now()
	for i := range records {
		f := m.newFlow()
		end := now.Add(-time.Duration(i) * 14 * 24 * time.Hour / time.Duration(records))
		bytes := math.Exp(m.random.NormFloat64()*1.2) * 40e6
		goodput := math.Exp(m.random.NormFloat64()*0.7) * 9e6
		if now.Sub(end) < 7*24*time.Hour {
			goodput *= 14
		}
		f.BytesUp, f.BytesDown = int64(bytes), int64(bytes/80)
		f.Legs[0].BytesSent, f.Legs[1].BytesSent, f.Legs[1].BytesRetransmitted = f.BytesDown, f.BytesUp*1001/1000, f.BytesUp/1000
		f.Start = end.Add(-time.Duration(bytes * 8 / goodput * float64(time.Second))).Truncate(time.Millisecond)
		r := m.record(f, end)
		r.ID = int64(records - i)
		h.Records = append(h.Records, r)
	}
	return h
}

func (h *History) in(p web.Period, tunnel string) []monitor.Record {
	var all []monitor.Record
	for _, r := range h.Records {
		if !r.End.Before(p.Since) && r.End.Before(p.Until) && (tunnel == "" || r.Tunnel == tunnel) {
			all = append(all, r)
		}
	}
	return all
}

// Query is by time, or by goodput for [web.Slowest].
func (h *History) Query(_ context.Context, q web.Query) ([]monitor.Record, error) {
	all := slices.DeleteFunc(h.in(q.Period, q.Tunnel), func(r monitor.Record) bool { return q.Cause != "" && r.Cause != q.Cause })
	slices.SortFunc(all, func(a, b monitor.Record) int {
		switch q.Order {
		case web.Slowest:
			return cmp.Compare(a.GoodputBps(), b.GoodputBps())
		case web.Longest:
			return cmp.Compare(b.Elapsed, a.Elapsed)
		}
		return b.End.Compare(a.End)
	})
	return all[:min(len(all), q.Limit)], nil
}

// Get is the record with an ID.
func (h *History) Get(_ context.Context, id int64) (monitor.Record, error) {
	for _, r := range h.Records {
		if r.ID == id {
			return r, nil
		}
	}
	return monitor.Record{}, web.ErrNoRecord
}

// Summary is of the records of a period.
func (h *History) Summary(_ context.Context, p web.Period, tunnel string) (web.Summary, error) {
	s := web.Summary{Period: p, RetransmittedShare: -1, Causes: map[doctor.Cause]int64{}}
	var seconds, goodput []float64
	for _, r := range h.in(p, tunnel) {
		s.Flows++
		s.BytesUp += r.BytesUp
		s.BytesDown += r.BytesDown
		s.RetransmittedShare = 0.001
		seconds, goodput = append(seconds, r.Elapsed.Seconds()), append(goodput, r.GoodputBps())
		s.Causes[r.Cause]++
	}
	s.TransferSeconds, s.GoodputBps = quantiles(seconds), quantiles(goodput)
	return s, nil
}

func quantiles(all []float64) []web.Quantile {
	if len(all) == 0 {
		return nil
	}
	slices.Sort(all)
	var found []web.Quantile
	for _, share := range []float64{0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99} {
		found = append(found, web.Quantile{Share: share, Value: all[int(share*float64(len(all)-1))]})
	}
	return found
}

package web

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"longhaul/internal/doctor"
	"longhaul/internal/monitor"
)

// view makes what a page shows of a snapshot. It may remember what it has shown.
type view func(*monitor.Snapshot) (any, error)

// head is what every page shows.
type head struct {
	At                 time.Time `json:"at"`
	IntervalSeconds    float64   `json:"interval_seconds"`
	Sequence           uint64    `json:"sequence"`
	Version            string    `json:"version"`
	StartedAt          time.Time `json:"started_at"`
	FlowsNow           int64     `json:"flows_now"`
	UpBps              float64   `json:"up_bps"`
	DownBps            float64   `json:"down_bps"`
	RetransmittedShare float64   `json:"retransmitted_share"` // of the last interval; negative: nothing was sent
	Tunnels            []string  `json:"tunnels"`
	Alerts             []alert   `json:"alerts"`
	History            bool      `json:"history"` // there is one
}

func (d *Dashboard) headOf(s *monitor.Snapshot) head {
	h := head{
		At: s.At, IntervalSeconds: s.Interval.Seconds(), Sequence: s.Sequence, Version: s.Process.Version,
		StartedAt: s.Process.StartedAt, FlowsNow: s.FlowsNow, History: d.past() != nil,
		Tunnels: make([]string, 0, len(s.Tunnels)),
	}
	var shares weighted
	for i := range s.Tunnels {
		t := &s.Tunnels[i]
		h.Tunnels = append(h.Tunnels, t.Name)
		h.UpBps += t.UpBps
		h.DownBps += t.DownBps
		shares.add(t.Legs[0].RetransmittedShare, t.DownBps) // it sends to the client
		shares.add(t.Legs[1].RetransmittedShare, t.UpBps)
	}
	h.UpBps, h.DownBps, h.RetransmittedShare = whole(h.UpBps), whole(h.DownBps), shares.mean()
	h.Alerts = d.alerts(s)
	return h
}

// weighted is a mean of shares, those unknown left out.
type weighted struct{ sum, weight float64 }

func (m *weighted) add(share, weight float64) {
	if share >= 0 {
		weight = max(weight, 1)
		m.sum += share * weight
		m.weight += weight
	}
}

func (m *weighted) mean() float64 {
	if m.weight == 0 {
		return -1
	}
	return m.sum / m.weight
}

// overview is the first page: all tunnels, and what is new of the charts.
func (d *Dashboard) overview() view {
	var shown time.Time
	return func(s *monitor.Snapshot) (any, error) {
		v := struct {
			Head    head            `json:"head"`
			Process monitor.Process `json:"process"`
			Tunnels []overviewRow   `json:"tunnels"`
			Points  columns         `json:"points"` // since the last event; at first of ten minutes
		}{Head: d.headOf(s), Process: s.Process, Tunnels: make([]overviewRow, 0, len(s.Tunnels))}
		first := shown.IsZero()
		if first {
			shown = s.At.Add(-10 * time.Minute)
		}
		for i := range s.Tunnels {
			row := overviewRow{Tunnel: s.Tunnels[i]}
			row.Closed, row.Listen = nil, nil
			if first {
				row.Recent = d.sparkline(row.Name, s.At.Add(-time.Minute))
			}
			v.Tunnels = append(v.Tunnels, row)
		}
		v.Points = d.points(s, "", shown)
		shown = s.At
		return v, nil
	}
}

// overviewRow is a tunnel without what its own page has.
type overviewRow struct {
	monitor.Tunnel
	Recent []float64 `json:"recent,omitempty"` // bits per second of the last minute, both directions together
}

func (d *Dashboard) sparkline(tunnel string, since time.Time) []float64 {
	all := []float64{}
	for _, p := range d.monitor.Points(tunnel, since) {
		all = append(all, whole(p.UpBps+p.DownBps))
	}
	return all
}

// columns are points as a chart takes them. Unknown is null.
type columns struct {
	At            []float64  `json:"at"` // seconds since 1970
	UpBps         []float64  `json:"up_bps"`
	DownBps       []float64  `json:"down_bps"`
	Retransmitted []*float64 `json:"retransmitted_share"`
	Flows         []int64    `json:"flows"`
}

// points are those of a tunnel, or of all together, that ended after a moment.
func (d *Dashboard) points(s *monitor.Snapshot, tunnel string, since time.Time) columns {
	type sum struct {
		up, down float64
		flows    int64
		shares   weighted
	}
	sums := map[int64]*sum{}
	for i := range s.Tunnels {
		name := s.Tunnels[i].Name
		if tunnel != "" && tunnel != name {
			continue
		}
		for _, p := range d.monitor.Points(name, since) {
			if !p.At.After(since) {
				continue
			}
			at := p.At.UnixMilli()
			if sums[at] == nil {
				sums[at] = &sum{}
			}
			sums[at].up += p.UpBps
			sums[at].down += p.DownBps
			sums[at].flows += p.Flows
			sums[at].shares.add(p.RetransmittedShare, p.UpBps+p.DownBps)
		}
	}
	c := columns{At: []float64{}, UpBps: []float64{}, DownBps: []float64{}, Retransmitted: []*float64{}, Flows: []int64{}}
	moments := make([]int64, 0, len(sums))
	for at := range sums {
		moments = append(moments, at)
	}
	slices.Sort(moments)
	for _, at := range moments {
		one := sums[at]
		c.At = append(c.At, float64(at)/1000)
		c.UpBps = append(c.UpBps, whole(one.up))
		c.DownBps = append(c.DownBps, whole(one.down))
		c.Flows = append(c.Flows, one.flows)
		var share *float64
		if m := one.shares.mean(); m >= 0 {
			share = &m
		}
		c.Retransmitted = append(c.Retransmitted, share)
	}
	return c
}

// tunnel is a tunnel's page.
func (d *Dashboard) tunnel(name string) view {
	var shown time.Time
	return func(s *monitor.Snapshot) (any, error) {
		i := slices.IndexFunc(s.Tunnels, func(t monitor.Tunnel) bool { return t.Name == name })
		if i < 0 {
			return nil, missing("there is no tunnel " + strconv.Quote(name) + " now")
		}
		if shown.IsZero() {
			shown = s.At.Add(-10 * time.Minute)
		}
		top := selection{Tunnel: name, order: "rate", descending: true, Page: 1, Size: 10}.of(s)
		v := struct {
			Head   head           `json:"head"`
			Tunnel monitor.Tunnel `json:"tunnel"`
			Points columns        `json:"points"`
			Flows  []monitor.Flow `json:"flows"` // the ten fastest
		}{d.headOf(s), s.Tunnels[i], d.points(s, name, shown), top.Flows}
		shown = s.At
		return v, nil
	}
}

// flow is a flow's page: of the moment, and once it has ended its record.
func (d *Dashboard) flow(text, start string) (view, error) {
	number, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return nil, wrong("a flow's ID is a number")
	}
	began, err := parseMoment(start, time.Time{}, time.Time{})
	if err != nil {
		return nil, err
	}
	id := monitor.FlowID(number)
	type shown struct {
		Head   head            `json:"head"`
		Flow   *monitor.Flow   `json:"flow"`
		Series *monitor.Series `json:"series"`
		Record *monitor.Record `json:"record"`
	}
	return func(s *monitor.Snapshot) (any, error) {
		v := shown{Head: d.headOf(s)}
		if f, series, ok := d.monitor.Flow(id); ok && (began.IsZero() || f.Start.Sub(began).Abs() < 2*time.Millisecond) {
			v.Flow, v.Series = &f, &series
			return v, nil
		}
		d.mu.Lock()
		v.Record = d.ended.find(id)
		d.mu.Unlock()
		if v.Record == nil || !startedAt(v.Record, began) {
			return nil, missing("there is no flow " + text + " now; if it has ended, Transfers and History may have it")
		}
		return v, nil
	}, nil
}

// causeRow is what limits some flows now.
type causeRow struct {
	Cause   doctor.Cause   `json:"cause"`
	Flows   int            `json:"flows"`
	Tunnels map[string]int `json:"tunnels"`
	Fastest []monitor.Flow `json:"fastest"` // some of them
}

// limitedRow is how long flows of a tunnel were limited, since the start.
type limitedRow struct {
	Cause   doctor.Cause `json:"cause"`
	Tunnel  string       `json:"tunnel"`
	Leg     monitor.Leg  `json:"leg"`
	Seconds float64      `json:"seconds"`
}

// causes is the page of what limits flows.
func (d *Dashboard) causes(s *monitor.Snapshot) (any, error) {
	v := struct {
		Head    head         `json:"head"`
		Now     []*causeRow  `json:"now"`
		Limited []limitedRow `json:"limited"`
	}{Head: d.headOf(s), Now: []*causeRow{}, Limited: []limitedRow{}}
	rows := map[doctor.Cause]*causeRow{}
	for i := range s.Tunnels {
		t := &s.Tunnels[i]
		for cause, n := range t.Causes {
			if rows[cause] == nil {
				rows[cause] = &causeRow{Cause: cause, Tunnels: map[string]int{}}
				v.Now = append(v.Now, rows[cause])
			}
			rows[cause].Flows += n
			rows[cause].Tunnels[t.Name] = n
		}
		for _, leg := range t.Legs {
			for cause, seconds := range leg.LimitedSeconds {
				v.Limited = append(v.Limited, limitedRow{cause, t.Name, leg.Leg, seconds})
			}
		}
	}
	for _, row := range v.Now {
		row.Fastest = selection{Cause: row.Cause, order: "rate", descending: true, Page: 1, Size: 3}.of(s).Flows
	}
	slices.SortFunc(v.Now, func(a, b *causeRow) int {
		return cmp.Or(cmp.Compare(b.Flows, a.Flows), cmp.Compare(a.Cause, b.Cause))
	})
	slices.SortFunc(v.Limited, func(a, b limitedRow) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(a.Tunnel, b.Tunnel), cmp.Compare(a.Cause, b.Cause), cmp.Compare(a.Leg, b.Leg))
	})
	return v, nil
}

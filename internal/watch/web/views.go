package web

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/find/doctor"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/words/sorted"
)

// view renders a page's data from a snapshot. It may keep state between calls.
type view func(*monitor.Snapshot) (any, error)

// head is the part common to all pages.
type head struct {
	At              time.Time `json:"at"`
	IntervalSeconds float64   `json:"interval_seconds"`
	LagSeconds      float64   `json:"lag_seconds"` // how old figures of flows are at most
	Sequence        uint64    `json:"sequence"`
	Version         string    `json:"version"`
	StartedAt       time.Time `json:"started_at"`
	FlowsNow        int64     `json:"flows_now"`
	UpBps           float64   `json:"up_bps"`
	DownBps         float64   `json:"down_bps"`
	// Of the last minute; a negative share: nothing was sent.
	RetransmittedShare float64    `json:"retransmitted_share"`
	RetransmittedLevel flow.Level `json:"retransmitted_level,omitempty"`
	Tunnels            []string   `json:"tunnels"`
	Alerts             []alert    `json:"alerts"`
	History            bool       `json:"history"`  // the relay keeps one
	Database           bool       `json:"database"` // Transfers and History are of many relays
	Pairs              bool       `json:"pairs"`    // a tunnel is paired
}

// headOf computes the head once per snapshot, for any number of readers.
func (d *Dashboard) headOf(s *monitor.Snapshot) head {
	d.mu.Lock()
	h, known := d.headNow, d.headFor == s
	d.mu.Unlock()
	if !known {
		h = d.makeHead(s)
		d.mu.Lock()
		d.headNow, d.headFor = h, s
		d.mu.Unlock()
	}
	return h
}

func (d *Dashboard) makeHead(s *monitor.Snapshot) head {
	h := head{
		At: s.At, IntervalSeconds: s.Interval.Seconds(), LagSeconds: s.Lag.Seconds(), Sequence: s.Sequence, Version: s.Process.Version,
		StartedAt: s.Process.StartedAt, FlowsNow: s.FlowsNow, History: d.past() != nil, Database: d.many() != nil, Pairs: s.Pairs != nil,
		Tunnels: make([]string, 0, len(s.Tunnels)),
	}
	var sent flow.Sent
	for i := range s.Tunnels {
		t := &s.Tunnels[i]
		h.Tunnels = append(h.Tunnels, t.Name)
		h.UpBps += t.UpBps
		h.DownBps += t.DownBps
		sent = sent.Plus(t.Legs[0].Recent).Plus(t.Legs[1].Recent)
	}
	h.UpBps, h.DownBps = whole(h.UpBps), whole(h.DownBps)
	h.RetransmittedShare, h.RetransmittedLevel = sent.Share(), sent.Level()
	h.Alerts = alerts(s)
	return h
}

// overview is the first page: all tunnels, and the new points of the charts.
func (d *Dashboard) overview() view {
	var course course
	return func(s *monitor.Snapshot) (any, error) {
		v := struct {
			Head    head            `json:"head"`
			Process monitor.Process `json:"process"`
			Tunnels []overviewRow   `json:"tunnels"`
			Pairs   []pairRow       `json:"pairs"`   // null: no tunnel is paired
			Clients []clientRow     `json:"clients"` // those that move most now
			Points  columns         `json:"points"`  // since the last event; ten minutes at first
			History any             `json:"history"` // of the status; null: no history
		}{Head: d.headOf(s), Clients: d.clientsOf(s), History: d.historyState(), Process: s.Process, Tunnels: make([]overviewRow, 0, len(s.Tunnels)), Pairs: pairRows(s, "")}
		first := course.shown.IsZero()
		for i := range s.Tunnels {
			row := overviewRow{Tunnel: s.Tunnels[i]}
			row.Ended, row.Listen = nil, nil
			if first {
				row.Recent = d.sparkline(row.Name, s.At.Add(-time.Minute))
			}
			v.Tunnels = append(v.Tunnels, row)
		}
		v.Points = course.next(d, s, "")
		return v, nil
	}
}

// overviewRow is a tunnel without the details of its own page.
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

// columns holds points in a chart's form. Unknown values are null.
type columns struct {
	At            []float64  `json:"at"` // seconds since 1970
	UpBps         []float64  `json:"up_bps"`
	DownBps       []float64  `json:"down_bps"`
	Retransmitted []*float64 `json:"retransmitted_share"`
	Flows         []int64    `json:"flows"`
}

// points returns the points of a tunnel since a time; an empty name means all
// together.
func (d *Dashboard) points(tunnel string, since time.Time) columns {
	all := d.monitor.Points(tunnel, since)
	c := columns{
		At: make([]float64, len(all)), UpBps: make([]float64, len(all)), DownBps: make([]float64, len(all)),
		Retransmitted: make([]*float64, len(all)), Flows: make([]int64, len(all)),
	}
	for i, p := range all {
		c.At[i] = float64(p.At.UnixMilli()) / 1000
		c.UpBps[i], c.DownBps[i], c.Flows[i] = whole(p.UpBps), whole(p.DownBps), p.Flows
		if p.RetransmittedShare >= 0 {
			c.Retransmitted[i] = &all[i].RetransmittedShare
		}
	}
	return c
}

// chartTime is the span of a chart: a little less than the monitor keeps every
// second.
const chartTime = 10*time.Minute - 10*time.Second

// course is the state of a chart at a reader.
type course struct{ shown time.Time }

// next returns the new points. The time of a point may vary a little between
// calls. So a point within half a step of the previous one is the same.
func (c *course) next(d *Dashboard, s *monitor.Snapshot, tunnel string) columns {
	if c.shown.IsZero() {
		c.shown = s.At.Add(-chartTime)
	}
	p := d.points(tunnel, c.shown)
	if n := len(p.At); n > 0 {
		c.shown = time.UnixMilli(int64(p.At[n-1] * 1000)).Add(time.Duration(s.Interval / 2))
	}
	return p
}

// tunnel is the page of a tunnel.
func (d *Dashboard) tunnel(name string) view {
	var course course
	return func(s *monitor.Snapshot) (any, error) {
		i := slices.IndexFunc(s.Tunnels, func(t monitor.Tunnel) bool { return t.Name == name })
		if i < 0 {
			return nil, missing("there is no tunnel " + strconv.Quote(name) + " now")
		}
		top := (&selection{Tunnel: name, order: "rate", descending: true, Page: 1, Size: 10}).top(d.monitor)
		v := struct {
			Head   head           `json:"head"`
			Tunnel monitor.Tunnel `json:"tunnel"`
			Points columns        `json:"points"`
			Flows  []monitor.Flow `json:"flows"` // the ten fastest
			Pairs  []pairRow      `json:"pairs"` // its sessions
		}{d.headOf(s), s.Tunnels[i], course.next(d, s, name), top, pairRows(s, name)}
		return v, nil
	}
}

// flow is the page of a flow: the running flow, or its record after the end.
func (d *Dashboard) flow(ctx context.Context, text, start string) (view, error) {
	number, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return nil, wrong("a flow's ID is a number")
	}
	var began time.Time
	if start != "" {
		if began, err = time.Parse(time.RFC3339, start); err != nil {
			return nil, wrong("the start of a flow is a time such as 2026-01-31T12:00:00Z")
		}
	}
	id := flow.ID(number)
	type shown struct {
		Head   head            `json:"head"`
		Flow   *monitor.Flow   `json:"flow"`
		Series *monitor.Series `json:"series"`
		Record *monitor.Record `json:"record"`
	}
	// A lookup in the history may take 0.1 s: do it once.
	var past *monitor.Record
	looked := false
	return func(s *monitor.Snapshot) (any, error) {
		v := shown{Head: d.headOf(s)}
		if f, series, ok := d.monitor.Flow(id); ok && sameMoment(f.Start, began) {
			v.Flow, v.Series = &f, &series
			return v, nil
		}
		d.mu.Lock()
		v.Record = d.ended.find(id, began)
		d.mu.Unlock()
		if v.Record == nil {
			v.Record = past
		}
		if h := d.past(); v.Record == nil && h != nil && !began.IsZero() && !looked {
			looked = true
			switch found, err := h.Find(ctx, id, began); {
			case err == nil:
				past, v.Record = &found, &found
			case !errors.Is(err, history.ErrNoRecord):
				return nil, err
			}
		}
		judge(v.Record)
		if v.Record == nil {
			return nil, missing("there is no flow " + text + " now; if it has ended, Transfers and History may have it")
		}
		return v, nil
	}, nil
}

// fastest fills in the three fastest flows of each cause.
func (d *Dashboard) fastest(rows map[doctor.Cause]*causeRow) {
	first := map[doctor.Cause]*firstFlows{}
	for cause := range rows {
		first[cause] = (&selection{order: "rate", descending: true, Page: 1, Size: 3}).first()
	}
	for f := range d.monitor.Flows() {
		if of := first[f.Cause]; of != nil {
			of.add(f)
		}
	}
	for cause, row := range rows {
		row.Fastest = []monitor.Flow{}
		for _, f := range first[cause].list() {
			f.UpBps, f.DownBps = whole(f.UpBps), whole(f.DownBps)
			row.Fastest = append(row.Fastest, *f)
		}
	}
}

// causeRow is a cause that limits flows now.
type causeRow struct {
	Cause   doctor.Cause   `json:"cause"`
	Flows   int            `json:"flows"`
	Tunnels map[string]int `json:"tunnels"`
	Fastest []monitor.Flow `json:"fastest"` // the fastest flows with this cause
}

// limitedRow is the time in which a cause limited a tunnel's flows, since the
// start.
type limitedRow struct {
	Cause   doctor.Cause `json:"cause"`
	Tunnel  string       `json:"tunnel"`
	Leg     flow.Leg     `json:"leg"`
	Seconds float64      `json:"seconds"`
}

// causes is the page of the causes that limit flows.
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
	d.fastest(rows)
	slices.SortFunc(v.Now, func(a, b *causeRow) int {
		return cmp.Or(cmp.Compare(b.Flows, a.Flows), cmp.Compare(a.Cause, b.Cause))
	})
	sorted.By(v.Limited, func(a, b limitedRow) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(a.Tunnel, b.Tunnel), cmp.Compare(a.Cause, b.Cause), cmp.Compare(a.Leg, b.Leg))
	})
	return v, nil
}

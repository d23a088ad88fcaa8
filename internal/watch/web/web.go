// Package web is the dashboard: pages that show the state of a relay, a JSON
// API below /api/v1/ and its live updates. It reads snapshots and records; no
// request changes anything.
//
//	browser ──GET /assets, pages──▶ the same for everybody, nothing secret
//	        ──GET /api/v1/…───────▶ checked: Host, origin, token ──▶ snapshot, history
//	        ──GET /api/v1/live?view=flows&sort=-rate&page=2 ──▶ an event each second
//
// The server sorts, filters and pages the flows, so that thousands of flows
// cost a browser no more than thirty.
package web

import (
	"context"
	"iter"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/sys/httpd"
	"longhaul/internal/sys/loglimit"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/history"
)

// Monitor is the source of present data.
type Monitor interface {
	// Snapshot is the latest snapshot; before the first sample its Sequence is
	// 0.
	Snapshot() *monitor.Snapshot
	// Subscribe delivers the latest snapshot and then each new one, until ctx
	// ends. A slow reader gets the newest.
	Subscribe(ctx context.Context) <-chan *monitor.Snapshot
	// Flows are the running flows in any order. The loop over them reuses the
	// Flow, and may not call the monitor.
	Flows() iter.Seq[*monitor.Flow]
	// Moving are those that move at least so many bits per second both ways
	// together, which the loop may raise. Known is the number of Flows.
	Moving(least *float64) iter.Seq[*monitor.Flow]
	Known() int
	Flow(flow.ID) (monitor.Flow, monitor.Series, bool)
	// Points returns the points of a tunnel since a time, oldest first; an
	// empty name means all together.
	Points(tunnel string, since time.Time) []monitor.Point
}

// History is the source of this relay's past data: a [history.Reader].
type History interface {
	history.Source
	// Find returns the record of the flow that began at start, or
	// [history.ErrNoRecord].
	Find(ctx context.Context, flow flow.ID, start time.Time) (monitor.Record, error)
}

// Database is the source of the past data of many relays. Its errors are sentences.
type Database interface {
	history.Source
	Places(context.Context) (history.Places, error)
}

// Options are the sources of a dashboard.
type Options struct {
	Monitor Monitor
	History History // nil: no history
	// Database answers for Transfers and History instead; nil: none.
	Database Database
	// Events returns the changes of state since a time, the oldest first; nil: there are none.
	Events func(since time.Time) []flow.Event
	// HistoryState returns how the history and its sinks do, as the status has it (JSON; null: no history). Nil: null.
	HistoryState func() any
	Log          *slog.Logger
}

// Dashboard serves pages and data.
type Dashboard struct {
	monitor      Monitor
	events       func(since time.Time) []flow.Event
	historyState func() any
	lines        *loglimit.Limiter

	mu         sync.Mutex
	history    History
	database   Database
	ended      recent
	headFor    *monitor.Snapshot // the snapshot of headNow
	headNow    head
	clientsFor *monitor.Snapshot // the snapshot of clientsNow
	clientsNow []clientRow
}

// Limits are the limits of a server for a dashboard. A browser requests some
// files at once, and holds one connection for live updates.
var Limits = httpd.Limits{
	Request: 5 * time.Second, Reply: 20 * time.Second, HeaderBytes: 8 << 10, BodyBytes: 4 << 10, Connections: 64, Kept: 32,
}

// New makes a dashboard.
func New(o Options) *Dashboard {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Events == nil {
		o.Events = func(time.Time) []flow.Event { return nil }
	}
	if o.HistoryState == nil {
		o.HistoryState = func() any { return nil }
	}
	return &Dashboard{monitor: o.Monitor, events: o.Events, historyState: o.HistoryState, history: o.History, database: o.Database, lines: loglimit.New(o.Log)}
}

// SetHistory replaces the source of records; nil: none.
func (d *Dashboard) SetHistory(h History) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.history = h
}

// SetDatabase replaces the database; nil: none.
func (d *Dashboard) SetDatabase(db Database) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.database = db
}

// Ended adds the records of ended flows. The dashboard remembers some hundreds,
// so that the page of a flow outlives it without a history.
func (d *Dashboard) Ended(records []monitor.Record) {
	d.mu.Lock()
	defer d.mu.Unlock()
	// Only the latest records of a flood fit.
	d.ended.add(records[max(0, len(records)-recentRecords):])
}

func (d *Dashboard) past() History {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.history
}

func (d *Dashboard) many() Database {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.database
}

// source is what answers a request: the database, unless there is none or the request is for this
// relay alone; nil: nothing.
func (d *Dashboard) source(r *http.Request) history.Source {
	if db := d.many(); db != nil && r.URL.Query().Get("source") != "relay" {
		return db
	}
	if h := d.past(); h != nil {
		return h
	}
	return nil
}

// Handler serves the dashboard under an access policy.
func (d *Dashboard) Handler(a Access) http.Handler {
	data := http.NewServeMux()
	for target, answer := range map[string]func(*http.Request) (any, error){
		"overview":     d.overviewOf,
		"flows":        d.flowsOf,
		"flows/{id}":   d.flowOf,
		"tunnels":      d.tunnelsOf,
		"tunnels/{id}": d.tunnelOf,
		"causes":       d.causesOf,
		"pairs":        d.pairsOf,
		"events":       d.eventsOf,
		"points":       d.pointsOf,
		"records":      d.recordsOf,
		"records/{id}": d.recordOf,
		"summary":      d.summaryOf,
		"compare":      d.compareOf,
		"chart":        d.chartOf,
		"places":       d.placesOf,
	} {
		data.HandleFunc("/api/v1/"+target, d.json(answer))
	}
	data.HandleFunc("/api/v1/live", d.live)
	data.HandleFunc("/api/", func(w http.ResponseWriter, _ *http.Request) { fail(w, http.StatusNotFound, "there is nothing here") })

	all := http.NewServeMux()
	all.Handle("/api/", a.authorized(data))
	all.HandleFunc("/assets/{name...}", serveAsset)
	all.HandleFunc("/login", a.login)
	all.HandleFunc("/logout", a.logout)
	all.HandleFunc("/", servePage)
	return a.guard(all)
}

// Package web is the dashboard: pages that show what a relay does, a JSON API
// below /api/v1/ and its live updates. It reads snapshots and records, and no
// request changes anything.
//
//	browser ──GET /assets, pages──▶ the same for everybody, nothing secret
//	        ──GET /api/v1/…───────▶ checked: Host, origin, token ──▶ snapshot, history
//	        ──GET /api/v1/live?view=flows&sort=-rate&page=2 ──▶ an event each second
//
// The server sorts, filters and cuts what a page shows, so that thousands of
// flows cost a browser what thirty do.
package web

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"longhaul/internal/httpd"
	"longhaul/internal/monitor"
	"longhaul/internal/monitor/history"
)

// Monitor is what the dashboard knows of the present.
type Monitor interface {
	// Snapshot is the last one; before the first its Sequence is 0.
	Snapshot() *monitor.Snapshot
	// Subscribe delivers the last snapshot and then each new one, until ctx
	// ends. A slow reader gets the newest.
	Subscribe(ctx context.Context) <-chan *monitor.Snapshot
	Flow(monitor.FlowID) (monitor.Flow, monitor.Series, bool)
	// Points are the course of a tunnel since a moment, of all together where no
	// name is given, the oldest first.
	Points(tunnel string, since time.Time) []monitor.Point
}

// History is what the dashboard knows of the past: a [history.Reader].
type History interface {
	Query(context.Context, history.Query) ([]monitor.Record, error)
	// Get is the record with an ID, or [history.ErrNoRecord].
	Get(ctx context.Context, id int64) (monitor.Record, error)
	// Find is the record of the flow that began then, or [history.ErrNoRecord].
	Find(ctx context.Context, flow monitor.FlowID, start time.Time) (monitor.Record, error)
	Summary(ctx context.Context, period history.Period, tunnel string) (history.Summary, error)
	Compare(ctx context.Context, before, after history.Period, tunnel string) (history.Comparison, error)
	Series(ctx context.Context, period history.Period, tunnel string) (history.Chart, error)
}

// Options are what a dashboard shows.
type Options struct {
	Monitor Monitor
	History History // nil: there is none
	Log     *slog.Logger
}

// Dashboard answers with pages and data.
type Dashboard struct {
	monitor Monitor
	log     *slog.Logger

	mu      sync.Mutex
	history History
	ended   recent
	headFor *monitor.Snapshot // what headNow is of
	headNow head
}

// Limits are those of a server that serves a dashboard. A browser asks for some
// files at once, and holds one connection for what changes.
var Limits = httpd.Limits{
	Request: 5 * time.Second, Reply: 20 * time.Second, HeaderBytes: 8 << 10, BodyBytes: 4 << 10, Connections: 64, Kept: 32,
}

// New makes a dashboard.
func New(o Options) *Dashboard {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Dashboard{monitor: o.Monitor, history: o.History, log: o.Log}
}

// SetHistory changes where records come from; nil: nowhere.
func (d *Dashboard) SetHistory(h History) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.history = h
}

// Ended tells of flows that have ended. Some hundreds are remembered, so that a
// flow's page lives on without a history.
func (d *Dashboard) Ended(records []monitor.Record) {
	d.mu.Lock()
	defer d.mu.Unlock()
	// Of a flood only the last can stay.
	d.ended.add(records[max(0, len(records)-recentRecords):])
}

func (d *Dashboard) past() History {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.history
}

// Handler answers those who have access.
func (d *Dashboard) Handler(a Access) http.Handler {
	data := http.NewServeMux()
	for target, answer := range map[string]func(*http.Request) (any, error){
		"overview":     d.overviewOf,
		"flows":        d.flowsOf,
		"flows/{id}":   d.flowOf,
		"tunnels":      d.tunnelsOf,
		"tunnels/{id}": d.tunnelOf,
		"causes":       d.causesOf,
		"points":       d.pointsOf,
		"records":      d.recordsOf,
		"records/{id}": d.recordOf,
		"summary":      d.summaryOf,
		"compare":      d.compareOf,
		"chart":        d.chartOf,
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

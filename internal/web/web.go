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
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"longhaul/internal/doctor"
	"longhaul/internal/monitor"
)

// Monitor is what the dashboard knows of the present.
type Monitor interface {
	// Snapshot is the last one; nil: there is none yet.
	Snapshot() *monitor.Snapshot
	// Subscribe delivers each snapshot from now on until ctx ends. A slow
	// reader gets the newest.
	Subscribe(ctx context.Context) <-chan *monitor.Snapshot
	Flow(monitor.FlowID) (monitor.Flow, monitor.Series, bool)
	// Points are those of a tunnel that ended after a moment, the oldest first.
	Points(tunnel string, since time.Time) []monitor.Point
}

// History is what the dashboard knows of the past.
type History interface {
	Query(context.Context, Query) ([]monitor.Record, error)
	// Get is the record with an ID, or ErrNoRecord.
	Get(ctx context.Context, id int64) (monitor.Record, error)
	Summary(ctx context.Context, period Period, tunnel string) (Summary, error)
}

// ErrNoRecord is returned by [History].Get for an ID that it does not have.
var ErrNoRecord = errors.New("there is no such record")

// Period is a time: since its beginning, before its end.
type Period struct {
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
}

// Order is that of records.
type Order string

// The orders.
const (
	Newest          Order = "newest"
	Slowest         Order = "slowest"
	Longest         Order = "longest"
	Largest         Order = "largest"
	Retransmissions Order = "retransmissions"
)

// Query asks for the records of flows that ended in a period.
type Query struct {
	Period
	Tunnel string       // empty: all
	Cause  doctor.Cause // empty: all
	Order  Order
	Limit  int
}

// Summary is what many flows of a period have in common.
type Summary struct {
	Period             Period                 `json:"period"`
	Flows              int64                  `json:"flows"`
	BytesUp            int64                  `json:"bytes_up"`
	BytesDown          int64                  `json:"bytes_down"`
	RetransmittedShare float64                `json:"retransmitted_share"` // negative: not known
	TransferSeconds    []Quantile             `json:"transfer_seconds"`    // by growing share; empty: no flows
	GoodputBps         []Quantile             `json:"goodput_bps"`
	Causes             map[doctor.Cause]int64 `json:"causes"` // flows, by what limited them for the longest
}

// Quantile says that a share of the flows has at most a value.
type Quantile struct {
	Share float64 `json:"share"`
	Value float64 `json:"value"`
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
	for i := range records {
		d.ended.add(&records[i])
	}
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

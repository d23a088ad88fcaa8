package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/find/doctor"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/words/ipprefix"
	"longhaul/internal/words/printable"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/units"
)

// Bounds of the number of records per request.
const (
	maxRecords   = 500
	usualRecords = 50
)

// requestError is an invalid request with its HTTP status.
type requestError struct {
	status int
	text   string
}

func (e *requestError) Error() string { return e.text }

func wrong(text string) error { return &requestError{http.StatusBadRequest, text} }

func missing(text string) error { return &requestError{http.StatusNotFound, text} }

var errNoHistory = missing("this relay keeps no history: set history in its configuration")

var errNoSample = &requestError{http.StatusServiceUnavailable, "the relay has just started: there is no sample yet"}

func fail(w http.ResponseWriter, status int, text string) {
	reply(w, status, map[string]string{"error": text})
}

func reply(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil { // NaN or infinity
		status, b = http.StatusInternalServerError, []byte(`{"error":"the answer cannot be written as JSON"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n'))
}

// json makes a handler of a function that returns a value.
func (d *Dashboard) json(answer func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := answer(r)
		fix := remedy.Of(err) // errors of a database have one
		var bad *requestError
		switch {
		case err == nil:
			reply(w, http.StatusOK, v)
		case errors.As(err, &bad):
			fail(w, bad.status, bad.text)
		case errors.Is(err, history.ErrNoRecord):
			fail(w, http.StatusNotFound, "the history has no such record")
		case errors.Is(err, history.ErrDisplaced):
			fail(w, http.StatusBadRequest, err.Error()+"; choose a later time, or all relays, sites and clients")
		case fix != "":
			d.lines.Log(slog.LevelWarn, "the dashboard cannot read the database", nil, slog.Any("error", err), slog.String("remedy", fix))
			fail(w, http.StatusServiceUnavailable, remedy.Line(err))
		default:
			d.lines.Log(slog.LevelWarn, "the dashboard cannot answer", nil, slog.String("path", printable.String(r.URL.Path)), slog.Any("error", err))
			fail(w, http.StatusInternalServerError, "cannot read the data; the relay's log has the cause")
		}
	}
}

func (d *Dashboard) snapshot() (*monitor.Snapshot, error) {
	if s := d.monitor.Snapshot(); s.Sequence > 0 {
		return s, nil
	}
	return nil, errNoSample
}

// answered applies a view to the latest snapshot.
func answered(d *Dashboard, v view, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	s, err := d.snapshot()
	if err != nil {
		return nil, err
	}
	return v(s)
}

func (d *Dashboard) overviewOf(*http.Request) (any, error) { return answered(d, d.overview(), nil) }
func (d *Dashboard) causesOf(*http.Request) (any, error)   { return answered(d, d.causes, nil) }
func (d *Dashboard) pairsOf(*http.Request) (any, error)    { return answered(d, d.pairs, nil) }

func (d *Dashboard) flowsOf(r *http.Request) (any, error) {
	s, err := parseSelection(r.URL.Query())
	return answered(d, d.flows(s), err)
}

func (d *Dashboard) flowOf(r *http.Request) (any, error) {
	v, err := d.flow(r.Context(), r.PathValue("id"), r.URL.Query().Get("start"))
	return answered(d, v, err)
}

func (d *Dashboard) tunnelOf(r *http.Request) (any, error) {
	return answered(d, d.tunnel(r.PathValue("id")), nil)
}

func (d *Dashboard) tunnelsOf(*http.Request) (any, error) {
	s, err := d.snapshot()
	if err != nil {
		return nil, err
	}
	return s.Tunnels, nil
}

// eventsOf returns the latest changes of state of a kind, the newest first; without a kind all.
func (d *Dashboard) eventsOf(r *http.Request) (any, error) {
	within, err := parseAgo(r.URL.Query().Get("since"), 0)
	if err != nil {
		return nil, err
	}
	var since time.Time
	if within > 0 {
		since = time.Now().Add(-within)
	}
	kind, found := r.URL.Query().Get("kind"), []flow.Event{}
	for _, e := range slices.Backward(d.events(since)) {
		if len(found) < maxRecords && (kind == "" || e.Kind == kind) {
			found = append(found, e)
		}
	}
	return map[string]any{"events": found}, nil
}

func (d *Dashboard) pointsOf(r *http.Request) (any, error) {
	within, err := parseAgo(r.URL.Query().Get("since"), chartTime)
	if err != nil {
		return nil, err
	}
	return d.points(r.URL.Query().Get("tunnel"), time.Now().Add(-within)), nil
}

// recordsOf returns records of the history, or the remembered ones without a
// history.
func (d *Dashboard) recordsOf(r *http.Request) (any, error) {
	q := r.URL.Query()
	p, err := parsePeriod(q.Get("since"), q.Get("until"), 24*time.Hour)
	if err != nil {
		return nil, err
	}
	var name flow.Name
	if text := q.Get("name"); text != "" {
		if name, err = flow.ParseName(text); err != nil {
			return nil, wrong(err.Error())
		}
		if q.Get("since") == "" {
			p.Since = time.Time{} // names are rare enough
		}
	}
	want := history.Query{
		Name:  name,
		Since: p.Since, Until: p.Until, Cause: doctor.Cause(q.Get("cause")), Order: history.Order(q.Get("order")), Limit: usualRecords,
	}
	if want.Selection, err = selectionOf(q); err != nil {
		return nil, err
	}
	if want.Order == "" {
		want.Order = history.Newest
	}
	if !slices.Contains(history.Orders(), want.Order) {
		return nil, wrong(fmt.Sprintf("order is one of %q", history.Orders()))
	}
	if text := q.Get("limit"); text != "" {
		if want.Limit, err = strconv.Atoi(text); err != nil || want.Limit < 1 || want.Limit > maxRecords {
			return nil, wrong("limit is a number from 1 to " + strconv.Itoa(maxRecords))
		}
	}
	type records struct {
		History  bool             `json:"history"`  // the records are from a history
		Database bool             `json:"database"` // that of many relays
		Records  []monitor.Record `json:"records"`
	}
	if from := d.source(r); from != nil {
		found, err := from.Query(r.Context(), want)
		_, many := from.(Database)
		return records{true, many, judgeAll(append([]monitor.Record{}, found...))}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return records{false, false, judgeAll(d.ended.query(want))}, nil
}

func judgeAll(all []monitor.Record) []monitor.Record {
	for i := range all {
		judge(&all[i])
	}
	return all
}

// judge fills in the levels of a record.
func judge(r *monitor.Record) {
	if r != nil {
		r.ClientLeg.RetransmittedLevel, r.TargetLeg.RetransmittedLevel = r.ClientLeg.Sent().Level(), r.TargetLeg.Sent().Level()
	}
}

func (d *Dashboard) recordOf(r *http.Request) (any, error) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		return nil, wrong("a record's ID is a number")
	}
	h := d.source(r)
	if h == nil {
		return nil, errNoHistory
	}
	record, err := h.Get(r.Context(), id)
	judge(&record)
	return record, err
}

func (d *Dashboard) summaryOf(r *http.Request) (any, error) {
	from, p, of, err := d.pastPeriod(r)
	if err != nil {
		return nil, err
	}
	return from.Summary(r.Context(), p, of)
}

// chartOf returns the points of a period.
func (d *Dashboard) chartOf(r *http.Request) (any, error) {
	from, p, of, err := d.pastPeriod(r)
	if err != nil {
		return nil, err
	}
	return from.Series(r.Context(), p, of)
}

// placesOf lists the relays, sites and tunnels that the database has.
func (d *Dashboard) placesOf(r *http.Request) (any, error) {
	if db := d.many(); db != nil {
		return db.Places(r.Context())
	}
	return nil, missing("this dashboard reads no database: set dashboard.database in the relay's configuration")
}

// selectionOf reads which flows a request is about.
func selectionOf(q url.Values) (of history.Selection, err error) {
	of = history.Selection{Tunnel: q.Get("tunnel"), Relay: q.Get("relay"), Site: q.Get("site")}
	if text := q.Get("client"); text != "" {
		if of.Client, err = ipprefix.Parse(text); err != nil {
			return of, wrong(remedy.Line(err))
		}
	}
	return of, nil
}

// pastPeriod returns what answers, and the requested period and flows.
func (d *Dashboard) pastPeriod(r *http.Request) (history.Source, history.Period, history.Selection, error) {
	q := r.URL.Query()
	p, err := parsePeriod(q.Get("since"), q.Get("until"), 24*time.Hour)
	if err != nil {
		return nil, p, history.Selection{}, err
	}
	of, err := selectionOf(q)
	if err != nil {
		return nil, p, of, err
	}
	from := d.source(r)
	if from == nil {
		return nil, p, of, errNoHistory
	}
	return from, p, of, nil
}

// compareOf compares two periods.
func (d *Dashboard) compareOf(r *http.Request) (any, error) {
	q := r.URL.Query()
	var both [2]history.Period
	for i, which := range []string{"before", "after"} {
		var err error
		if both[i], err = parsePeriod(q.Get(which+"_since"), q.Get(which+"_until"), 0); err != nil {
			return nil, err
		}
	}
	of, err := selectionOf(q)
	if err != nil {
		return nil, err
	}
	from := d.source(r)
	if from == nil {
		return nil, errNoHistory
	}
	return from.Compare(r.Context(), both[0], both[1], of)
}

// parsePeriod parses the begin and the end of a period. Without a begin the
// period has the usual length.
func parsePeriod(since, until string, usual time.Duration) (history.Period, error) {
	now := time.Now()
	if since == "" && usual == 0 {
		return history.Period{}, wrong("missing begin of a period: " +
			"give a time such as 2026-01-31T12:00:00Z, or an age such as 24h or 7d")
	}
	// The period includes records that end right now.
	p := history.Period{Since: now.Add(-usual), Until: now.Add(time.Second)}
	var err error
	if since != "" {
		if p.Since, _, err = units.ParseMoment(since, now); err != nil {
			return p, wrong(remedy.Line(err))
		}
	}
	if until != "" {
		if _, p.Until, err = units.ParseMoment(until, now); err != nil {
			return p, wrong(remedy.Line(err))
		}
	}
	if !p.Since.Before(p.Until) {
		return p, wrong("the period ends before it begins")
	}
	return p, nil
}

func parseAgo(text string, usual time.Duration) (time.Duration, error) {
	if text == "" {
		return usual, nil
	}
	ago, err := units.ParseDuration(text)
	if err != nil {
		return 0, wrong(err.Error() + "; write it like 10m, 24h or 7d")
	}
	return ago, nil
}

// viewFor returns the view of a live request, which lasts as long as ctx.
func (d *Dashboard) viewFor(ctx context.Context, q url.Values) (view, error) {
	switch q.Get("view") {
	case "overview":
		return d.overview(), nil
	case "flows":
		s, err := parseSelection(q)
		return d.flows(s), err
	case "flow":
		return d.flow(ctx, q.Get("id"), q.Get("start"))
	case "tunnel":
		return d.tunnel(q.Get("name")), nil
	case "causes":
		return d.causes, nil
	case "pairs":
		return d.pairs, nil
	case "head":
		return func(s *monitor.Snapshot) (any, error) {
			return struct {
				Head head `json:"head"`
			}{d.headOf(s)}, nil
		}, nil
	}
	return nil, wrong("view is one of overview, flows, flow, tunnel, causes, pairs, head")
}

// whole rounds to an integer, and turns NaN and infinity, which JSON cannot
// express, into 0.
func whole(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	return math.Round(v)
}

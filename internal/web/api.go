package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"longhaul/internal/doctor"
	"longhaul/internal/monitor"
	"longhaul/internal/monitor/history"
)

// Bounds of what a request can ask for.
const (
	maxRecords    = 500
	usualRecords  = 50
	maxPeriodDays = 3660
)

// requestError is what is wrong with a request.
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
	if err != nil { // a number that is none
		status, b = http.StatusInternalServerError, []byte(`{"error":"the answer cannot be written as JSON"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n'))
}

// json makes a handler of what answers with a value.
func (d *Dashboard) json(answer func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := answer(r)
		var bad *requestError
		switch {
		case err == nil:
			reply(w, http.StatusOK, v)
		case errors.As(err, &bad):
			fail(w, bad.status, bad.text)
		case errors.Is(err, history.ErrNoRecord):
			fail(w, http.StatusNotFound, "the history has no such record")
		default:
			d.log.Warn("the dashboard cannot answer", "path", r.URL.Path, "error", err)
			fail(w, http.StatusInternalServerError, "this could not be read; the relay's log says why")
		}
	}
}

func (d *Dashboard) snapshot() (*monitor.Snapshot, error) {
	if s := d.monitor.Snapshot(); s.Sequence > 0 {
		return s, nil
	}
	return nil, errNoSample
}

// answered makes an answer of a view's.
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

func (d *Dashboard) pointsOf(r *http.Request) (any, error) {
	within, err := parseAgo(r.URL.Query().Get("since"), chartTime)
	if err != nil {
		return nil, err
	}
	return d.points(r.URL.Query().Get("tunnel"), time.Now().Add(-within)), nil
}

// recordsOf answers with records: of the history, or of what is remembered.
func (d *Dashboard) recordsOf(r *http.Request) (any, error) {
	q := r.URL.Query()
	p, err := parsePeriod(q.Get("since"), q.Get("until"), 24*time.Hour)
	if err != nil {
		return nil, err
	}
	want := history.Query{
		Since: p.Since, Until: p.Until, Tunnel: q.Get("tunnel"), Cause: doctor.Cause(q.Get("cause")), Order: history.Order(q.Get("order")), Limit: usualRecords,
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
		History bool             `json:"history"` // they are from there
		Records []monitor.Record `json:"records"`
	}
	if h := d.past(); h != nil {
		found, err := h.Query(r.Context(), want)
		return records{true, append([]monitor.Record{}, found...)}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return records{false, d.ended.query(want)}, nil
}

func (d *Dashboard) recordOf(r *http.Request) (any, error) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		return nil, wrong("a record's ID is a number")
	}
	h := d.past()
	if h == nil {
		return nil, errNoHistory
	}
	return h.Get(r.Context(), id)
}

func (d *Dashboard) summaryOf(r *http.Request) (any, error) {
	h, p, err := d.pastPeriod(r)
	if err != nil {
		return nil, err
	}
	return h.Summary(r.Context(), p, r.URL.Query().Get("tunnel"))
}

// chartOf answers with the course of a period.
func (d *Dashboard) chartOf(r *http.Request) (any, error) {
	h, p, err := d.pastPeriod(r)
	if err != nil {
		return nil, err
	}
	return h.Series(r.Context(), p, r.URL.Query().Get("tunnel"))
}

// pastPeriod is the history, and the period of it that is asked for.
func (d *Dashboard) pastPeriod(r *http.Request) (History, history.Period, error) {
	q := r.URL.Query()
	p, err := parsePeriod(q.Get("since"), q.Get("until"), 24*time.Hour)
	if err != nil {
		return nil, p, err
	}
	h := d.past()
	if h == nil {
		return nil, p, errNoHistory
	}
	return h, p, nil
}

// compareOf sets two periods side by side.
func (d *Dashboard) compareOf(r *http.Request) (any, error) {
	q := r.URL.Query()
	var both [2]history.Period
	for i, which := range []string{"before", "after"} {
		var err error
		if both[i], err = parsePeriod(q.Get(which+"_since"), q.Get(which+"_until"), 0); err != nil {
			return nil, err
		}
	}
	h := d.past()
	if h == nil {
		return nil, errNoHistory
	}
	return h.Compare(r.Context(), both[0], both[1], q.Get("tunnel"))
}

// parsePeriod reads two times, each as RFC 3339 or as how long ago it was.
func parsePeriod(since, until string, usual time.Duration) (p history.Period, err error) {
	now := time.Now()
	if since == "" && usual == 0 {
		return p, wrong("say since when: a time such as 2026-01-31T12:00:00Z, or how long ago, such as 24h or 7d")
	}
	if p.Since, err = parseMoment(since, now.Add(-usual), now); err != nil {
		return p, err
	}
	// What has just ended belongs to it.
	if p.Until, err = parseMoment(until, now.Add(time.Second), now); err != nil {
		return p, err
	}
	if !p.Since.Before(p.Until) {
		return p, wrong("the period ends before it begins")
	}
	return p, nil
}

func parseMoment(text string, usual, now time.Time) (time.Time, error) {
	if text == "" {
		return usual, nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	ago, err := parseAgo(text, 0)
	return now.Add(-ago), err
}

func parseAgo(text string, usual time.Duration) (time.Duration, error) {
	if text == "" {
		return usual, nil
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.ParseFloat(days, 64); err == nil && n >= 0 && n <= maxPeriodDays {
			return time.Duration(n * 24 * float64(time.Hour)), nil
		}
	} else if v, err := time.ParseDuration(text); err == nil && v >= 0 {
		return v, nil
	}
	return 0, wrong("a time is written as 2026-01-31T12:00:00Z, or as how long ago it was: 10m, 24h, 7d")
}

// viewFor is the view that a live request asks for, which lasts as long as ctx.
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
	case "head":
		return func(s *monitor.Snapshot) (any, error) {
			return struct {
				Head head `json:"head"`
			}{d.headOf(s)}, nil
		}, nil
	}
	return nil, wrong("view is one of overview, flows, flow, tunnel, causes, head")
}

// whole rounds what nobody reads to fractions, and is never what JSON cannot say.
func whole(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	return math.Round(v)
}

package web

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"longhaul/internal/sys/httpd"
	"longhaul/internal/sys/loglimit"
	"longhaul/internal/watch/monitor"
)

const (
	// writeTimeout bounds the time to send an event to a reader; a browser
	// reconnects by itself.
	writeTimeout = 5 * time.Second
	// heartbeat is the interval of comments that keep a stream open without
	// snapshots, and detect a dead one.
	heartbeat = 15 * time.Second
)

// live sends server-sent events: a view of the latest snapshot, then of each
// new one. A slow reader gets the newest.
func (d *Dashboard) live(w http.ResponseWriter, r *http.Request) {
	v, err := d.viewFor(r.Context(), r.URL.Query())
	if err != nil {
		d.json(func(*http.Request) (any, error) { return nil, err })(w, r)
		return
	}
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", "GET")
		fail(w, http.StatusMethodNotAllowed, "live updates need the method GET")
		return
	}
	leave, ok := httpd.Keep(w, r)
	if !ok {
		w.Header().Set("Retry-After", "5")
		fail(w, http.StatusServiceUnavailable, "as many readers as can be have live updates: try again, or reload now and then")
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	out := stream{w, http.NewResponseController(w), d.lines}
	updates := d.monitor.Subscribe(r.Context())
	if !out.send("retry: 1000\n\n") {
		return
	}
	alive := time.NewTicker(heartbeat)
	defer alive.Stop()
	for {
		select {
		case <-r.Context().Done():
			return
		case <-leave:
			return
		case s, ok := <-updates:
			// Both may be ready; a reader that is no longer admitted gets
			// nothing more.
			if !ok || r.Context().Err() != nil || s.Sequence > 0 && !out.event(v, s) {
				return
			}
		case <-alive.C:
			if !out.send(": still here\n\n") {
				return
			}
		}
	}
}

// stream is the connection to a reader of events.
type stream struct {
	http.ResponseWriter
	control *http.ResponseController
	lines   *loglimit.Limiter
}

// event sends a view of a snapshot. It returns false if the reader is gone.
func (o stream) event(v view, s *monitor.Snapshot) bool {
	shown, err := v(s)
	name := ""
	if err != nil {
		name = "event: trouble\n"
		text := "cannot read the data; the relay's log has the cause"
		var bad *requestError
		if errors.As(err, &bad) {
			text = bad.text
		} else {
			o.lines.Log(slog.LevelWarn, "the dashboard cannot answer a reader of live updates", nil, slog.Any("error", err))
		}
		shown = map[string]string{"error": text}
	}
	b, err := json.Marshal(shown)
	if err != nil {
		return false // NaN or infinity
	}
	return o.send(name + "data: " + string(b) + "\n\n")
}

func (o stream) send(text string) bool {
	_ = o.control.SetWriteDeadline(time.Now().Add(writeTimeout))
	if _, err := o.Write([]byte(text)); err != nil {
		return false
	}
	return o.control.Flush() == nil
}

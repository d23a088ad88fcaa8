package web

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"longhaul/internal/httpd"
	"longhaul/internal/monitor"
)

const (
	// writePatience is how long a reader may take for an event before it is
	// dropped; a browser comes back by itself.
	writePatience = 5 * time.Second
	// beat keeps a stream alive, and finds out whether it is, where there are no
	// snapshots.
	beat = 15 * time.Second
)

// live answers with server-sent events: a view of the last snapshot, and of each
// new one. A reader that is slower than they come gets the newest.
func (d *Dashboard) live(w http.ResponseWriter, r *http.Request) {
	v, err := d.viewFor(r.Context(), r.URL.Query())
	if err != nil {
		d.json(func(*http.Request) (any, error) { return nil, err })(w, r)
		return
	}
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", "GET")
		fail(w, http.StatusMethodNotAllowed, "live updates are asked for with GET")
		return
	}
	leave, ok := httpd.Keep(w, r)
	if !ok {
		w.Header().Set("Retry-After", "5")
		fail(w, http.StatusServiceUnavailable, "as many readers as can be have live updates: try again, or reload now and then")
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	out := stream{w, http.NewResponseController(w), d.log}
	updates := d.monitor.Subscribe(r.Context())
	if !out.send("retry: 1000\n\n") {
		return
	}
	alive := time.NewTicker(beat)
	defer alive.Stop()
	for {
		select {
		case <-r.Context().Done():
			return
		case <-leave:
			return
		case s, ok := <-updates:
			// Both may be ready; who is no longer admitted gets nothing more.
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

// stream is a reader of events.
type stream struct {
	http.ResponseWriter
	control *http.ResponseController
	log     *slog.Logger
}

// event sends a view of a snapshot. It returns false if nobody takes it.
func (o stream) event(v view, s *monitor.Snapshot) bool {
	shown, err := v(s)
	name := ""
	if err != nil {
		name = "event: trouble\n"
		text := "this could not be read; the relay's log says why"
		var bad *requestError
		if errors.As(err, &bad) {
			text = bad.text
		} else {
			o.log.Warn("the dashboard cannot answer a reader of live updates", "error", err)
		}
		shown = map[string]string{"error": text}
	}
	b, err := json.Marshal(shown)
	if err != nil {
		return false // a number that is none
	}
	return o.send(name + "data: " + string(b) + "\n\n")
}

func (o stream) send(text string) bool {
	_ = o.control.SetWriteDeadline(time.Now().Add(writePatience))
	if _, err := o.Write([]byte(text)); err != nil {
		return false
	}
	return o.control.Flush() == nil
}

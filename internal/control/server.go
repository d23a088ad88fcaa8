package control

import (
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"time"

	"longhaul/internal/httpd"
)

// Bounds of one request.
const (
	maxHeaderBytes = 8 << 10
	maxStatusCalls = 2
)

// limits are how long a client, and the relay behind the server, may take.
type limits struct{ request, status, reply time.Duration }

var defaultLimits = limits{request: 5 * time.Second, status: 5 * time.Second, reply: 20 * time.Second}

// Endpoint is something else that the socket answers to.
type Endpoint struct {
	Pattern string // of http.ServeMux
	Handler http.Handler
}

// Serve answers GET /v1/status with what status returns, as JSON, and further
// endpoints, until the server is closed. Failures of single connections go to
// log at debug level.
func Serve(l net.Listener, log *slog.Logger, status func() any, more ...Endpoint) *httpd.Server {
	return serve(l, log, status, defaultLimits, more...)
}

func serve(l net.Listener, log *slog.Logger, status func() any, limits limits, more ...Endpoint) *httpd.Server {
	mux := http.NewServeMux()
	for _, e := range more {
		mux.Handle(e.Pattern, e.Handler)
	}
	// A status that takes long must not pile up.
	calls := make(chan struct{}, maxStatusCalls)
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, r *http.Request) {
		select {
		case calls <- struct{}{}:
		case <-time.After(limits.status):
			http.Error(w, "the relay does not answer in time", http.StatusServiceUnavailable)
			return
		}
		reply := make(chan []byte, 1)
		failed := make(chan error, 1)
		go func() {
			defer func() { <-calls }()
			body, err := json.Marshal(status())
			if err != nil {
				failed <- err
				return
			}
			reply <- body
		}()
		select {
		case body := <-reply:
			w.Header().Set("Content-Type", "application/json")
			w.Write(append(body, '\n'))
		case err := <-failed:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		case <-time.After(limits.status):
			http.Error(w, "the relay does not answer in time", http.StatusServiceUnavailable)
		}
	})
	return httpd.Serve(l, mux, log, httpd.Limits{Request: limits.request, Reply: limits.reply, HeaderBytes: maxHeaderBytes})
}

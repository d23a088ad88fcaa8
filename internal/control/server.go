package control

import (
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Bounds of one request.
const (
	maxHeaderBytes = 8 << 10
	maxStatusCalls = 2
)

// limits are how long a client, and the relay behind the server, may take.
type limits struct{ request, status, reply time.Duration }

var defaultLimits = limits{request: 5 * time.Second, status: 5 * time.Second, reply: 20 * time.Second}

// Server answers on a control socket.
type Server struct {
	http *http.Server
	done chan struct{}
}

// Serve answers GET /v1/status with what status returns, as JSON, until Close.
// Failures of single connections go to log at debug level.
func Serve(l net.Listener, log *slog.Logger, status func() any) *Server {
	return serve(l, log, status, defaultLimits)
}

func serve(l net.Listener, log *slog.Logger, status func() any, limits limits) *Server {
	mux := http.NewServeMux()
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
	s := &Server{
		http: &http.Server{
			Handler:           http.MaxBytesHandler(mux, 0),
			ReadHeaderTimeout: limits.request,
			ReadTimeout:       limits.request,
			WriteTimeout:      limits.reply,
			MaxHeaderBytes:    maxHeaderBytes,
			ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		},
		done: make(chan struct{}),
	}
	// One request a connection: nobody holds a place between requests.
	s.http.SetKeepAlivesEnabled(false)
	go func() {
		defer close(s.done)
		s.http.Serve(l)
	}()
	return s
}

// Close ends all connections, removes the socket and waits until it is gone.
func (s *Server) Close() {
	s.http.Close()
	<-s.done
}

package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	"longhaul/internal/sys/httpd"
)

// Bounds of requests.
const (
	maxHeaderBytes   = 8 << 10
	maxArgumentBytes = 16 << 10
	maxStatusCalls   = 2
	maxVerbs         = 8 // at the same time; below maxClients
)

// Handlers produce the answers of a relay.
type Handlers struct {
	// Status returns the answer to GET /v1/status, encoded as JSON.
	Status func() any

	// Do executes POST /v1/VERB and returns the answer, encoded as JSON. It may
	// take its time: ctx ends when the client goes away or the server is
	// closed. [PeerOf] returns the client. A [*Refusal] reaches the client
	// unchanged; [ErrUnknownVerb] reports an unknown verb. Nil knows no verb.
	Do func(ctx context.Context, verb string, arguments url.Values) (any, error)

	More []Endpoint
}

// ErrUnknownVerb is returned by [Handlers].Do for an unknown verb.
var ErrUnknownVerb = errors.New("no such verb")

// Refusal is the reason why a relay did not execute a request, with a remedy.
type Refusal struct {
	Problem string `json:"error"`
	Hint    string `json:"hint,omitempty"`
}

func (r *Refusal) Error() string { return r.Problem }

// limits bound the time of a client and of the relay behind the server.
type limits struct{ request, status, reply time.Duration }

var defaultLimits = limits{request: 5 * time.Second, status: 5 * time.Second, reply: 20 * time.Second}

// Endpoint is an additional target of the socket.
type Endpoint struct {
	Pattern string // of http.ServeMux
	Handler http.Handler
}

// closeGrace is the time in which a closing server still answers pending
// requests.
const closeGrace = time.Second

// Server serves a control socket.
type Server struct {
	handlers Handlers
	limits   limits
	log      *slog.Logger
	socket   *guard
	clients  httpd.Clients
	http     *http.Server
	done     chan struct{}

	statusCalls chan struct{} // bounds concurrent status requests
	verbs       chan struct{}
	cancel      context.CancelFunc // of the running verbs
}

// Serve serves a listener of [Listen] or [ListenAside] until Close. It logs
// failures of single connections at debug level.
func Serve(l net.Listener, log *slog.Logger, handlers Handlers) *Server {
	return serve(l, log, handlers, defaultLimits)
}

func serve(l net.Listener, log *slog.Logger, handlers Handlers, limits limits) *Server {
	s := newServer(log, handlers, limits)
	s.socket = l.(*guard)
	go func() {
		defer close(s.done)
		s.http.Serve(l)
	}()
	return s
}

// newServer makes a server that answers once its http serves a listener.
func newServer(log *slog.Logger, handlers Handlers, limits limits) *Server {
	ctx, cancel := context.WithCancel(context.Background())
	s := &Server{
		handlers: handlers, limits: limits, log: log,
		done:        make(chan struct{}),
		statusCalls: make(chan struct{}, maxStatusCalls),
		verbs:       make(chan struct{}, maxVerbs),
		cancel:      cancel,
	}
	mux := http.NewServeMux()
	for _, e := range handlers.More {
		mux.Handle(e.Pattern, e.Handler)
	}
	mux.HandleFunc("GET /v1/status", s.status)
	mux.HandleFunc("POST /v1/{verb}", s.verb)
	mux.HandleFunc("POST /v1/status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "status needs the method GET", http.StatusMethodNotAllowed)
	})
	s.http = &http.Server{
		Handler:           http.MaxBytesHandler(asked(mux), maxArgumentBytes),
		ReadHeaderTimeout: limits.request,
		ReadTimeout:       limits.request,
		WriteTimeout:      limits.reply,
		MaxHeaderBytes:    maxHeaderBytes,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext:       withClient,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	s.clients.Count(s.http)
	// One request per connection: no client holds a place between requests.
	s.http.SetKeepAlivesEnabled(false)
	return s
}

// asked notes that clients have sent a request.
func asked(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		enter(r, reading)
		next.ServeHTTP(w, r)
	})
}

func (s *Server) status(w http.ResponseWriter, r *http.Request) {
	const late = "the relay does not answer in time"
	if r.ProtoAtLeast(1, 1) {
		w.WriteHeader(http.StatusProcessing) // a sign of life: see askAwake
	}
	deadline := time.NewTimer(s.limits.status)
	defer deadline.Stop()
	select {
	case s.statusCalls <- struct{}{}:
	case <-r.Context().Done():
		return // the client has gone, or lost its place
	case <-deadline.C:
		http.Error(w, late, http.StatusServiceUnavailable)
		return
	}
	ended := make(chan any, 1)
	go func() {
		defer func() { <-s.statusCalls }()
		ended <- s.handlers.Status()
	}()
	deadline.Reset(s.limits.status)
	select {
	case status := <-ended:
		writeJSON(w, http.StatusOK, status)
	case <-r.Context().Done():
	case <-deadline.C:
		http.Error(w, late, http.StatusServiceUnavailable)
	}
}

// verb answers one POST. Refusals have status 422, so that a client can tell
// them from errors of HTTP or of another version.
func (s *Server) verb(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	select {
	case s.verbs <- struct{}{}:
		defer func() { <-s.verbs }()
	default:
		refuse(w, &Refusal{fmt.Sprintf("the relay is busy with %d other requests", maxVerbs), "try again when they are done"})
		return
	}
	enter(r, waiting)
	// The client may wait as long as the verb takes. The server still notices
	// that it hangs up, and ends the request's context.
	controller := http.NewResponseController(w)
	_ = controller.SetReadDeadline(time.Time{})
	answer, err := s.do(r)
	enter(r, reading)
	_ = controller.SetWriteDeadline(time.Now().Add(s.limits.reply))

	var refusal *Refusal
	switch {
	case errors.Is(err, ErrUnknownVerb):
		http.Error(w, err.Error(), http.StatusNotFound)
	case errors.As(err, &refusal):
		refuse(w, refusal)
	case err != nil:
		refuse(w, &Refusal{Problem: err.Error()})
	default:
		writeJSON(w, http.StatusOK, answer)
	}
}

func (s *Server) do(r *http.Request) (any, error) {
	if s.handlers.Do == nil {
		return nil, ErrUnknownVerb
	}
	return s.handlers.Do(r.Context(), r.PathValue("verb"), r.Form)
}

func refuse(w http.ResponseWriter, refusal *Refusal) {
	writeJSON(w, http.StatusUnprocessableEntity, refusal)
}

func writeJSON(w http.ResponseWriter, status int, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	body = append(body, '\n')
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// Close cancels running verbs, ends all connections and removes the socket.
// Pending requests have a moment to be answered.
func (s *Server) Close() {
	s.socket.Close()
	<-s.done
	s.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
	defer cancel()
	s.clients.Finish(ctx, s.http)
}

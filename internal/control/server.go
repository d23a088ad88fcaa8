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

	"longhaul/internal/httpd"
)

// Bounds of requests.
const (
	maxHeaderBytes   = 8 << 10
	maxArgumentBytes = 16 << 10
	maxStatusCalls   = 2
	maxVerbs         = 8 // at the same time; fewer than there are places for clients
)

// Handlers are what a relay answers with.
type Handlers struct {
	// Status returns what GET /v1/status answers, as JSON.
	Status func() any

	// Do carries out POST /v1/VERB and returns what it answers, as JSON. It
	// may take its time: ctx ends when the client goes away or the server is
	// closed; [PeerOf] says who asks. An error that is a [*Refusal] reaches the client as it is;
	// [ErrUnknownVerb] says that there is no such verb. Nil knows none.
	Do func(ctx context.Context, verb string, arguments url.Values) (any, error)

	More []Endpoint
}

// ErrUnknownVerb is returned by [Handlers].Do for a verb that it does not know.
var ErrUnknownVerb = errors.New("no such verb")

// Refusal is why a relay did not do what it was asked for, and what to do.
type Refusal struct {
	Problem string `json:"error"`
	Hint    string `json:"hint,omitempty"`
}

func (r *Refusal) Error() string { return r.Problem }

// limits are how long a client, and the relay behind the server, may take.
type limits struct{ request, status, reply time.Duration }

var defaultLimits = limits{request: 5 * time.Second, status: 5 * time.Second, reply: 20 * time.Second}

// Endpoint is something else that the socket answers to.
type Endpoint struct {
	Pattern string // of http.ServeMux
	Handler http.Handler
}

// lastWords is how long a closing server lets those answer whom somebody asked.
const lastWords = time.Second

// Server answers on a control socket.
type Server struct {
	handlers Handlers
	limits   limits
	log      *slog.Logger
	socket   *guard
	clients  httpd.Clients
	http     *http.Server
	done     chan struct{}

	statusCalls chan struct{} // a status that takes long must not pile up
	verbs       chan struct{}
	cancel      context.CancelFunc // of the running verbs
}

// Serve answers on a listener that [Listen] or [ListenAside] made, until Close.
// Failures of single connections go to log at debug level.
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
		http.Error(w, "status is asked for with GET", http.StatusMethodNotAllowed)
	})
	s.http = &http.Server{
		Handler:           http.MaxBytesHandler(mux, maxArgumentBytes),
		ReadHeaderTimeout: limits.request,
		ReadTimeout:       limits.request,
		WriteTimeout:      limits.reply,
		MaxHeaderBytes:    maxHeaderBytes,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext:       withPeer,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	s.clients.Count(s.http)
	// One request a connection: nobody holds a place between requests.
	s.http.SetKeepAlivesEnabled(false)
	return s
}

func (s *Server) status(w http.ResponseWriter, _ *http.Request) {
	const late = "the relay does not answer in time"
	deadline := time.NewTimer(s.limits.status)
	defer deadline.Stop()
	select {
	case s.statusCalls <- struct{}{}:
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
	case <-deadline.C:
		http.Error(w, late, http.StatusServiceUnavailable)
	}
}

// verb answers one POST. Refusals have status 422, so that a client can tell
// them from what a server of another version, or HTTP itself, has to say.
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
	// The client may wait as long as the verb takes; that it hung up is still
	// noticed, and ends the request's context.
	controller := http.NewResponseController(w)
	_ = controller.SetReadDeadline(time.Time{})
	answer, err := s.do(r)
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

// Close ends all connections, removes the socket and waits until it is gone.
// Verbs are told to end; whoever has asked has a moment to be answered.
func (s *Server) Close() {
	s.socket.Close()
	<-s.done
	s.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), lastWords)
	defer cancel()
	s.clients.Finish(ctx, s.http)
}

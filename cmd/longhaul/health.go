//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"longhaul/internal/relay"
	"longhaul/internal/resources"
)

// loopPatience is how long an event loop may take to answer until it counts as
// stuck. The longest turns are those of a status with very many flows.
const loopPatience = time.Second

// health answers whether the relay lives and whether its tunnels can be used,
// for those who decide where connections go. No answer costs more for many
// flows.
type health struct {
	overview   func() relay.Snapshot
	responsive func(context.Context) (time.Duration, error)
	tight      func() []resources.Resource // what is short, or soon will be
}

// errNoTunnel is returned for a name that no tunnel has.
var errNoTunnel = errors.New("no tunnel has this name")

// ignoreShedding is the query with which a relay that sheds counts as ready.
// Those ask so who would take a relay's standing flows away with its new ones.
const ignoreShedding = "ignore=shedding"

// handler answers GET and HEAD of /healthz, /readyz and /readyz/TUNNEL with
// 200, 503 or 404 and a line of text.
func (h *health) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		answer(w, "ok", h.alive(r.Context()))
	})
	ready := func(w http.ResponseWriter, r *http.Request) {
		ignore := r.URL.RawQuery
		if ignore != "" && ignore != ignoreShedding {
			http.Error(w, "the only query is "+ignoreShedding, http.StatusBadRequest)
			return
		}
		answer(w, "ready", h.ready(r.Context(), r.PathValue("tunnel"), ignore != ""))
	}
	mux.HandleFunc("GET /readyz", ready)
	mux.HandleFunc("GET /readyz/{tunnel}", ready)
	return mux
}

// healthTargets are the paths that handler serves.
var healthTargets = []string{"/healthz", "/readyz", "/readyz/"}

func answer(w http.ResponseWriter, well string, err error) {
	w.Header().Set("Cache-Control", "no-store")
	switch {
	case err == nil:
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintln(w, well)
	case errors.Is(err, errNoTunnel):
		http.Error(w, err.Error(), http.StatusNotFound)
	default:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}

// alive says why the event loops do not do their work; nil if they do.
func (h *health) alive(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, loopPatience)
	defer cancel()
	_, err := h.responsive(ctx)
	return err
}

// ready says why new flows of a tunnel, or of any if it has no name, would not
// be served; nil if they would.
func (h *health) ready(ctx context.Context, tunnel string, ignoreShedding bool) error {
	s := h.overview()
	found := tunnel == ""
	var first error
	for _, t := range s.Tunnels {
		if tunnel != "" && t.Name != tunnel {
			continue
		}
		found = true
		if err := usable(t, ignoreShedding); err != nil && first == nil {
			first = err
		}
	}
	switch {
	case !found:
		return fmt.Errorf("%w: %s", errNoTunnel, tunnel)
	case first != nil:
		return first
	}
	if short := h.tight(); len(short) > 0 && !ignoreShedding {
		return fmt.Errorf("at the limit: %s", words(short))
	}
	return h.alive(ctx)
}

// usable says why a tunnel takes no new flow; nil if it does.
func usable(t relay.TunnelSnapshot, ignoreShedding bool) error {
	switch {
	case t.State == "listening", t.State == "shedding" && ignoreShedding:
		return nil
	}
	return fmt.Errorf("tunnel %s is %s", t.Name, t.State)
}

package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay"
)

// loopPatience is the timeout after which an event loop counts as stuck. The longest
// turns are those of a status with very many flows.
const loopPatience = time.Second

// readiness answers load balancers whether the relay is alive and its tunnels usable.
// No answer costs more with many flows.
type readiness struct {
	overview     func() relay.Snapshot // with what package usable decides
	responsive   func(context.Context) (time.Duration, error)
	showsReasons func(*http.Request) bool // whether a request gets reasons; nil: every request
}

// errNoTunnel is returned for a name that no tunnel has.
var errNoTunnel = errors.New("no tunnel has this name")

// Ignored has the conditions of ?ignore= that do not make a relay unready. It is for
// clients that move a relay's existing flows away when it is unready.
type Ignored struct{ shedding, hops, host bool }

// Ignorable lists the words of ?ignore=.
const Ignorable = "shedding, hops, host"

// ParseIgnored parses words separated by commas.
func ParseIgnored(text string) (Ignored, error) {
	var i Ignored
	for word := range strings.SplitSeq(text, ",") {
		switch word {
		case "":
		case "shedding":
			i.shedding = true
		case "hops":
			i.hops = true
		case "host":
			i.host = true
		default:
			return i, fmt.Errorf("cannot ignore %q", word)
		}
	}
	return i, nil
}

// handler answers GET and HEAD of /healthz, /readyz and /readyz/TUNNEL with
// 200, 503 or 404 and a line of text.
func (h *readiness) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		h.answer(w, r, "ok", h.alive(r.Context()))
	})
	ready := func(w http.ResponseWriter, r *http.Request) {
		ignore, err := ParseIgnored(r.URL.Query().Get("ignore"))
		if err != nil {
			http.Error(w, err.Error()+"; what can be ignored: "+Ignorable, http.StatusBadRequest)
			return
		}
		h.answer(w, r, "ready", h.ready(r.Context(), r.PathValue("tunnel"), ignore))
	}
	mux.HandleFunc("GET /readyz", ready)
	mux.HandleFunc("GET /readyz/{tunnel}", ready)
	return mux
}

// healthTargets are the paths that handler serves.
var healthTargets = []string{"/healthz", "/readyz", "/readyz/"}

// answer writes the result. A reason names tunnels and addresses, so only permitted
// requests get it.
func (h *readiness) answer(w http.ResponseWriter, r *http.Request, well string, err error) {
	w.Header().Set("Cache-Control", "no-store")
	if err != nil && h.showsReasons != nil && !h.showsReasons(r) {
		hidden := errors.New("not " + well + "; for the reason ask by address, localhost or a name of http_names")
		if errors.Is(err, errNoTunnel) {
			hidden = errNoTunnel
		}
		err = hidden
	}
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

// alive returns why the event loops do not work; nil if they do.
func (h *readiness) alive(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, loopPatience)
	defer cancel()
	_, err := h.responsive(ctx)
	return err
}

// ready returns why the relay would not serve new flows of a tunnel, or of any tunnel
// if the name is empty; nil if it would.
func (h *readiness) ready(ctx context.Context, tunnel string, ignore Ignored) error {
	s := h.overview()
	found := tunnel == ""
	var first error
	for i := range s.Tunnels {
		t := &s.Tunnels[i]
		if tunnel != "" && t.Name != tunnel {
			continue
		}
		found = true
		if err := unready(t, ignore); err != nil && first == nil {
			first = err
		}
	}
	switch {
	case !found:
		return fmt.Errorf("%w: %s", errNoTunnel, tunnel)
	case first != nil:
		return first
	}
	return h.alive(ctx)
}

// unready returns the first problem of a tunnel that is not ignored; nil if it serves new
// flows.
func unready(t *flow.Tunnel, ignore Ignored) error {
	for _, p := range t.Usability.Problems {
		if !ignore.ignores(p.Reason) {
			return fmt.Errorf("tunnel %s %s", t.Name, p.Detail)
		}
	}
	return nil
}

func (i Ignored) ignores(r flow.Reason) bool {
	switch r {
	case flow.ReasonShedding, flow.ReasonResources, flow.ReasonMaxFlows:
		return i.shedding
	case flow.ReasonHopsDown, flow.ReasonHopsDrained, flow.ReasonPairDown:
		return i.hops
	case flow.ReasonListener, flow.ReasonNoRules:
		return i.host
	}
	return false
}

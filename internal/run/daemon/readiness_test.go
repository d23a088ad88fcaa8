package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay"
	"longhaul/internal/carry/usable"
	"longhaul/internal/sys/resources"
	"longhaul/test/nettest"
)

// unpaired are the sources of a relay without pairs, on a host that has enough of everything.
var unpaired = usable.Options{
	Tight: func() []resources.Resource { return nil },
}

func TestHealth(t *testing.T) {
	tunnels := func(states ...string) (all []flow.Tunnel) {
		for i, state := range states {
			all = append(all, flow.Tunnel{Name: string(rune('a' + i)), State: state, Hops: []flow.Hop{{Name: "b:1", State: flow.HopUp, Usable: true}}})
		}
		return all
	}
	hops := func(states ...flow.HopState) []flow.Tunnel {
		t := flow.Tunnel{Name: "a", State: "listening"}
		for i, state := range states {
			t.Hops = append(t.Hops, flow.Hop{Name: fmt.Sprintf("b%d:1", i+1), State: state, Usable: state == flow.HopUp || state == flow.HopUntried})
		}
		return []flow.Tunnel{t}
	}
	stuck := errors.New("event loop 1 of 2 does not answer: context deadline exceeded")
	for _, tt := range []struct {
		name   string
		method string
		target string
		relay  []flow.Tunnel
		stuck  error
		tight  []resources.Resource
		status int
		text   string
	}{
		{"alive", "GET", "/healthz", tunnels("draining"), nil, nil, 200, "ok"},
		{"not alive", "GET", "/healthz", tunnels("listening"), stuck, nil, 503, "event loop 1 of 2 does not answer"},
		{"ready", "GET", "/readyz", tunnels("listening", "listening"), nil, nil, 200, "ready"},
		{"ready, in a word less", "HEAD", "/readyz", tunnels("listening"), nil, nil, 200, ""},
		{"one of two is not", "GET", "/readyz", tunnels("listening", "paused"), nil, nil, 503, "tunnel b is paused"},
		{"the other is", "GET", "/readyz/a", tunnels("listening", "paused"), nil, nil, 200, "ready"},
		{"draining", "GET", "/readyz/a", tunnels("draining"), nil, nil, 503, "tunnel a is draining"},
		{"unknown", "GET", "/readyz/c", tunnels("listening"), nil, nil, 404, "no tunnel has this name: c"},
		{"no name", "GET", "/readyz/", tunnels("listening"), nil, nil, 404, "404 page not found"},
		{"loops are stuck", "GET", "/readyz/a", tunnels("listening"), stuck, nil, 503, "event loop 1 of 2"},
		{"everything is shed", "GET", "/readyz/a", tunnels("shedding"), nil, []resources.Resource{resources.Memory}, 503, "tunnel a is shedding"},
		{"which does not matter", "GET", "/readyz/a?ignore=shedding", tunnels("shedding"), nil, []resources.Resource{resources.Memory}, 200, "ready"},
		{"near a limit", "GET", "/readyz", tunnels("listening"), nil, []resources.Resource{resources.Descriptors, resources.CPU}, 503, "tunnel a is near a limit: descriptors, cpu"},
		{"which does not matter either", "GET", "/readyz?ignore=shedding", tunnels("listening"), nil, []resources.Resource{resources.Descriptors}, 200, "ready"},
		{"draining does", "GET", "/readyz?ignore=shedding", tunnels("draining"), nil, nil, 503, "tunnel a is draining"},
		{"a hop is left", "GET", "/readyz/a", hops(flow.HopDown, flow.HopUntried), nil, nil, 200, "ready"},
		{"no hop is left", "GET", "/readyz/a", hops(flow.HopReturning, flow.HopEjected, flow.HopDrained), nil, nil, 503, "tunnel a has no hop: b1:1 is returning, b2:1 is ejected, b3:1 is drained"},
		{"which may not matter", "GET", "/readyz/a?ignore=hops", hops(flow.HopDown), nil, nil, 200, "ready"},
		{"both do not matter", "GET", "/readyz/a?ignore=shedding,hops", hops(flow.HopDown), nil, []resources.Resource{resources.Memory}, 200, "ready"},
		{"one of them does", "GET", "/readyz/a?ignore=hops", hops(flow.HopDown), nil, []resources.Resource{resources.Memory}, 503, "tunnel a is near a limit: memory"},
		{"something else cannot be ignored", "GET", "/readyz?ignore=draining", tunnels("listening"), nil, nil, 400, `cannot ignore "draining"; what can be ignored: shedding, hops`},
		{"another query", "GET", "/readyz?verbose", tunnels("listening"), nil, nil, 200, "ready"},
		{"another method", "POST", "/readyz", tunnels("listening"), nil, nil, 405, "Method Not Allowed"},
		{"another path", "GET", "/metrics", tunnels("listening"), nil, nil, 404, "404 page not found"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := &readiness{
				overview: func() relay.Snapshot {
					o := unpaired
					o.Tight = func() []resources.Resource { return tt.tight }
					usable.New(o).Decide(tt.relay)
					return relay.Snapshot{Tunnels: tt.relay}
				},
				responsive: func(context.Context) (time.Duration, error) { return time.Millisecond, tt.stuck },
			}
			w := httptest.NewRecorder()
			h.handler().ServeHTTP(w, httptest.NewRequest(tt.method, tt.target, nil))
			body := w.Body.String()
			if tt.method == http.MethodHead {
				body = "" // the server omits it
			}
			if w.Code != tt.status || !strings.HasPrefix(body, tt.text) || strings.Count(strings.TrimSpace(body), "\n") > 0 {
				t.Errorf("%d %q, want %d %q", w.Code, body, tt.status, tt.text)
			}
		})
	}
}

// TestChecksOutlastAHandOver asks a process that another has replaced, like a check
// accepted before the handover and answered after it.
func TestChecksOutlastAHandOver(t *testing.T) {
	shedder, r, _ := shedderOf(t)
	shedder.monitor = resources.Start(resources.Options{})
	t.Cleanup(shedder.monitor.Close)
	d := &daemon{relay: r, shedder: shedder, http: &healthSite{}, states: &states{relay: r, discovery: &discovery{}, pairs: &pairs{}, judge: usable.New(unpaired),
		rules: newInterception(interceptionOptions{log: slog.New(slog.DiscardHandler)})}}
	then := d.states.overview()
	d.atHandOver.Store(&then)
	nettest.Must(t, r.Relinquish())
	if err := d.readinessOverHTTP().ready(t.Context(), "t", Ignored{}); err != nil {
		t.Errorf("a check over HTTP of a tunnel that was handed over: %v, want it ready", err)
	}
	if err := d.readiness().ready(t.Context(), "t", Ignored{}); err == nil {
		t.Error("the process that was replaced says that it is ready itself")
	}
}

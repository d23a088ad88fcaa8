//go:build linux

package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"longhaul/internal/relay"
	"longhaul/internal/resources"
)

func TestHealth(t *testing.T) {
	tunnels := func(states ...string) relay.Snapshot {
		var s relay.Snapshot
		for i, state := range states {
			s.Tunnels = append(s.Tunnels, relay.TunnelSnapshot{Name: string(rune('a' + i)), State: state})
		}
		return s
	}
	stuck := errors.New("event loop 1 of 2 does not answer: context deadline exceeded")
	for _, tt := range []struct {
		name   string
		method string
		target string
		relay  relay.Snapshot
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
		{"near a limit", "GET", "/readyz", tunnels("listening"), nil, []resources.Resource{resources.Descriptors, resources.CPU}, 503, "at the limit: descriptors, cpu"},
		{"which does not matter either", "GET", "/readyz?ignore=shedding", tunnels("listening"), nil, []resources.Resource{resources.Descriptors}, 200, "ready"},
		{"draining does", "GET", "/readyz?ignore=shedding", tunnels("draining"), nil, nil, 503, "tunnel a is draining"},
		{"another query", "GET", "/readyz?ignore=hops", tunnels("listening"), nil, nil, 400, "the only query is ignore=shedding"},
		{"another method", "POST", "/readyz", tunnels("listening"), nil, nil, 405, "Method Not Allowed"},
		{"another path", "GET", "/metrics", tunnels("listening"), nil, nil, 404, "404 page not found"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := &health{
				overview:   func() relay.Snapshot { return tt.relay },
				responsive: func(context.Context) (time.Duration, error) { return time.Millisecond, tt.stuck },
				tight:      func() []resources.Resource { return tt.tight },
			}
			w := httptest.NewRecorder()
			h.handler().ServeHTTP(w, httptest.NewRequest(tt.method, tt.target, nil))
			body := w.Body.String()
			if tt.method == http.MethodHead {
				body = "" // the server leaves it out
			}
			if w.Code != tt.status || !strings.HasPrefix(body, tt.text) || strings.Count(strings.TrimSpace(body), "\n") > 0 {
				t.Errorf("%d %q, want %d %q", w.Code, body, tt.status, tt.text)
			}
		})
	}
}

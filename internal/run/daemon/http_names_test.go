package daemon

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Reasons name tunnels and hops: a check by another name gets only the status.
func TestReasonsAreForTheServersNames(t *testing.T) {
	h := &readiness{showsReasons: func(r *http.Request) bool { return r.Host == "relay-a" }}
	for _, c := range []struct {
		host, want string
		err        error
		status     int
	}{
		{"relay-a", "tunnel to-b has no hop: 10.0.0.1:6000 is down", errors.New("tunnel to-b has no hop: 10.0.0.1:6000 is down"), 503},
		{"attacker.example", "not ready; for the reason ask by address", errors.New("tunnel to-b has no hop: 10.0.0.1:6000 is down"), 503},
		{"attacker.example", "no tunnel has this name", fmt.Errorf("%w: to-c", errNoTunnel), 404},
		{"attacker.example", "ready", nil, 200},
	} {
		r := httptest.NewRequest(http.MethodGet, "/readyz", nil)
		r.Host = c.host
		w := httptest.NewRecorder()
		h.answer(w, r, "ready", c.err)
		if w.Code != c.status || !strings.HasPrefix(w.Body.String(), c.want) {
			t.Errorf("%s, %v: %d %s", c.host, c.err, w.Code, w.Body)
		}
	}
}

package web_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"longhaul/internal/watch/web"
	"longhaul/internal/watch/web/webfake"
)

// login posts the token and returns the session's cookie.
func login(t *testing.T, h http.Handler, token string) *http.Cookie {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, "/login", strings.NewReader(url.Values{"token": {token}}.Encode()))
	r.Host = "localhost"
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	cookies := w.Result().Cookies()
	if len(cookies) != 1 {
		t.Fatalf("the login is answered with %d and %d cookies", w.Code, len(cookies))
	}
	return cookies[0]
}

func ask(h http.Handler, method, path string, header http.Header) int {
	r := httptest.NewRequest(method, path, nil)
	r.Host, r.Header = "localhost", header
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code
}

func by(c *http.Cookie) http.Header { return http.Header{"Cookie": {c.Name + "=" + c.Value}} }

// A stream of events ends with the token or session that admitted its reader.
// At 1818be3 each of these went on.
func TestStreamEndsWithAdmission(t *testing.T) {
	bearer := http.Header{"Authorization": {"Bearer " + token}}
	for name, c := range map[string]struct {
		bearer bool
		end    func(h http.Handler, secret *web.Token, cookie *http.Cookie)
	}{
		"a new token": {false, func(_ http.Handler, secret *web.Token, _ *http.Cookie) { secret.Set(token + "2") }},
		"a new token, of which a script knew the old": {true, func(_ http.Handler, secret *web.Token, _ *http.Cookie) { secret.Set(token + "2") }},
		"a logout": {false, func(h http.Handler, _ *web.Token, cookie *http.Cookie) {
			ask(h, http.MethodPost, "/logout", by(cookie))
		}},
		"twelve hours": {false, func(http.Handler, *web.Token, *http.Cookie) { time.Sleep(2 * time.Minute) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				secret := web.NewToken(token)
				h := web.New(web.Options{Monitor: webfake.New(3)}).Handler(web.Access{Token: secret})
				cookie := login(t, h, token)
				header := by(cookie)
				if c.bearer {
					header = bearer
				}
				var ended atomic.Bool
				go func() {
					ask(h, http.MethodGet, "/api/v1/live?view=overview", header)
					ended.Store(true)
				}()
				time.Sleep(12*time.Hour - time.Minute)
				synctest.Wait()
				if ended.Load() {
					t.Fatal("the stream ended before its time")
				}
				c.end(h, secret, cookie)
				synctest.Wait()
				if !ended.Load() {
					t.Error("the stream goes on")
				}
				if got := ask(h, http.MethodGet, "/api/v1/overview", header); got != http.StatusUnauthorized {
					t.Errorf("another request is answered with %d", got)
				}
			})
		})
	}
}

// Repeated logins hold bounded memory: the oldest session is removed.
func TestSessionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := web.New(web.Options{Monitor: webfake.New(3)}).Handler(web.Access{Token: web.NewToken(token)})
		first := login(t, h, token)
		time.Sleep(time.Second)
		second := login(t, h, token)
		for range web.MaxSessions - 1 {
			time.Sleep(time.Second)
			login(t, h, token)
		}
		if got := ask(h, http.MethodGet, "/api/v1/overview", by(first)); got != http.StatusUnauthorized {
			t.Errorf("the oldest session is answered with %d", got)
		}
		if got := ask(h, http.MethodGet, "/api/v1/overview", by(second)); got != http.StatusOK {
			t.Errorf("the one after it is answered with %d", got)
		}
	})
}

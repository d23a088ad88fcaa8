package web

import (
	"context"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"longhaul/internal/sys/httpd"
)

// Access is the admission policy of one listening address.
type Access struct {
	// Token is the secret that readers must present. Nil requires none: for
	// addresses that only this host reaches.
	Token *Token

	// Authenticated means that the server has admitted the readers before, by a
	// certificate or a password: without a token they may be on other hosts.
	Authenticated bool

	// Refusal returns a sentence why the sender of a request may not read;
	// empty admits it. Nil refuses nobody.
	Refusal func(*http.Request) string

	// Named reports whether a host name in a URL belongs to this server.
	// Addresses and localhost always do. Another name may point here through
	// DNS rebinding by a foreign page.
	Named func(host string) bool
}

const (
	cookieName = "__Host-longhaul"

	contentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
		"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

// guard refuses requests that another site made a browser send, and sets
// headers that keep answers on this site.
func (a Access) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", contentSecurityPolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "same-origin") // with no-referrer, forms would have the origin "null"
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		switch {
		case !a.serves(r.Host):
			fail(w, http.StatusMisdirectedRequest, "this server has another name: use its address, localhost, or a name of its certificate")
		case foreign(r):
			fail(w, http.StatusForbidden, "another site's page sent this request")
		case r.Method != http.MethodGet && r.Method != http.MethodHead && !(r.Method == http.MethodPost && (r.URL.Path == "/login" || r.URL.Path == "/logout")):
			h.Set("Allow", "GET, HEAD")
			fail(w, http.StatusMethodNotAllowed, "the dashboard only reads")
		default:
			if a.Refusal != nil {
				if text := a.Refusal(r); text != "" {
					fail(w, http.StatusForbidden, text)
					return
				}
			}
			next.ServeHTTP(w, r)
		}
	})
}

// serves reports whether a Host header names this server.
func (a Access) serves(host string) bool {
	names := httpd.Names{Name: a.Named}
	if a.Token == nil && !a.Authenticated {
		names.Address = netip.Addr.IsLoopback
	}
	return names.Has(host)
}

// foreign reports whether a page of another origin made a browser send the
// request. A plain link to a page is allowed from anywhere: pages contain no
// data.
func foreign(r *http.Request) bool {
	if origin := r.Header.Get("Origin"); origin != "" {
		u, err := url.Parse(origin)
		if err != nil || u.Host != r.Host {
			return true
		}
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return false
	}
	link := r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" &&
		r.Header.Get("Sec-Fetch-Dest") == "document" && !strings.HasPrefix(r.URL.Path, "/api/")
	return !link
}

// authorized admits requests with the token or a session. It cancels them when
// the token changes or the session ends, so a stream of events lasts no longer.
func (a Access) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		admitted, ok := a.admit(r)
		if !ok {
			w.Header().Set("WWW-Authenticate", `Bearer realm="longhaul"`)
			fail(w, http.StatusUnauthorized, "log in, or send the token: Authorization: Bearer TOKEN")
			return
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(admitted, cancel)()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// admit is Token.admit; without a token every request is admitted with no end.
func (a Access) admit(r *http.Request) (context.Context, bool) {
	if a.Token == nil {
		return context.Background(), true
	}
	return a.Token.admit(r)
}

// login serves the form, and begins a session if the posted token is right.
func (a Access) login(w http.ResponseWriter, r *http.Request) {
	next := r.URL.Query().Get("next")
	if r.Method != http.MethodPost {
		if _, known := a.admit(r); known {
			http.Redirect(w, r, "/", http.StatusSeeOther)
			return
		}
		serveFile(w, r, "login.html")
		return
	}
	id, ok := "", false
	if a.Token != nil {
		id, ok = a.Token.login(strings.TrimSpace(r.PostFormValue("token")))
	}
	if !ok {
		http.Redirect(w, r, "/login?"+url.Values{"wrong": {"1"}, "next": {localPath(next)}}.Encode(), http.StatusSeeOther)
		return
	}
	http.SetCookie(w, a.cookie(id, int(sessionTime.Seconds())))
	http.Redirect(w, r, localPath(next), http.StatusSeeOther)
}

func (a Access) logout(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost {
		if a.Token != nil {
			a.Token.logout(r)
		}
		http.SetCookie(w, a.cookie("", -1))
	}
	http.Redirect(w, r, "/login", http.StatusSeeOther)
}

func (a Access) cookie(value string, seconds int) *http.Cookie {
	return &http.Cookie{
		Name: cookieName, Value: value, Path: "/", MaxAge: seconds,
		Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode,
	}
}

// localPath returns next if it is a path on this server, otherwise "/".
func localPath(next string) string {
	if !strings.HasPrefix(next, "/") || strings.HasPrefix(next, "//") || strings.ContainsAny(next, "\\\r\n\t") {
		return "/"
	}
	return next
}

package web

import (
	"context"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"longhaul/internal/httpd"
)

// Access says who may read, at one listening address.
type Access struct {
	// Token is what a reader needs to know. Nil asks for nothing: for addresses
	// that only this host reaches.
	Token *Token

	// Refusal says why who sent a request may not read, in a sentence; "": may.
	// Nil refuses nobody.
	Refusal func(*http.Request) string

	// Named says whether a host name of a URL is this server's. Addresses and
	// localhost always are; a name that nobody gave it may have been pointed
	// here by somebody else's page (DNS rebinding).
	Named func(host string) bool
}

const (
	cookieName = "__Host-longhaul"

	contentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
		"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

// guard lets nothing through that a browser was made to send by another site,
// and has answers stay where they are.
func (a Access) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", contentSecurityPolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "same-origin") // without any, a form would come from the origin "null"
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

// serves says whether a Host header names this server.
func (a Access) serves(host string) bool {
	names := httpd.Names{Name: a.Named}
	if a.Token == nil {
		names.Address = netip.Addr.IsLoopback
	}
	return names.Has(host)
}

// foreign says whether a page of another origin had a browser send the request.
// A link to a page of the dashboard may stand anywhere: it holds nothing.
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

// authorized lets those through who know the token. Their requests end when that
// changes, or with their session: a stream of events lasts no longer.
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

// admit is the token's; without one everybody is let through for good.
func (a Access) admit(r *http.Request) (context.Context, bool) {
	if a.Token == nil {
		return context.Background(), true
	}
	return a.Token.admit(r)
}

// login shows the form, and gives who knows the token a session.
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

// localPath is a path of this server, whatever somebody wrote into a link.
func localPath(next string) string {
	if !strings.HasPrefix(next, "/") || strings.HasPrefix(next, "//") || strings.ContainsAny(next, "\\\r\n\t") {
		return "/"
	}
	return next
}

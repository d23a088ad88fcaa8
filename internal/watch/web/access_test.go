package web_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"longhaul/internal/sys/httpd"
	"longhaul/internal/sys/httpd/webconfig"
	"longhaul/internal/watch/web"
	"longhaul/internal/watch/web/webfake"
	"longhaul/internal/words/remedy"
	"longhaul/test/nettest"
)

const token = "0123456789abcdef0123456789abcdef"

// Admission depends on the origin that a request declares.
func TestGuard(t *testing.T) {
	fake := webfake.New(5)
	d := web.New(web.Options{Monitor: fake})
	local := d.Handler(web.Access{})
	remote := d.Handler(web.Access{
		Token: web.NewToken(token),
		Named: func(host string) bool { return host == "relay.example.net" },
	})
	certified := d.Handler(web.Access{Authenticated: true, Named: func(host string) bool { return host == "relay.example.net" }})
	bearer := http.Header{"Authorization": {"Bearer " + token}}
	for name, c := range map[string]struct {
		handler      http.Handler
		method, path string
		host         string
		header       http.Header
		want         int
	}{
		"local":                       {local, "GET", "/api/v1/overview", "127.0.0.1:9464", nil, 200},
		"local by name":               {local, "GET", "/api/v1/overview", "localhost:9464", nil, 200},
		"local by IPv6":               {local, "GET", "/api/v1/overview", "[::1]:9464", nil, 200},
		"through another port":        {local, "GET", "/api/v1/overview", "localhost", nil, 200},
		"DNS rebinding":               {local, "GET", "/api/v1/overview", "attacker.example:9464", nil, 421},
		"DNS rebinding, page":         {local, "GET", "/", "attacker.example", nil, 421},
		"another address":             {local, "GET", "/api/v1/overview", "192.0.2.1:9464", nil, 421},
		"no host":                     {local, "GET", "/api/v1/overview", "", nil, 421},
		"same origin":                 {local, "GET", "/api/v1/flows", "127.0.0.1:1", http.Header{"Sec-Fetch-Site": {"same-origin"}, "Origin": {"http://127.0.0.1:1"}}, 200},
		"typed":                       {local, "GET", "/api/v1/flows", "127.0.0.1:1", http.Header{"Sec-Fetch-Site": {"none"}}, 200},
		"cross-site":                  {local, "GET", "/api/v1/flows", "127.0.0.1:1", http.Header{"Sec-Fetch-Site": {"cross-site"}}, 403},
		"another port of this host":   {local, "GET", "/api/v1/flows", "127.0.0.1:1", http.Header{"Sec-Fetch-Site": {"same-site"}}, 403},
		"another origin":              {local, "GET", "/api/v1/flows", "127.0.0.1:1", http.Header{"Origin": {"http://127.0.0.1:2"}}, 403},
		"an origin without a name":    {local, "GET", "/api/v1/flows", "127.0.0.1:1", http.Header{"Origin": {"null"}}, 403},
		"a link to a page":            {local, "GET", "/flows", "127.0.0.1:1", http.Header{"Sec-Fetch-Site": {"cross-site"}, "Sec-Fetch-Mode": {"navigate"}, "Sec-Fetch-Dest": {"document"}}, 200},
		"a link to data":              {local, "GET", "/api/v1/flows", "127.0.0.1:1", http.Header{"Sec-Fetch-Site": {"cross-site"}, "Sec-Fetch-Mode": {"navigate"}, "Sec-Fetch-Dest": {"document"}}, 403},
		"a page in a frame":           {local, "GET", "/", "127.0.0.1:1", http.Header{"Sec-Fetch-Site": {"cross-site"}, "Sec-Fetch-Mode": {"navigate"}, "Sec-Fetch-Dest": {"iframe"}}, 403},
		"an asset elsewhere":          {local, "GET", "/assets/app.js", "127.0.0.1:1", http.Header{"Sec-Fetch-Site": {"cross-site"}, "Sec-Fetch-Mode": {"no-cors"}, "Sec-Fetch-Dest": {"script"}}, 403},
		"writing":                     {local, "POST", "/api/v1/flows", "127.0.0.1", nil, 405},
		"removing":                    {local, "DELETE", "/", "127.0.0.1", nil, 405},
		"no page":                     {local, "GET", "/etc/passwd", "127.0.0.1", nil, 404},
		"out of the assets":           {local, "GET", "/assets/..%2f..%2fweb.go", "127.0.0.1", nil, 404},
		"no such data":                {local, "GET", "/api/v1/secrets", "127.0.0.1", nil, 404},
		"login where none is needed":  {local, "GET", "/login", "127.0.0.1", nil, 303},
		"no token":                    {remote, "GET", "/api/v1/overview", "192.0.2.1", nil, 401},
		"no token, live":              {remote, "GET", "/api/v1/live?view=overview", "192.0.2.1", nil, 401},
		"a wrong token":               {remote, "GET", "/api/v1/overview", "192.0.2.1", http.Header{"Authorization": {"Bearer " + token + "0"}}, 401},
		"an empty token":              {remote, "GET", "/api/v1/overview", "192.0.2.1", http.Header{"Authorization": {"Bearer "}}, 401},
		"another scheme":              {remote, "GET", "/api/v1/overview", "192.0.2.1", http.Header{"Authorization": {"Basic " + token}}, 401},
		"a forged session":            {remote, "GET", "/api/v1/overview", "192.0.2.1", http.Header{"Cookie": {"__Host-longhaul=99999999999.AAAA"}}, 401},
		"the token":                   {remote, "GET", "/api/v1/overview", "192.0.2.1", bearer, 200},
		"the certificate's name":      {remote, "GET", "/api/v1/overview", "relay.example.net:9464", bearer, 200},
		"the token, at another name":  {remote, "GET", "/api/v1/overview", "attacker.example", bearer, 421},
		"pages hold nothing secret":   {remote, "GET", "/", "192.0.2.1", nil, 200},
		"the form":                    {remote, "GET", "/login", "192.0.2.1", nil, 200},
		"a file that is no asset":     {remote, "GET", "/assets/index.html", "192.0.2.1", nil, 404},
		"a form from another site":    {remote, "POST", "/login", "192.0.2.1", http.Header{"Origin": {"https://attacker.example"}}, 403},
		"a wrong order":               {local, "GET", "/api/v1/flows?sort=password", "127.0.0.1", nil, 400},
		"a wrong page":                {local, "GET", "/api/v1/flows?page=0", "127.0.0.1", nil, 400},
		"too many":                    {local, "GET", "/api/v1/flows?size=100000", "127.0.0.1", nil, 400},
		"a flow that is no number":    {local, "GET", "/api/v1/flows/1e9", "127.0.0.1", nil, 400},
		"no such flow":                {local, "GET", "/api/v1/flows/77", "127.0.0.1", nil, 404},
		"no such tunnel":              {local, "GET", "/api/v1/tunnels/none", "127.0.0.1", nil, 404},
		"no such view":                {local, "GET", "/api/v1/live?view=all", "127.0.0.1", nil, 400},
		"a certificate":               {certified, "GET", "/api/v1/overview", "192.0.2.1:9464", nil, 200},
		"a certificate, its name":     {certified, "GET", "/", "relay.example.net", nil, 200},
		"a certificate, another name": {certified, "GET", "/api/v1/overview", "attacker.example", nil, 421},
		"a certificate, cross-site":   {certified, "GET", "/api/v1/flows", "192.0.2.1", http.Header{"Sec-Fetch-Site": {"cross-site"}}, 403},
		"no history":                  {local, "GET", "/api/v1/summary", "127.0.0.1", nil, 404},
		"no history, chart":           {local, "GET", "/api/v1/chart", "127.0.0.1", nil, 404},
		"a chart that runs backward":  {local, "GET", "/api/v1/chart?since=1h&until=2h", "127.0.0.1", nil, 400},
		"a period without beginning":  {local, "GET", "/api/v1/compare", "127.0.0.1", nil, 400},
		"a period that runs backward": {local, "GET", "/api/v1/records?since=1h&until=2h", "127.0.0.1", nil, 400},
		"records without a history":   {local, "GET", "/api/v1/records", "127.0.0.1", nil, 200},
	} {
		r := httptest.NewRequest(c.method, c.path, nil)
		r.Host = c.host
		for k, v := range c.header {
			r.Header[k] = v
		}
		w := httptest.NewRecorder()
		c.handler.ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("%s: %d, want %d: %s", name, w.Code, c.want, w.Body)
		}
		h := w.Header()
		if !strings.Contains(h.Get("Content-Security-Policy"), "default-src 'none'; script-src 'self'") || h.Get("X-Content-Type-Options") != "nosniff" ||
			h.Get("Cache-Control") == "" || strings.Contains(h.Get("Content-Security-Policy"), "unsafe") {
			t.Errorf("%s: the header is %v", name, h)
		}
	}
}

// Over TLS: the form, its cookie, and the end of a session by a new token and
// by a logout.
func TestLogin(t *testing.T) {
	nettest.CheckLeaks(t)
	certFile, keyFile := nettest.Certificate(t, t.TempDir(), "relay.example.net")
	text, err := os.ReadFile(certFile)
	pool := x509.NewCertPool()
	if err != nil || !pool.AppendCertsFromPEM(text) {
		t.Fatal("the certificate cannot be read: ", err)
	}
	c, err := webconfig.Open("the dashboard", quiet, webconfig.ReadPair(certFile, keyFile))
	if err != nil {
		t.Fatal(err)
	}
	secret := web.NewToken(token)
	d := web.New(web.Options{Monitor: webfake.New(3)})
	l, err := httpd.Listen(t.Context(), netip.MustParseAddrPort(nettest.FreeAddress(t, "127.0.0.1")))
	if err != nil {
		t.Fatal(err)
	}
	s := httpd.ServeTLS(l, webconfig.TLS(func() *webconfig.Guard { return c }), d.Handler(web.Access{Token: secret, Named: c.Current().Names}), quiet, web.Limits)
	t.Cleanup(s.Close)
	base := "https://" + l.Addr().String()
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

	post := func(token, next string) *http.Response {
		t.Helper()
		r, err := client.PostForm(base+"/login?next="+url.QueryEscape(next), url.Values{"token": {token}})
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		return r
	}
	get := func(cookie *http.Cookie) int {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/api/v1/overview", nil)
		if err != nil {
			t.Fatal(err)
		}
		if cookie != nil {
			r.AddCookie(cookie)
		}
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		return answer.StatusCode
	}
	if r := post("guessed", "/flows"); r.StatusCode != http.StatusSeeOther || r.Header.Get("Location") != "/login?next=%2Fflows&wrong=1" || len(r.Cookies()) > 0 {
		t.Errorf("a wrong token: %d %v", r.StatusCode, r.Header)
	}
	for next, want := range map[string]string{"/flows?tunnel=a": "/flows?tunnel=a", "//attacker.example": "/", "https://attacker.example": "/", "/\\attacker.example": "/", "": "/"} {
		if r := post(token, next); r.StatusCode != http.StatusSeeOther || r.Header.Get("Location") != want {
			t.Errorf("to %q it is %d %q, want %q", next, r.StatusCode, r.Header.Get("Location"), want)
		}
	}
	cookies := post(token+"\n", "/").Cookies()
	if len(cookies) != 1 {
		t.Fatalf("%d cookies", len(cookies))
	}
	cookie := cookies[0]
	if !cookie.HttpOnly || !cookie.Secure || cookie.SameSite != http.SameSiteStrictMode || cookie.Path != "/" || strings.Contains(cookie.Value, token) {
		t.Errorf("the cookie is %v", cookie)
	}
	if got := get(cookie); got != 200 {
		t.Errorf("with the cookie: %d", got)
	}
	if got := get(nil); got != 401 {
		t.Errorf("without: %d", got)
	}
	other := post(token, "/").Cookies()[0]
	if other.Value == cookie.Value {
		t.Error("two logins have the same session")
	}
	logout, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/logout", nil)
	if err != nil {
		t.Fatal(err)
	}
	logout.AddCookie(cookie)
	if r, err := client.Do(logout); err != nil || r.StatusCode != http.StatusSeeOther || len(r.Cookies()) != 1 || r.Cookies()[0].MaxAge >= 0 {
		t.Errorf("logout: %v, %v", r, err)
	} else {
		r.Body.Close()
	}
	// At 1818be3 a copy of the cookie stayed valid.
	if got := get(cookie); got != 401 {
		t.Errorf("with a copy of the cookie after the logout: %d", got)
	}
	if got := get(other); got != 200 {
		t.Errorf("another session after it: %d", got)
	}
	secret.Set(token)
	if got := get(other); got != 200 {
		t.Errorf("with the same token set again: %d", got)
	}
	secret.Set("another-token-of-enough-characters")
	if got := get(other); got != 401 {
		t.Errorf("with the cookie of the token before: %d", got)
	}
	// Plain HTTP on this port gets no content of the dashboard.
	if r, err := http.Get("http://" + l.Addr().String() + "/api/v1/overview"); err == nil {
		body, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if r.StatusCode != http.StatusBadRequest || strings.Contains(string(body), "tunnels") {
			t.Errorf("plain HTTP: %d %q", r.StatusCode, body)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestReadToken(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		text string
		mode os.FileMode
		want string
	}{
		"good":          {token + "\n", 0o600, ""},
		"short":         {"secret", 0o600, "fewer than 20 characters"},
		"empty":         {"", 0o600, "fewer than 20 characters"},
		"two lines":     {token + "\n" + token, 0o600, "more than one word"},
		"not text":      {strings.Repeat("\x00", 30), 0o600, "more than one word"},
		"huge":          {strings.Repeat("x", 5000), 0o600, "more than one word"},
		"open to group": {token, 0o640, "is open to others (mode 0640); run chmod 600"},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, c.mode); err != nil {
			t.Fatal(err)
		}
		got, err := web.ReadToken(path)
		switch {
		case c.want == "" && (err != nil || got != token):
			t.Errorf("%s: %q, %v", name, got, err)
		case c.want != "" && (err == nil || !strings.Contains(remedy.Line(err), c.want) || strings.Contains(remedy.Line(err), token)):
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	if _, err := web.ReadToken(dir + "/none"); err == nil || !strings.Contains(remedy.Line(err), "openssl rand -hex 32 > ") {
		t.Errorf("no file: %v", err)
	}
	if _, err := web.ReadToken(dir); err == nil || !strings.Contains(err.Error(), "is not a regular file") {
		t.Errorf("a directory: %v", err)
	}
}

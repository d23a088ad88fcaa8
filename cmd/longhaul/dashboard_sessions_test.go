package main

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"longhaul/test/nettest"
)

// A running relay ends sessions, and live updates with them: at a logout those of
// the session, at a reload with another token all. At 1818be3 a copy of the cookie
// lived on after a logout, and live updates went on after both.
func TestDashboardSessions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := nettest.Certificate(t, dir, "localhost")
	tokenFile, file := filepath.Join(dir, "token"), filepath.Join(dir, "longhaul.yaml")
	page := nettest.FreeAddress(t, "127.0.0.1")
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const before, after = "a-token-that-is-long-enough", "another-token-that-is-long-enough"
	write(tokenFile, before)
	write(file, fmt.Sprintf("control_socket: off\ndashboard: {listen: %q, tls_cert: %q, tls_key: %q, token_file: %q}\ntunnels: [{name: to-b, listen: %q, forward: %q}]\n",
		page, cert, key, tokenFile, nettest.FreeAddress(t, "127.0.0.1"), echoTarget(t)))
	relay := startAs(t, "longhaul", nil, nil, "relay", "-c", file)
	relay.waitLog(t, "relay started")

	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // it is known
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{
		Transport: transport, Timeout: patience,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	request := func(method, path string, set func(*http.Request)) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, "https://"+page+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		set(r)
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { answer.Body.Close() })
		return answer
	}
	with := func(c *http.Cookie) func(*http.Request) { return func(r *http.Request) { r.AddCookie(c) } }
	login := func(token string) *http.Cookie {
		t.Helper()
		r, err := client.PostForm("https://"+page+"/login", url.Values{"token": {token}})
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if len(r.Cookies()) != 1 {
			t.Fatalf("the login is answered with %s", r.Status)
		}
		return r.Cookies()[0]
	}
	// live returns what waits for the end of a stream of events that has begun.
	live := func(name string, set func(*http.Request)) (ends func()) {
		t.Helper()
		answer := request(http.MethodGet, "/api/v1/live?view=overview", set)
		if _, err := bufio.NewReader(answer.Body).ReadString('\n'); answer.StatusCode != http.StatusOK || err != nil {
			t.Fatalf("%s: live updates are answered with %s, %v", name, answer.Status, err)
		}
		return func() {
			t.Helper()
			if _, err := io.Copy(io.Discard, answer.Body); os.IsTimeout(err) {
				t.Errorf("%s: the live updates go on", name)
			}
		}
	}
	refused := func(name string, set func(*http.Request)) {
		t.Helper()
		if got := request(http.MethodGet, "/api/v1/overview", set).StatusCode; got != http.StatusUnauthorized {
			t.Errorf("%s: answered with %d", name, got)
		}
	}

	first, second := login(before), login(before)
	ends := live("logout", with(first))
	request(http.MethodPost, "/logout", with(first))
	ends()
	refused("logout", with(first))

	bearer := func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+before) }
	ends, scriptEnds := live("new token", with(second)), live("new token, script", bearer)
	write(tokenFile, after)
	if err := relay.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	relay.waitLog(t, "msg=reloaded")
	ends()
	scriptEnds()
	refused("new token", with(second))
	refused("new token, script", bearer)
	live("the new token's session", with(login(after)))
}

package fleet

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"longhaul/internal/sys/httpd"
	"longhaul/internal/sys/httpd/webconfig"
	"longhaul/internal/watch/web"
	"longhaul/internal/watch/web/webfake"
	"longhaul/internal/words/printable"
	"longhaul/internal/words/remedy"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.MainWithoutLeaks(m) }

// patience is the timeout of relays that answer, on a busy machine as well.
const patience = time.Minute

var quiet = slog.New(slog.DiscardHandler)

// serve starts a server on a loopback address and returns it.
func serve(t *testing.T, handler http.Handler) string {
	t.Helper()
	l, err := httpd.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"))
	nettest.Must(t, err)
	limits := web.Limits
	limits.Connections = 2 * maxAtOnce
	s := httpd.Serve(l, handler, quiet, limits)
	t.Cleanup(s.Close)
	return l.Addr().String()
}

// answer serves a body to whoever asks.
func answer(t *testing.T, status int, body string) string {
	return serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
}

// silent takes connections and never answers.
func silent(t *testing.T) string {
	l := nettest.ListenTCP(t, "127.0.0.1:0")
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

func relayAt(name, address string) Relay {
	return Relay{Name: name, URL: "http://" + address, Timeout: patience}
}

// well is the least that a relay answers.
const well = `{"head": {"version": "longhaul v1.2.3 go1.26.8 linux/amd64", "flows_now": 7, "up_bps": 2.5e8, "down_bps": 1000, "alerts": []},
	"tunnels": [{"name": "a", "state": "listening", "usability": {"state": "up", "usable": true}}]}`

// TestFifty: of fifty relays one is dead and one does not answer. Both are marked, and the others are
// there in full.
func TestFifty(t *testing.T) {
	var relays []Relay
	fake := webfake.New(100)
	for i := range 48 {
		d := web.New(web.Options{Monitor: fake, HistoryState: func() any {
			return map[string]any{"ship": []Ship{{Sink: "postgres://db/longhaul", Waiting: 12, Lost: int64(i), Lag: 83}}}
		}})
		relays = append(relays, relayAt(fmt.Sprintf("relay-%d.site-b.example.net", i), serve(t, d.Handler(web.Access{}))))
	}
	dead, slow := relayAt("dead", nettest.FreeAddress(t, "127.0.0.1")), relayAt("slow", silent(t))
	slow.Timeout = 100 * time.Millisecond
	relays = slices.Insert(slices.Insert(relays, 10, dead), 20, slow)
	r := Ask(t.Context(), relays, Options{})
	if r.Well {
		t.Error("all is well")
	}
	for i, a := range r.Relays {
		want := map[int]State{10: Down, 20: Slow}[i]
		if want == "" {
			want = Degraded // the simulated relay has a pair and a hop that are down
		}
		if a.State != want || a.Name != relays[i].Name || (a.Figures == nil) != (want != Degraded) {
			t.Fatalf("relay %d: %+v, want %s", i, a, want)
		}
		if a.Figures == nil {
			continue
		}
		if a.Tunnels != 4 || a.TunnelsUsable != 4 || a.Pairs != 3 || a.PairsUp != 2 || a.FlowsNow != 100 || a.UpBps < 1e8 || a.Version != "0.8.0" || len(a.Alerts) < 3 || a.Ship[0].Waiting != 12 {
			t.Fatalf("relay %d: %+v", i, a.Figures)
		}
	}
	text := textOf(t, r)
	for _, want := range []string{
		"50 relays: 48 degraded, 1 down, 1 slow\n",
		"\ndead: no connection to " + strings.TrimPrefix(dead.URL, "http://") + ": connection refused; start",
		"\nslow: " + strings.TrimPrefix(slow.URL, "http://") + " takes connections, and gave no whole answer within\n  100ms",
		": Pairs down: site-c (tunnel replication: ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// textOf is the report's text, every line of which fits the terminal and harms none.
func textOf(t *testing.T, r *Report) string {
	t.Helper()
	var b bytes.Buffer
	nettest.Must(t, r.WriteText(&b))
	for line := range strings.Lines(b.String()) {
		line = strings.TrimSuffix(line, "\n")
		if utf8.RuneCountInString(line) > width && strings.Contains(strings.TrimSpace(line), " ") { // one word stays whole
			t.Errorf("the line has %d columns: %s", utf8.RuneCountInString(line), line)
		}
		if printable.String(line) != line {
			t.Errorf("the line is not harmless: %q", line)
		}
	}
	return b.String()
}

// TestStates holds what each answer makes of a relay.
func TestStates(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	nettest.Must(t, os.WriteFile(token, []byte("a-token-that-is-long-enough"), 0o600))
	for _, c := range []struct {
		name    string
		address string
		set     func(*Relay)
		state   State
		problem string // a part
	}{
		{"well", answer(t, 200, well), nil, OK, ""},
		{"draining", answer(t, 200, strings.Replace(well, "{", `{"process": {"draining": true}, `, 1)), nil, Draining, ""},
		{"tunnel", answer(t, 200, strings.Replace(well, `"usable": true`, `"usable": false`, 1)), nil, Degraded, ""},
		{"warning", answer(t, 200, strings.Replace(well, `[]`, `[{"level": "warning", "text": "Hop h is down"}]`, 1)), nil, Degraded, ""},
		{"notice", answer(t, 200, strings.Replace(well, `[]`, `[{"level": "notice", "text": "3 log lines"}]`, 1)), nil, OK, ""},
		{"pair", answer(t, 200, strings.Replace(well, "{", `{"pairs": [{"tunnel": "a", "peer": "b", "up": false, "state": "lost"}], `, 1)), nil, Degraded, ""},
		{"history", answer(t, 200, strings.Replace(well, "{", `{"history": {"problem": "no space left"}, `, 1)), nil, Degraded, ""},
		{"ship", answer(t, 200, strings.Replace(well, "{", `{"history": {"ship": [{"sink": "db", "problem": "no rights", "waiting": 5}]}, `, 1)), nil, Degraded, ""},
		{"lost", answer(t, 200, strings.Replace(well, "{", `{"history": {"ship": [{"sink": "db", "lost": 5}]}, `, 1)), nil, OK, ""},
		{"older", answer(t, 200, `{"head": {"version": "longhaul v0.9.0"}, "tunnels": [{"state": "listening"}]}`), nil, OK, ""},
		{"starting", answer(t, 503, `{"error": "the relay has just started"}`), nil, Degraded, "the relay has just started"},
		{"wants a token", answer(t, 401, `{"error": "log in"}`), nil, Refused, "it asks for a token"},
		{"other token", answer(t, 401, `{"error": "log in"}`), func(r *Relay) { r.TokenFile = token }, Refused, "it does not take the token in " + token},
		{"forbidden", answer(t, 403, `{"error": "for root"}`), nil, Refused, "for root"},
		{"no file", answer(t, 200, well), func(r *Relay) { r.TokenFile = "/none" }, Refused, "the token file /none cannot be read"},
		{"no authority", answer(t, 200, well), func(r *Relay) { r.CA = token }, Refused, "has no certificate"},
		{"no TLS", answer(t, 200, well), func(r *Relay) { r.URL = strings.Replace(r.URL, "http:", "https:", 1) }, Refused, "does not speak TLS"},
		{"web server", answer(t, 404, "<html>"), nil, Refused, "what answers there is no dashboard: status 404"},
		{"redirect", answer(t, 302, ""), nil, Refused, "no dashboard: status 302"},
		{"no JSON", answer(t, 200, "[]"), nil, Refused, "no relay of longhaul"},
		{"nothing", answer(t, 200, "{}"), nil, Refused, "no relay of longhaul"},
		{"no name", "no-such-name.invalid:1", nil, Down, "no address of no-such-name.invalid"},
	} {
		r := relayAt(c.name, c.address)
		if c.set != nil {
			c.set(&r)
		}
		a := Ask(t.Context(), []Relay{r}, Options{}).Relays[0]
		if a.State != c.state || !strings.Contains(a.Problem, c.problem) || (a.Problem == "") != (c.problem == "") || (a.Problem != "" && a.Remedy == "") {
			t.Errorf("%s: %s, %q; %q, want %s, %q", c.name, a.State, a.Problem, a.Remedy, c.state, c.problem)
		}
	}
}

// TestTLS asks over TLS with a token, by a certificate of its own authority and without that.
func TestTLS(t *testing.T) {
	const secret = "a-token-that-is-long-enough"
	dir := t.TempDir()
	file := filepath.Join(dir, "token")
	nettest.Must(t, os.WriteFile(file, []byte(secret+"\n"), 0o600))
	cert, key := nettest.Certificate(t, dir, "relay-a.example.net")
	c, err := webconfig.Open("the dashboard", quiet, webconfig.ReadPair(cert, key))
	nettest.Must(t, err)
	l, err := httpd.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"))
	nettest.Must(t, err)
	d := web.New(web.Options{Monitor: webfake.New(1)})
	s := httpd.ServeTLS(l, webconfig.TLS(func() *webconfig.Guard { return c }), d.Handler(web.Access{Token: web.NewToken(secret), Named: c.Current().Names}), quiet, web.Limits)
	t.Cleanup(s.Close)
	r := Relay{Name: "a", URL: "https://" + l.Addr().String(), TokenFile: file, CA: cert, Timeout: patience}
	if a := Ask(t.Context(), []Relay{r}, Options{}).Relays[0]; a.Figures == nil {
		t.Errorf("%+v", a)
	}
	r.CA = ""
	report := Ask(t.Context(), []Relay{r}, Options{})
	if a := report.Relays[0]; a.State != Refused || !strings.Contains(a.Problem, "is not trusted: x509: ") {
		t.Errorf("%+v", a)
	}
	if text := textOf(t, report); strings.Contains(text, secret) {
		t.Errorf("the token is in\n%s", text)
	}
}

// TestHostileAnswers: answers that mean ill harm neither the terminal nor what the others say.
func TestHostileAnswers(t *testing.T) {
	escape := "\x1b]0;owned\x07\u202e\n\r"
	name := strconv.Quote(escape) // of Go: JSON takes no \a
	name = strings.NewReplacer(`\x1b`, `\u001b`, `\a`, `\u0007`).Replace(name)
	hostile := fmt.Sprintf(`{"head": {"version": %s, "flows_now": -5, "up_bps": 1e308, "down_bps": -1e308,
		"alerts": [%s{"level": %[1]s, "text": %[1]s}]}, "process": {}, "tunnels": [], "pairs": [{"peer": %[1]s, "tunnel": %[1]s}],
		"history": {"problem": %[1]s, "ship": [{"sink": %[1]s, "lost": 9000000000000000000, "lag_seconds": 1e300}, {"sink": "b", "lost": 9000000000000000000, "waiting": -1}]}}`,
		name, strings.Repeat(`{"level": "critical", "text": "flood `+strings.Repeat("x", 1000)+`"},`, 3000))
	endless := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, err := w.Write(make([]byte, 64<<10)); err == nil && r.Context().Err() == nil; {
			_, err = w.Write(bytes.Repeat([]byte(" "), 64<<10))
		}
	}))
	var turns atomic.Int64
	elsewhere := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { turns.Add(1) }))
	leads := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://"+elsewhere, http.StatusFound)
	}))
	relays := []Relay{
		relayAt("hostile", answer(t, 200, hostile)),
		relayAt("escapes", answer(t, 403, `{"error": `+name+`}`)),
		relayAt("deep", answer(t, 200, strings.Repeat(`{"head":`, 100_000))),
		relayAt("endless", endless),
		relayAt("leads", leads),
		relayAt("well", answer(t, 200, well)),
	}
	r := Ask(t.Context(), relays, Options{})
	for i, want := range []State{Degraded, Refused, Refused, Refused, Refused, OK} {
		if r.Relays[i].State != want {
			t.Errorf("%s: %s, want %s", relays[i].Name, r.Relays[i].State, want)
		}
	}
	if len(r.Relays[0].Alerts) > maxAlerts+4 || !strings.Contains(r.Relays[3].Problem, "longer than 4 MiB") || turns.Load() > 0 {
		t.Errorf("%d alerts, %q, %d followed", len(r.Relays[0].Alerts), r.Relays[3].Problem, turns.Load())
	}
	text := textOf(t, r)
	if !strings.Contains(text, "\nwell    v1.2.3    ok") || !strings.Contains(text, "hostile: 96 problems more; --json lists them") {
		t.Errorf("got\n%s", text)
	}
	if strings.Count(text, "\n") > 60 {
		t.Errorf("%d lines:\n%s", strings.Count(text, "\n"), text)
	}
}

// TestAtOnce holds that relays are asked a bounded number at a time.
func TestAtOnce(t *testing.T) {
	var now, most atomic.Int64
	leave := make(chan struct{})
	open := sync.OnceFunc(func() { close(leave) })
	address := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		if n == maxAtOnce {
			open()
		}
		<-leave
		_, _ = io.WriteString(w, well)
	}))
	relays := make([]Relay, maxAtOnce+1)
	for i := range relays {
		relays[i] = relayAt(fmt.Sprint(i), address)
	}
	if r := Ask(t.Context(), relays, Options{}); !r.Well || most.Load() != maxAtOnce {
		t.Errorf("%d at once: %+v", most.Load(), r.Problems)
	}
}

// TestVersions: one sentence names those that differ.
func TestVersions(t *testing.T) {
	var answers []Answer
	for i := range 50 {
		a := Answer{Name: fmt.Sprint("relay-", i), State: OK, Figures: &Figures{Version: "v1.3.0"}}
		if i%20 == 9 {
			a.Version = "v1.2.9"
		}
		answers = append(answers, a)
	}
	text := textOf(t, newReport(answers, time.Now()))
	if want := "\nVersions differ: 47 relays run v1.3.0, 3 relays run v1.2.9 (relay-9,\n  relay-29, relay-49)\n"; !strings.HasSuffix(text, want) {
		t.Errorf("got\n%s, want\n%s", text, want)
	}
	if text := textOf(t, newReport(answers[:5], time.Now())); strings.Contains(text, "differ") || !strings.HasPrefix(text, "5 relays: 5 ok\n") {
		t.Errorf("got\n%s", text)
	}
}

// TestWidestFigures: the table fits with the widest figures that there are.
func TestWidestFigures(t *testing.T) {
	a := Answer{Name: strings.Repeat("relay", 20), State: Degraded, Figures: &Figures{
		Version: "v10.20.30-rc1+dirty", Tunnels: 99_950, TunnelsUsable: 99_949, Pairs: 999, PairsUp: 999, UpBps: maxRate, DownBps: maxRate, FlowsNow: 1e18,
		Alerts: make([]Alert, maxAlerts), Ship: []Ship{{Lag: maxLag, Lost: 1e18}},
	}}
	text := textOf(t, newReport([]Answer{a, a}, time.Now()))
	if !strings.Contains(text, "\nrelay…relay v10.20.3… degraded 100k/100k 999/999 1.0E 1.0E  1.0E    100 31y 1.0E\n") {
		t.Errorf("got\n%s", text)
	}
}

// discoverFrom asks a server for the targets of a service.
func discoverFrom(ctx context.Context, t *testing.T, server, service string) ([]Relay, error) {
	t.Helper()
	resolver, err := ResolverAt(server)
	nettest.Must(t, err)
	return Discover(ctx, resolver, service)
}

// TestDiscover finds relays by the SRV records of Knot, and asks one by its name.
func TestDiscover(t *testing.T) {
	nettest.RequireSandbox(t)
	knotd := nettest.RequireProgram(t, "knotd", "knot")
	fake := answer(t, 200, well)
	_, port, _ := net.SplitHostPort(fake)
	var many strings.Builder
	for i := range maxTargets + 1 {
		fmt.Fprintf(&many, "_many._tcp SRV 0 0 %d relay-a\n", 10_000+i)
	}
	server := startKnot(t, knotd, `$ORIGIN example.net.
$TTL 60
@ SOA ns hostmaster 1 3600 600 864000 300
@ NS ns
ns A 127.0.0.1
relay-a A 127.0.0.1
relay-b A 127.0.0.1
_longhaul._tcp SRV 10 5 `+port+` Relay-B
_longhaul._tcp SRV 0 0 `+port+` relay-a
_longhaul._tcp SRV 0 0 9465 relay-a
_none._tcp SRV 0 0 0 .
_evil._tcp SRV 0 0 9464 relay.example.org.
`+many.String())
	relays, err := discoverFrom(t.Context(), t, server, "_longhaul._tcp.example.net")
	nettest.Must(t, err)
	want := []Relay{
		{Name: "relay-a:" + port, URL: "https://relay-a.example.net:" + port},
		{Name: "relay-a:9465", URL: "https://relay-a.example.net:9465"},
		{Name: "relay-b", URL: "https://relay-b.example.net:" + port},
	}
	slices.SortFunc(relays, func(a, b Relay) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(want, func(a, b Relay) int { return strings.Compare(a.Name, b.Name) })
	if !slices.Equal(relays, want) {
		t.Errorf("got %+v, want %+v", relays, want)
	}
	resolver, err := ResolverAt(server)
	nettest.Must(t, err)
	r := Relay{Name: "b", URL: "http://relay-b.example.net:" + port, Timeout: patience}
	if a := Ask(t.Context(), []Relay{r}, Options{Resolver: resolver}).Relays[0]; a.State != OK {
		t.Errorf("%+v", a)
	}
	for name, want := range map[string]string{
		"_missing._tcp.example.net": "no SRV records of _missing._tcp.example.net; add one for each relay, such as: _missing._tcp.example.net SRV 0 0 9464 relay-a.example.net.",
		"_none._tcp.example.net":    "_none._tcp.example.net has no target; add an SRV record for each relay",
		"_evil._tcp.example.net":    "_evil._tcp.example.net leads to relay.example.org, outside of example.net; list that relay in an inventory: a token goes only to hosts of the service's own domain",
		"_many._tcp.example.net":    "_many._tcp.example.net has 257 targets, and at most 256 are asked; give each site a service of its own, or list the relays in an inventory",
		"relays.example.net":        `invalid service "relays.example.net"; write it like _longhaul._tcp.example.net`,
	} {
		if _, err := discoverFrom(t.Context(), t, server, name); err == nil || remedy.Line(err) != want {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	if _, err := discoverFrom(t.Context(), t, nettest.FreeAddress(t, "127.0.0.1"), "_a._tcp.example.net"); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("without a server: %v", err)
	}
}

// startKnot serves the zone example.net, and returns the server's address.
func startKnot(t *testing.T, knotd, zone string) string {
	t.Helper()
	dir, address := t.TempDir(), nettest.FreeAddress(t, "127.0.0.1")
	nettest.Must(t, os.WriteFile(filepath.Join(dir, "zone"), []byte(zone), 0o600))
	host, port, _ := net.SplitHostPort(address)
	config := fmt.Sprintf("server:\n    rundir: %s\n    listen: %s@%s\n    user: root\ndatabase:\n    storage: %[1]s/db\nzone:\n  - domain: example.net\n    storage: %[1]s\n    file: zone\n", dir, host, port)
	nettest.Must(t, os.WriteFile(filepath.Join(dir, "knot.conf"), []byte(config), 0o600))
	startProgram(t, knotd, "-c", filepath.Join(dir, "knot.conf"))
	nettest.Eventually(t, patience, func() bool {
		_, err := discoverFrom(t.Context(), t, address, "_longhaul._tcp.example.net")
		return err == nil
	}, func() string {
		_, err := discoverFrom(t.Context(), t, address, "_longhaul._tcp.example.net")
		return fmt.Sprintf("Knot does not answer: %v", err)
	})
	return address
}

// startProgram starts a program that ends with the test.
func startProgram(t *testing.T, path string, args ...string) {
	t.Helper()
	var log bytes.Buffer
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = &log, &log
	nettest.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(path), log.String())
		}
	})
}

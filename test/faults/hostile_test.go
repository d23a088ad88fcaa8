package faults

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"longhaul/test/nettest"
	"longhaul/test/tcpscript"
)

const hostileToken = "0123456789abcdef0123456789abcdef"

// hostileRequests are what is sent to ports that serve HTTP. None may be answered
// with anything but a refusal.
var hostileRequests = map[string]string{
	"silence":                  "",
	"a slow request":           "GET /api/v1/overview HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
	"a line without an end":    "GET /" + strings.Repeat("a", 20<<10),
	"a header without an end":  "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + strings.Repeat("X: y\r\n", 4<<10),
	"an oversized header":      "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: " + strings.Repeat("c", 64<<10) + "\r\n\r\n",
	"garbage":                  "\x16\x03\x01\xff\xff\x00\x00" + strings.Repeat("\xff\x00", 500),
	"another site's request":   "GET /api/v1/overview HTTP/1.1\r\nHost: 127.0.0.1\r\nSec-Fetch-Site: cross-site\r\nOrigin: https://attacker.example\r\n\r\n",
	"another host":             "GET /api/v1/overview HTTP/1.1\r\nHost: attacker.example\r\n\r\n",
	"a login from another one": "POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: https://attacker.example\r\nContent-Length: 2\r\n\r\na=",
	"a huge body":              "POST /api/v1/overview HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999\r\n\r\n" + strings.Repeat("x", 64<<10),
	"two lengths":              "GET /api/v1/overview HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
	"a path that climbs":       "GET /assets/../../../etc/shadow HTTP/1.1\r\nHost: 127.0.0.1\r\nSec-Fetch-Site: cross-site\r\n\r\n",
}

// Of these only a server with a token is asked.
var guessedRequests = map[string]string{
	"a wrong token":    "GET /api/v1/overview HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer " + strings.Repeat("0", 32) + "\r\n\r\n",
	"a forged session": "GET /api/v1/live?view=overview HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: __Host-longhaul=99999999999.c2lnbmVk\r\n\r\n",
	"a wrong password": "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Basic cmVhZGVyOmd1ZXNzZWQ=\r\n\r\n",
	"no token":         "GET /api/v1/live?view=flows HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
}

// besieged are two relays whose ports for readers are attacked: one with the
// dashboard, the metrics and the health endpoint, one with the dashboard that takes
// TLS and a token. Flows echo through the first.
type besieged struct {
	open, secured              *daemon
	dashboard, health, overTLS string // addresses
	metrics                    string // over TLS, with a password
	nice                       string // the program
	flows                      []held
}

func newBesieged(t *testing.T) *besieged {
	t.Helper()
	nettest.RequireSandbox(t)
	b := &besieged{nice: nettest.RequireProgram(t, "nice", "coreutils")}
	dir := t.TempDir()
	cert, key := nettest.Certificate(t, dir, "localhost")
	tokenFile := filepath.Join(dir, "token")
	writeFile(t, tokenFile, hostileToken)
	listen := nettest.FreeAddress(t, "127.0.0.1")
	b.dashboard, b.health, b.overTLS = nettest.FreeAddress(t, "127.0.0.1"), nettest.FreeAddress(t, "127.0.0.1"), nettest.FreeAddress(t, "127.0.0.1")
	b.open = startDaemon(t, nil, unsupervised, fmt.Sprintf("control_socket: SOCKET\nhttp_listen: %s\ndashboard: {listen: %q}\n"+
		"tunnels: [{name: a, listen: %q, forward: %q}]\n", b.health, b.dashboard, listen, echo(t, "127.0.0.1:0")))
	web := filepath.Join(dir, "web.yaml")
	hash, err := bcrypt.GenerateFromPassword([]byte(hostileToken), bcrypt.MinCost)
	nettest.Must(t, err)
	writeFile(t, web, fmt.Sprintf("tls_server_config: {cert_file: %s, key_file: %s}\nbasic_auth_users: {reader: '%s'}\n", cert, key, hash))
	b.metrics = nettest.FreeAddress(t, "127.0.0.1")
	b.secured = startDaemon(t, nil, unsupervised, fmt.Sprintf("control_socket: SOCKET\ndashboard: {listen: %q, tls_cert: %q, tls_key: %q, token_file: %q}\n"+
		"http_listen: %s\nhttp_web_config: %s\ntunnels: [{name: b, listen: %q, forward: %q}]\n", b.overTLS, cert, key, tokenFile, b.metrics, web,
		nettest.FreeAddress(t, "127.0.0.1"), listen))
	for range 16 {
		b.flows = append(b.flows, hold(t, tcpscript.DialTo(listen)))
	}
	return b
}

// siegeTimes is how long things took during an attack; the timed tests judge it.
type siegeTimes struct {
	attack        outcome
	echoes        []time.Duration // the quickest first
	slowestAnswer time.Duration   // that a reader who means well waited for
	longestPause  time.Duration   // between two updates of the dashboard
}

// attack has hostile connections come, so many at a time, while the flows echo, a
// reader follows the dashboard, and others ask for the health, the metrics and the
// overview. Every hostile connection must be ended without an answer to its request,
// within a time, and every reader who means well must get what it asks for.
func (b *besieged) attack(t *testing.T, connections, together int, inTime time.Duration) (times siegeTimes) {
	t.Helper()
	// Who means well comes from another address.
	transport := &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // it is known
		DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext,
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: patience}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var well sync.WaitGroup
	var mu sync.Mutex // of times
	asked := map[string]*atomic.Int64{}
	for _, url := range []string{"http://" + b.health + "/healthz", "http://" + b.health + "/metrics", "http://" + b.dashboard + "/api/v1/overview", "https://" + b.overTLS + "/api/v1/overview",
		"https://" + b.metrics + "/metrics"} {
		n := new(atomic.Int64)
		asked[url] = n
		well.Go(func() {
			for ctx.Err() == nil {
				begin := time.Now()
				status, text, err := askWithToken(client, url)
				if err == nil && status == http.StatusOK {
					n.Add(1)
				} else if err != nil || !isLate(status, text) {
					t.Errorf("%s answers a reader who means well with status %d, %v: %.200s", url, status, err, text)
					return
				}
				mu.Lock()
				times.slowestAnswer = max(times.slowestAnswer, time.Since(begin))
				mu.Unlock()
				select {
				case <-ctx.Done():
				case <-time.After(50 * time.Millisecond):
				}
			}
		})
	}
	var updates atomic.Int64
	well.Go(func() {
		last := time.Now()
		err := followDashboard(ctx, transport, b.dashboard, "flows", func() {
			updates.Add(1)
			mu.Lock()
			times.longestPause = max(times.longestPause, time.Since(last))
			mu.Unlock()
			last = time.Now()
		})
		if ctx.Err() == nil {
			t.Errorf("the dashboard ends the updates of a reader: %v", err)
		}
	})

	echoing := useFlows(b.flows)
	o := attack{connections, together, inTime, []string{b.dashboard, b.health}, []string{b.overTLS, b.metrics}}.run(t, b.nice)
	times.echoes = echoing.end(t)
	for fault, n := range o.Faults {
		t.Errorf("%s, %d times", fault, n)
	}
	for url, n := range asked {
		nettest.Eventually(t, patience, func() bool { return n.Load() > 0 }, func() string { return url + " was never answered" })
	}
	nettest.Eventually(t, patience, func() bool { return updates.Load() >= 2 },
		func() string { return fmt.Sprintf("the reader of the dashboard had %d updates", updates.Load()) })
	cancel()
	well.Wait()
	times.attack = o
	for url, n := range asked {
		t.Logf("%s: %d answers", url, n.Load())
	}
	// Nothing stays of them: at most two addresses of 64 places, and what runs.
	for _, one := range []*daemon{b.open, b.secured} {
		nettest.Eventually(t, patience, func() bool { return descriptors(t, one.cmd.Process.Pid) < 200 }, func() string {
			return fmt.Sprintf("%d descriptors are open", descriptors(t, one.cmd.Process.Pid))
		})
	}
	return times
}

// askWithToken asks a server, with the token of the secured one.
func askWithToken(client *http.Client, url string) (status int, text string, err error) {
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Authorization", "Bearer "+hostileToken)
	if strings.HasSuffix(url, "/metrics") {
		r.SetBasicAuth("reader", hostileToken)
	}
	answer, err := client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	all, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(all), err
}

// Hostile connections come to the ports of the dashboard, the metrics and the health
// endpoint. All are refused; flows go on, and readers who mean well are answered.
func TestHostileReaders(t *testing.T) {
	t.Parallel()
	newBesieged(t).attack(t, 1000, 250, 2*patience)
}

// followDashboard reads a page's updates until ctx ends, or the dashboard ends them.
func followDashboard(ctx context.Context, transport http.RoundTripper, address, view string, update func()) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/api/v1/live?view="+view, nil)
	if err != nil {
		return err
	}
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "data: ") {
			update()
		}
	}
	return lines.Err()
}

func descriptors(t *testing.T, pid int) int {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// attackRole is the environment variable that has the test's program be the
// attacker: an attack, as JSON.
const attackRole = "LONGHAUL_TEST_ATTACK"

type attack struct {
	Connections, Together int
	InTime                time.Duration
	Plain                 []string // addresses of HTTP
	Secured               []string // of HTTPS
}

// outcome is how an attack went.
type outcome struct {
	Longest time.Duration  // of a connection
	Faults  map[string]int // what was not as it should be
}

// run has another process attack, one that yields to all others: attackers do not
// have the relay's CPUs.
func (a attack) run(t *testing.T, nice string) (o outcome) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(nice, "-n", "19", self)
	cmd.Env = append(os.Environ(), attackRole+"="+string(text))
	cmd.Stderr = os.Stderr
	said, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(said, &o)
	}
	if err != nil {
		t.Fatalf("the attacker: %v", err)
	}
	return o
}

// attacker is the other process.
func attacker() error {
	var a attack
	if err := json.Unmarshal([]byte(os.Getenv(attackRole)), &a); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(a.carryOut())
}

// carryOut makes the connections, some at a time.
func (a attack) carryOut() outcome {
	type kind struct {
		name, address, request string
		overTLS                bool
	}
	var kinds []kind
	for name, request := range hostileRequests {
		for _, address := range a.Plain {
			kinds = append(kinds, kind{name, address, request, false})
		}
		for _, address := range a.Secured {
			kinds = append(kinds, kind{name, address, request, false}, kind{name, address, request, true})
		}
	}
	for name, request := range guessedRequests {
		for _, address := range a.Secured {
			kinds = append(kinds, kind{name, address, request, true})
		}
	}
	o := outcome{Faults: map[string]int{}}
	var mu sync.Mutex
	var all sync.WaitGroup
	places := make(chan struct{}, a.Together)
	for i := range a.Connections {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			k := kinds[i%len(kinds)]
			begin := time.Now()
			status, err := assault(k.address, k.request, k.overTLS, a.InTime)
			took := time.Since(begin)
			mu.Lock()
			defer mu.Unlock()
			o.Longest = max(o.Longest, took)
			switch {
			case errors.Is(err, os.ErrDeadlineExceeded):
				o.Faults[fmt.Sprintf("%s at %s is not refused in time", k.name, k.address)]++
			case status >= 200 && status < 300: // a redirect leads to a refusal
				o.Faults[fmt.Sprintf("%s at %s is answered with %d", k.name, k.address, status)]++
			}
		})
	}
	all.Wait()
	return o
}

// assault sends a request and waits until the server has done with it. The
// status is 0 where there is none.
func assault(address, request string, overTLS bool, within time.Duration) (status int, err error) {
	c, err := net.DialTimeout("tcp", address, within)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(within))
	if overTLS {
		c = tls.Client(c, &tls.Config{InsecureSkipVerify: true}) // it is known
	}
	if request != "" {
		if _, err := io.WriteString(c, request); err != nil {
			return 0, err
		}
	}
	r := bufio.NewReader(c)
	line, err := r.ReadString('\n')
	if err != nil {
		return 0, err
	}
	_, _ = fmt.Sscanf(line, "HTTP/1.1 %d", &status)
	_, err = io.Copy(io.Discard, r)
	return status, err
}

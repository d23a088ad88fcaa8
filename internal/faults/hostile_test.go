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
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"longhaul/internal/nettest"
	"longhaul/internal/tcpscript"
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
	"no token":         "GET /api/v1/live?view=flows HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
}

// echoes are how long echoes through some flows take while they are watched.
type echoes struct {
	stop chan struct{}
	all  sync.WaitGroup
	mu   sync.Mutex
	took []time.Duration
	errs []error
}

func watchEchoes(flows []held) *echoes {
	e := &echoes{stop: make(chan struct{})}
	for _, h := range flows {
		e.all.Go(func() {
			pace := time.NewTicker(10 * time.Millisecond)
			defer pace.Stop()
			for {
				begin := time.Now()
				err := h.ping(patience)
				e.mu.Lock()
				if err != nil {
					e.errs = append(e.errs, err)
				}
				e.took = append(e.took, time.Since(begin))
				e.mu.Unlock()
				if err != nil {
					return
				}
				select {
				case <-e.stop:
					return
				case <-pace.C:
				}
			}
		})
	}
	return e
}

// end is the median, the 99th percentile and the longest of what they took.
func (e *echoes) end(t *testing.T) (median, p99, longest time.Duration) {
	t.Helper()
	close(e.stop)
	e.all.Wait()
	for _, err := range e.errs {
		t.Error("a flow that stood: ", err)
	}
	slices.Sort(e.took)
	n := len(e.took)
	return e.took[n/2], e.took[n*99/100], e.took[n-1]
}

// TestHostileReaders has ten thousand connections with hostile bytes come to the
// ports of the dashboard and of the metrics, while flows run, a reader follows
// the dashboard, and a load balancer asks for the relay's health.
func TestHostileReaders(t *testing.T) {
	const (
		connections = 10_000
		together    = 1000
		inTime      = 20 * time.Second // what a request may take, and its answer
	)
	refusal := inTime // the same of an attacker's
	if testing.Short() {
		refusal = 2 * time.Minute // who gets little of CPUs that others use as well
	}
	nettest.RequireSandbox(t)
	dir := t.TempDir()
	cert, key := nettest.Certificate(t, dir, "localhost")
	tokenFile := filepath.Join(dir, "token")
	writeFile(t, tokenFile, hostileToken)
	listen, open, closed, health := nettest.FreeAddress(t, "127.0.0.1"), nettest.FreeAddress(t, "127.0.0.1"), nettest.FreeAddress(t, "127.0.0.1"), nettest.FreeAddress(t, "127.0.0.1")
	tunnel := fmt.Sprintf("control_socket: SOCKET\nhttp_listen: %s\ntunnels: [{name: a, listen: %q, forward: %q}]\n", health, listen, echo(t, "127.0.0.1:0"))
	d := startDaemon(t, nil, unsupervised, tunnel+fmt.Sprintf("dashboard: {listen: %q}\n", open))
	// A second relay has the dashboard that takes TLS and the token.
	secured := startDaemon(t, nil, unsupervised, fmt.Sprintf("control_socket: SOCKET\ndashboard: {listen: %q, tls_cert: %q, tls_key: %q, token_file: %q}\n"+
		"tunnels: [{name: b, listen: %q, forward: %q}]\n", closed, cert, key, tokenFile, nettest.FreeAddress(t, "127.0.0.1"), listen))

	var flows []held
	for range 16 {
		flows = append(flows, hold(t, tcpscript.DialTo(listen)))
	}
	quiet := watchEchoes(flows)
	time.Sleep(3 * time.Second) // a measurement, not a condition
	median, p99, longest := quiet.end(t)
	t.Logf("echoes without a flood: median %v, 99 %% within %v, longest %v", median, p99, longest)

	// Who means well comes from another address.
	transport := &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // it is known
		DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext,
	}
	client := &http.Client{Transport: transport, Timeout: inTime}
	ctx, cancel := context.WithCancel(t.Context())
	var well sync.WaitGroup
	asked := map[string]*atomic.Int64{}
	var slowest atomic.Int64
	for _, url := range []string{"http://" + health + "/healthz", "http://" + health + "/metrics", "http://" + open + "/api/v1/overview", "https://" + closed + "/api/v1/overview"} {
		n := new(atomic.Int64)
		asked[url] = n
		well.Go(func() {
			for ctx.Err() == nil {
				r, err := http.NewRequest(http.MethodGet, url, nil)
				if err != nil {
					t.Error(err)
					return
				}
				r.Header.Set("Authorization", "Bearer "+hostileToken)
				var status int
				var text []byte
				askWhileLate(func() string {
					begin := time.Now()
					var answer *http.Response
					if answer, err = client.Do(r); err != nil {
						return ""
					}
					status = answer.StatusCode
					text, err = io.ReadAll(answer.Body)
					answer.Body.Close()
					for took, old := int64(time.Since(begin)), slowest.Load(); took > old && !slowest.CompareAndSwap(old, took); old = slowest.Load() {
					}
					if status != http.StatusServiceUnavailable {
						return ""
					}
					return string(text)
				})
				if err != nil || status != http.StatusOK {
					t.Errorf("%s: %d %.200s, %v", url, status, text, err)
					return
				}
				n.Add(1)
				select {
				case <-ctx.Done():
				case <-time.After(50 * time.Millisecond):
				}
			}
		})
	}
	var updates, pause atomic.Int64
	well.Go(func() {
		last := time.Now()
		err := followDashboard(ctx, transport, open, "flows", func() {
			updates.Add(1)
			pause.Store(max(pause.Load(), int64(time.Since(last))))
			last = time.Now()
		})
		if ctx.Err() == nil {
			t.Error("the reader was let go: ", err)
		}
	})

	flooded := watchEchoes(flows)
	begin := time.Now()
	before := d.cpu() + secured.cpu()
	o := attack{connections, together, refusal, []string{open, health}, closed}.run(t)
	took := time.Since(begin)
	spent := d.cpu() + secured.cpu() - before
	median, p99, longest = flooded.end(t)
	t.Logf("%d hostile connections in %v, each done with within %v; the relays took %v of CPU", connections, took.Round(time.Millisecond), o.Longest.Round(time.Millisecond), spent)
	for fault, n := range o.Faults {
		t.Errorf("%s, %d times", fault, n)
	}
	t.Logf("echoes meanwhile: median %v, 99 %% within %v, longest %v", median, p99, longest)
	cancel()
	well.Wait()
	for url, n := range asked {
		t.Logf("%s: %d answers", url, n.Load())
		if n.Load() == 0 {
			t.Errorf("%s was never answered", url)
		}
	}
	t.Logf("the slowest of them took %v; the live reader had %d updates, at most %v apart", time.Duration(slowest.Load()), updates.Load(), time.Duration(pause.Load()))
	if p99 > 2*time.Second || longest > patience/2 {
		t.Errorf("an echo took %v, 1 %% of them more than %v", longest, p99)
	}
	if updates.Load() < 2 {
		t.Errorf("the reader had %d updates", updates.Load())
	}
	// Nothing stays of them: two addresses of 64 places, and what runs.
	for _, one := range []*daemon{d, secured} {
		nettest.Eventually(t, patience, func() bool { return descriptors(t, one.cmd.Process.Pid) < 200 }, func() string {
			return fmt.Sprintf("%d descriptors are open", descriptors(t, one.cmd.Process.Pid))
		})
	}
	transport.CloseIdleConnections()
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
	Secured               string   // of HTTPS
}

// outcome is how an attack went.
type outcome struct {
	Longest time.Duration  // of a connection
	Faults  map[string]int // what was not as it should be
}

// run has another process attack, one that yields to all others: attackers do not
// have the relay's CPUs.
func (a attack) run(t *testing.T) (o outcome) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(nettest.RequireProgram(t, "nice", "coreutils"), "-n", "19", self)
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
		kinds = append(kinds, kind{name, a.Secured, request, false}, kind{name, a.Secured, request, true})
	}
	for name, request := range guessedRequests {
		kinds = append(kinds, kind{name, a.Secured, request, true})
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

package httpd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

const patience = time.Minute

var quiet = slog.New(slog.DiscardHandler)

// serveOn starts a server on a free port and returns its address.
func serveOn(t *testing.T, host string, handler http.Handler, limits Limits) string {
	t.Helper()
	l, err := Listen(t.Context(), netip.MustParseAddrPort(nettest.FreeAddress(t, host)))
	if err != nil {
		t.Fatal(err)
	}
	s := Serve(l, handler, quiet, limits)
	t.Cleanup(s.Close)
	return l.Addr().String()
}

var hello = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello") })

func get(t *testing.T, address string) (int, string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	status, body, err := Get(ctx, address, "/", 100)
	return status, string(body), err
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	var d net.Dialer
	d.SetMultipathTCP(false)
	c, err := d.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return c
}

// gone reports whether the server has closed the connection.
func gone(c net.Conn) bool {
	_, err := c.Read(make([]byte, 1))
	return err == io.EOF || errors.Is(err, syscall.ECONNRESET)
}

func TestAnswers(t *testing.T) {
	nettest.CheckLeaks(t)
	address := serveOn(t, "127.0.0.1", hello, DefaultLimits)
	if status, body, err := get(t, address); status != 200 || body != "hello" || err != nil {
		t.Errorf("%d %q %v", status, body, err)
	}
	// One request per connection.
	c := dial(t, address)
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n")
	all, err := io.ReadAll(c)
	if n := strings.Count(string(all), "hello"); n != 1 || err != nil {
		t.Errorf("%d answers on a connection, %v", n, err)
	}
}

// TestFinish: the server answers clients that connected before, and refuses
// later ones.
func TestFinish(t *testing.T) {
	nettest.CheckLeaks(t)
	l, err := Listen(t.Context(), netip.MustParseAddrPort(nettest.FreeAddress(t, "127.0.0.1")))
	if err != nil {
		t.Fatal(err)
	}
	asked, goOn := make(chan struct{}), make(chan struct{})
	s := Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked <- struct{}{}
		<-goOn
		fmt.Fprint(w, "hello")
	}), quiet, DefaultLimits)
	address := l.Addr().String()
	// The server accepts them in this order, so the last one's request proves
	// that it has accepted all.
	silent, slow, busy := dial(t, address), dial(t, address), dial(t, address)
	fmt.Fprint(busy, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	<-asked
	fmt.Fprint(slow, "GET / HTTP/1.1\r\n")
	ctx, cancel := context.WithCancel(t.Context())
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		s.Finish(ctx)
	}()
	nettest.Eventually(t, patience, func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	}, func() string { return "it still listens" })
	fmt.Fprint(slow, "Host: x\r\n\r\n") // the rest of its request
	<-asked
	close(goOn)
	for name, c := range map[string]net.Conn{"busy": busy, "slow": slow} {
		if reply, err := io.ReadAll(c); err != nil || !strings.HasSuffix(string(reply), "hello") {
			t.Errorf("the %s client gets %q, %v", name, reply, err)
		}
	}
	cancel() // stop waiting for the silent client
	<-finished
	if !gone(silent) {
		t.Error("a client that says nothing is still there")
	}
}

func TestAnswerThatIsTooLong(t *testing.T) {
	address := serveOn(t, "127.0.0.1", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, strings.Repeat("x", 101))
	}), DefaultLimits)
	if _, _, err := get(t, address); !errors.Is(err, ErrCut) {
		t.Errorf("got %v", err)
	}
}

func TestSlowRequests(t *testing.T) {
	nettest.CheckLeaks(t)
	limits := Limits{Request: 100 * time.Millisecond, Reply: patience, HeaderBytes: 1 << 10, Connections: 8}
	address := serveOn(t, "127.0.0.1", hello, limits)
	for name, request := range map[string]string{
		"nothing":       "",
		"a line":        "GET / HTTP/1.1\r\n",
		"half a header": "GET / HTTP/1.1\r\nHost: x\r\nX: y",
	} {
		c := dial(t, address)
		fmt.Fprint(c, request)
		if answer, err := io.ReadAll(c); strings.Contains(string(answer), "hello") || err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %q, %v", name, answer, err)
		}
	}
}

func TestHugeRequests(t *testing.T) {
	nettest.CheckLeaks(t)
	address := serveOn(t, "127.0.0.1", hello, Limits{Request: patience, Reply: patience, HeaderBytes: 1 << 10, Connections: 8})
	c := dial(t, address)
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: x\r\nX: %s\r\n\r\n", strings.Repeat("y", 100<<10))
	// The answer may be lost: unread bytes make the server's socket reset.
	if line, err := bufio.NewReader(c).ReadString('\n'); !strings.HasPrefix(line, "HTTP/1.1 431 ") && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a header of 100 KiB is answered with %q, %v", line, err)
	}
	if status, _, err := get(t, address); status != 200 {
		t.Errorf("after it: %d, %v", status, err)
	}
}

func TestSlowReader(t *testing.T) {
	nettest.CheckLeaks(t)
	failed := make(chan error, 1)
	address := serveOn(t, "127.0.0.1", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		block := make([]byte, 1<<20)
		for {
			if _, err := w.Write(block); err != nil {
				failed <- err
				return
			}
		}
	}), Limits{Request: patience, Reply: 200 * time.Millisecond})
	c := dial(t, address)
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	select {
	case <-failed:
	case <-time.After(patience):
		t.Error("a reader that does not read holds its place for ever")
	}
}

// A silent flood locks out no client: its own connections are closed.
func TestFloodOfSilentConnections(t *testing.T) {
	nettest.CheckLeaks(t)
	const places = 4
	address := serveOn(t, "127.0.0.1", hello, Limits{Request: time.Minute, Reply: time.Minute, Connections: places})
	var flood []net.Conn
	for range 10 * places {
		flood = append(flood, dial(t, address))
	}
	if status, _, err := get(t, address); status != 200 {
		t.Fatalf("a request among them: %d, %v", status, err)
	}
	left := 0
	for i, c := range flood {
		if i < len(flood)-places {
			if !gone(c) {
				t.Errorf("connection %d is still there", i)
			}
			continue
		}
		c.SetDeadline(time.Now().Add(10 * time.Millisecond))
		if !gone(c) {
			left++
		}
	}
	if left == 0 || left > places {
		t.Errorf("%d connections of %d places are left", left, places)
	}
}

// Of two sources, the one with more connections loses some, although the
// other's is older and also silent.
func TestFloodHurtsItsSource(t *testing.T) {
	nettest.RequireSandbox(t)
	const places = 4
	address := serveOn(t, "127.0.0.1", hello, Limits{Request: time.Minute, Reply: time.Minute, Connections: places})
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	d.SetMultipathTCP(false)
	slow, err := d.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	slow.SetDeadline(time.Now().Add(patience))
	fmt.Fprint(slow, "GET / HTTP/1.1\r\n")
	var first net.Conn
	for range 10 * places {
		if c := dial(t, address); first == nil {
			first = c
		}
	}
	if !gone(first) {
		t.Error("the flood's first connection still has its place")
	}
	fmt.Fprint(slow, "Host: x\r\n\r\n")
	if answer, err := io.ReadAll(slow); !strings.Contains(string(answer), "hello") || err != nil {
		t.Errorf("the other source's request: %q, %v", answer, err)
	}
}

// Connections with a request are closed last.
func TestRequestsBeforeSilence(t *testing.T) {
	const places = 4
	begun, finish := make(chan struct{}), make(chan struct{})
	var waiting atomic.Int32
	address := serveOn(t, "127.0.0.1", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if waiting.Add(1) == 1 {
			close(begun)
		}
		<-finish
		fmt.Fprint(w, "hello")
	}), Limits{Request: time.Minute, Reply: time.Minute, Connections: places})
	c := dial(t, address)
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	<-begun
	for range 10 * places {
		dial(t, address)
	}
	close(finish)
	if answer, err := io.ReadAll(c); !strings.Contains(string(answer), "hello") || err != nil {
		t.Errorf("%q, %v", answer, err)
	}
}

func TestListenSaysWhatToDo(t *testing.T) {
	at := netip.MustParseAddrPort(nettest.FreeAddress(t, "127.0.0.1"))
	l, err := Listen(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := Listen(t.Context(), at); err == nil || !strings.Contains(err.Error(), "address already in use; stop what listens there") {
		t.Errorf("got %v", err)
	}
	if _, err := Listen(t.Context(), netip.MustParseAddrPort("192.0.2.1:80")); err == nil || !strings.Contains(err.Error(), "give this machine the address first") {
		t.Errorf("got %v", err)
	}
}

// A kept answer frees its place, outlives a flood from its own source, and ends
// with the server. The connections are in memory, and time is synctest's.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const (
			places = 4
			limit  = 2 * time.Second // of a request, and of a reply
		)
		l := nettest.ListenPipe()
		left := make(chan struct{})
		s := Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/lasts" {
				fmt.Fprint(w, "hello")
				return
			}
			leave, ok := Keep(w, r)
			if !ok {
				http.Error(w, "full", http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintln(w, "begun")
			http.NewResponseController(w).Flush()
			select {
			case <-leave:
				fmt.Fprintln(w, "ended")
				close(left)
			case <-r.Context().Done():
			}
		}), quiet, Limits{Request: limit, Reply: limit, Connections: places, Kept: 1})
		connect := func() net.Conn {
			c, err := l.Dial()
			nettest.Must(t, err)
			t.Cleanup(func() { c.Close() })
			return c
		}
		ask := func(path string) net.Conn {
			c := connect()
			_, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path)
			nettest.Must(t, err)
			return c
		}
		expectStatus := func(path string, want int) {
			t.Helper()
			r, err := http.ReadResponse(bufio.NewReader(ask(path)), nil)
			nettest.Must(t, err)
			if r.StatusCode != want {
				t.Errorf("a request for %s beside it is answered with %s, want %d", path, r.Status, want)
			}
			_, err = io.Copy(io.Discard, r.Body)
			nettest.Must(t, err)
		}
		lines := bufio.NewReader(ask("/lasts"))
		expect := func(text string) {
			t.Helper()
			for {
				line, err := lines.ReadString('\n')
				if err != nil {
					t.Fatalf("no %s: %v", text, err)
				}
				if strings.TrimSpace(line) == text {
					return
				}
			}
		}
		expect("begun")
		expectStatus("/lasts", http.StatusServiceUnavailable)
		for range 10 * places {
			connect()
		}
		for range 10 { // longer than a request and a reply may take together
			expectStatus("/", http.StatusOK)
			time.Sleep(limit / 2) // on synctest's clock
		}
		select {
		case <-left:
			t.Fatal("it ended before the server")
		default:
		}
		finished := make(chan struct{})
		go func() {
			defer close(finished)
			s.Finish(t.Context())
		}()
		expect("ended")
		<-finished
	})
}

// One source may hold every kept place while no other wants one. It then loses
// places until both have as many. At 1818be3 it kept all.
func TestKeptPlacesAreShared(t *testing.T) {
	nettest.RequireSandbox(t)
	nettest.CheckLeaks(t)
	const places = 4
	address := serveOn(t, "127.0.0.1", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		leave, ok := Keep(w, r)
		if !ok {
			http.Error(w, "full", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, "stays")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-leave:
		case <-r.Context().Done():
		}
	}), Limits{Request: time.Minute, Reply: time.Minute, Connections: 8, Kept: places})
	expect := func(source byte, want int) (ends *bufio.Reader) {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, source)}}
		d.SetMultipathTCP(false)
		c, err := d.DialContext(t.Context(), "tcp", address)
		nettest.Must(t, err)
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(patience))
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		ends = bufio.NewReader(c)
		r, err := http.ReadResponse(ends, nil)
		nettest.Must(t, err)
		if r.StatusCode != want {
			t.Errorf("source %d is answered with %s, want %d", source, r.Status, want)
		}
		return ends
	}
	var first []*bufio.Reader
	for range places {
		first = append(first, expect(1, http.StatusOK))
	}
	expect(1, http.StatusServiceUnavailable)
	expect(2, http.StatusOK)
	expect(2, http.StatusOK)
	expect(3, http.StatusOK)
	expect(2, http.StatusServiceUnavailable) // its source would have more than the other
	expect(3, http.StatusServiceUnavailable)
	for i, ends := range first[:places-1] {
		if _, err := io.Copy(io.Discard, ends); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("answer %d of the first source goes on", i)
		}
	}
}

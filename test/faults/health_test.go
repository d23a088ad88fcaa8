package faults

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"longhaul/internal/sys/httpd"
	"longhaul/lab/hosts"
	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
	"longhaul/test/tcpscript"
)

// healthOf asks a relay's HTTP server.
func healthOf(t *testing.T, address, target string) (status int, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	status, body, err := httpd.Get(ctx, address, target, 4096)
	if err != nil {
		t.Errorf("%s: %v", target, err)
	}
	return status, string(body)
}

// expectHealth waits until a relay's HTTP server answers with a status.
func expectHealth(t *testing.T, when, address, target string, want int) {
	t.Helper()
	var status int
	var text string
	nettest.Eventually(t, patience, func() bool {
		status, text = healthOf(t, address, target)
		return status == want
	}, func() string { return fmt.Sprintf("%s: %s answers %d, want %d: %s", when, target, status, want, text) })
}

// isLate says whether an answer is that an event loop is late, which is so where the
// machine has stopped its thread for a second.
func isLate(status int, text string) bool {
	return status == http.StatusServiceUnavailable && strings.Contains(text, "does not answer")
}

// The relay's event loops are held up from outside: it is alive no more, and
// the answer says so.
func TestStuckRelayIsNotReady(t *testing.T) {
	t.Parallel()
	listen, web := nettest.FreeAddress(t, "127.0.0.1"), nettest.FreeAddress(t, "127.0.0.1")
	relay := startDaemon(t, nil, unsupervised, "http_listen: "+web+"\n"+single(listen, echo(t, "127.0.0.1:0"), ""))
	expectReady := func(when string, args ...string) {
		t.Helper()
		var out string
		var code int
		nettest.Eventually(t, patience, func() bool {
			out, code = command(t, append([]string{"ready"}, args...)...)
			return code == 0
		}, func() string { return fmt.Sprintf("%s: longhaul ready ends with %d: %s", when, code, out) })
	}
	expectReady("before", "--http", web)
	relay.signal(syscall.SIGSTOP)
	out, code := command(t, "ready", "main", "--http", web, "--timeout", "300ms")
	if code != 1 || !strings.Contains(out, "did not answer within 300ms") {
		t.Errorf("of a stopped relay, longhaul ready ends with %d and says %s", code, out)
	}
	relay.signal(syscall.SIGCONT)
	expectReady("goes on", "--control-socket", relay.socket())
}

// The relay does not come to accepting for a while, and more clients come than
// its queue holds. The kernel drops some; they try again and are served, and
// log and status say what happened.
func TestFullAcceptQueue(t *testing.T) {
	t.Parallel()
	const queue, clients = 4, 12
	p := newPath(t)
	if err := p.Host("relay").Sysctl("net.core.somaxconn", strconv.Itoa(queue)); err != nil {
		t.Fatal(err)
	}
	relay := p.relay(p.config(""))
	serveEcho(t, p.listen(targetPort))
	dial := p.dialTo(listenPort)
	hold(t, dial).release(t)
	relay.signal(syscall.SIGSTOP)
	served := make(chan error, clients)
	for range clients {
		go func() {
			h, err := tryHold(context.Background(), dial, patience)
			if err == nil {
				h.Close()
			}
			served <- err
		}()
	}
	var overflows float64
	nettest.Eventually(t, patience, func() bool {
		overflows = listenOverflows(t, p.Host("relay"))
		return overflows > 0
	}, func() string { return "the queue does not overflow" })
	relay.signal(syscall.SIGCONT)
	for range clients {
		if err := <-served; err != nil {
			t.Error("a client that tried again: ", err)
		}
	}
	relay.expectLog(`level=WARN msg="connections came faster than the relay accepted them: .*dropped=\d+ listen=10.1.0.2:6000 queue=4 `)
	q := relay.status().tunnel("main").AcceptQueues
	if len(q) != 1 || q[0].Limit != queue || q[0].Waiting != 0 || q[0].Dropped == 0 {
		t.Errorf("the accept queues are %+v; want one of %d that is empty and has dropped connections", q, queue)
	}
}

// listenOverflows is how often an accept queue of the host was full.
func listenOverflows(t *testing.T, host *hosts.Host) (n float64) {
	t.Helper()
	err := host.Do(func() error {
		self, err := procfs.Self()
		if err != nil {
			return err
		}
		thread, err := self.Thread(unix.Gettid())
		if err != nil {
			return err
		}
		netstat, err := thread.Netstat()
		if err == nil {
			n = *netstat.ListenOverflows
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A flood of connections to the health endpoint that ask nothing, or never end
// to ask, keeps nobody else from being answered, and holds few descriptors.
func TestHealthUnderFlood(t *testing.T) {
	t.Parallel()
	healthUnderFlood(t)
}

// healthUnderFlood returns how long the slowest health check took.
func healthUnderFlood(t *testing.T) (slowest time.Duration) {
	t.Helper()
	listen, web := nettest.FreeAddress(t, "127.0.0.1"), nettest.FreeAddress(t, "127.0.0.1")
	relay := startDaemon(t, nil, unsupervised, "http_listen: "+web+"\n"+single(listen, echo(t, "127.0.0.1:0"), ""))
	before := relay.status().Process
	stop := make(chan struct{})
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			var conns []net.Conn
			defer func() {
				for _, c := range conns {
					c.Close()
				}
			}()
			for {
				select {
				case <-stop:
					return
				default:
				}
				c, err := tcpscript.DialTo(web)(t.Context())
				if err != nil {
					continue // it may be reset right away
				}
				if i%2 == 0 {
					fmt.Fprint(c, "GET /readyz HTTP/1.1\r\nHost: x\r\nX: ")
				}
				if conns = append(conns, c); len(conns) > 100 {
					conns[0].Close()
					conns = conns[1:]
				}
			}
		})
	}
	const checks = 50
	for i := range checks {
		begin := time.Now()
		status, text, err := askFrom("127.0.0.2", web, "/readyz")
		slowest = max(slowest, time.Since(begin))
		if err != nil || status != http.StatusOK && !isLate(status, text) {
			t.Errorf("health check %d of %d within a flood: status %d, %v: %s", i+1, checks, status, err, text)
		}
	}
	now := relay.status().Process
	close(stop)
	all.Wait()
	t.Logf("%d descriptors within the flood, %d before", now.Descriptors, before.Descriptors)
	if now.Descriptors > before.Descriptors+80 || now.Goroutines > before.Goroutines+200 {
		t.Errorf("within a flood the relay holds %+v, before %+v", now, before)
	}
	nettest.Eventually(t, patience, func() bool {
		p := relay.status().Process
		return p.Descriptors <= before.Descriptors+1 && p.Goroutines <= before.Goroutines+2
	},
		func() string { return fmt.Sprintf("left: %+v, before %+v", relay.status().Process, before) })
	return slowest
}

// askFrom asks an HTTP server from an address of this host.
func askFrom(from, address, target string) (status int, text string, err error) {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext}
	return askWithToken(&http.Client{Transport: transport, Timeout: patience}, "http://"+address+target)
}

// TestTargetSeesNoHealthCheck: end-to-end checks ask the target's kernel alone, and find out when it
// dies. An operator's check connects, and says whole only if bytes of the target came back.
func TestTargetSeesNoHealthCheck(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ greeting, says string }{
		"a target that greets":       {"220 ready\r\n", "main: whole: one relay on, "},
		"a target that says nothing": {"", "main: accepts: one relay on, "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := nettest.ListenTCP(t, "127.0.0.1:0")
			var accepted atomic.Int64
			stop := tcpserver.Serve(l, func(c2 net.Conn) {
				accepted.Add(1)
				_, _ = io.WriteString(c2, c.greeting)
				tcpserver.Discard(c2)
			})
			defer stop()
			key := filepath.Join(t.TempDir(), "key")
			if out, code := command(t, "check", "--new-key", key); code != 0 {
				t.Fatal(out)
			}
			middle := nettest.FreeAddress(t, "127.0.0.1")
			far := startDaemon(t, nil, unsupervised, single(middle, l.Addr().String(), "check: {key_file: "+key+", next: target}"))
			near := startDaemon(t, nil, unsupervised, single(nettest.FreeAddress(t, "127.0.0.1"), middle,
				"check: {key_file: "+key+", next: relay}\n    health: {check: end-to-end, interval: 100ms, timeout: 10s, fall: 1}"))
			const checks = 20
			nettest.Eventually(t, patience, func() bool { return far.status().tunnel("main").Checks >= checks },
				func() string { return "the far relay gets no checks" })
			seen := accepted.Load()
			if seen > checks/2 {
				t.Errorf("the target's program has seen %d of %d checks", seen, checks)
			}
			if out, code := command(t, "check", "main", "--control-socket", near.socket()); code != 0 || !strings.HasPrefix(out, c.says) {
				t.Errorf("check ends with %d and says %s, want %s", code, out, c.says)
			}
			if accepted.Load() == seen {
				t.Error("the target has seen nothing of an operator's check")
			}
			stop()
			near.expectLog("hop gets no new flows.*refuses the connection")
		})
	}
}

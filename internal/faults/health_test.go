package faults

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"longhaul/internal/httpd"
	"longhaul/internal/lab/hosts"
	"longhaul/internal/nettest"
	"longhaul/internal/tcpscript"
)

// healthOf asks a relay's HTTP server.
func healthOf(t *testing.T, address, target string) (status int, text string) {
	t.Helper()
	askWhileLate(func() string {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var body []byte
		var err error
		if status, body, err = httpd.Get(ctx, "tcp", address, target, 4096); err != nil {
			t.Errorf("%s: %v", target, err)
		}
		text = string(body)
		return text
	})
	return status, text
}

// askWhileLate asks for a relay's health again while the answer is that an event
// loop is late, which is so where the machine has stopped its thread for a second.
func askWhileLate(ask func() (answer string)) {
	for end := time.Now().Add(patience); strings.Contains(ask(), "does not answer") && time.Now().Before(end); {
		time.Sleep(50 * time.Millisecond)
	}
}

// The relay's event loops are held up from outside: it is alive no more, and
// whoever asks is told so in time.
func TestStuckRelayIsNotReady(t *testing.T) {
	t.Parallel()
	listen, web := nettest.FreeAddress(t, "127.0.0.1"), nettest.FreeAddress(t, "127.0.0.1")
	relay := startDaemon(t, nil, unsupervised, "http_listen: "+web+"\n"+single(listen, echo(t, "127.0.0.1:0"), ""))
	var out string
	var code int
	askWhileLate(func() string {
		out, code = command(t, "ready", "--http", web)
		return out
	})
	if code != 0 {
		t.Errorf("%d %s", code, out)
	}
	relay.signal(syscall.SIGSTOP)
	begin := time.Now()
	out, code = command(t, "ready", "main", "--http", web, "--timeout", "300ms")
	if code != 1 || !regexp.MustCompile(`did not answer within 300ms`).MatchString(out) {
		t.Errorf("a stopped relay: %d %s", code, out)
	}
	if took := time.Since(begin); took > patience/3 {
		t.Errorf("that took %v", took)
	}
	relay.signal(syscall.SIGCONT)
	nettest.Eventually(t, patience, func() bool { _, code := command(t, "ready", "--control-socket", relay.socket()); return code == 0 }, func() string { return "it does not become ready again" })
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
			h, err := tryHold(context.Background(), dial, 4*patience)
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
	relay.expectLog(`level=WARN msg="connections came faster than they were accepted: .*dropped=\d+ listen=10.1.0.2:6000 queue=4 `)
	q := relay.status().tunnel("main").AcceptQueues
	if len(q) != 1 || q[0].Limit != queue || q[0].Waiting != 0 || q[0].Dropped == 0 {
		t.Errorf("%+v", q)
	}
}

// listenOverflows is how often an accept queue of the host was full.
func listenOverflows(t *testing.T, host *hosts.Host) (n float64) {
	t.Helper()
	var data []byte
	err := host.Do(func() (err error) {
		data, err = os.ReadFile("/proc/thread-self/net/netstat")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "TcpExt:" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		i := slices.Index(names, "ListenOverflows")
		if n, err = strconv.ParseFloat(fields[i], 64); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// A flood of connections to the health endpoint that ask nothing, or never end
// to ask, keeps nobody else from being answered, and holds few descriptors.
func TestHealthUnderFlood(t *testing.T) {
	t.Parallel()
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
	slowest := time.Duration(0)
	const checks = 50
	for i := range checks {
		var answer string
		var err error
		askWhileLate(func() string {
			begin := time.Now()
			answer, err = askFrom("127.0.0.2", web, "/readyz")
			slowest = max(slowest, time.Since(begin))
			return answer
		})
		if err != nil || !strings.Contains(answer, "200 OK") {
			t.Errorf("health check %d of %d: %q, %v", i+1, checks, answer, err)
		}
	}
	now := relay.status().Process
	close(stop)
	all.Wait()
	t.Logf("the slowest of %d health checks within the flood took %v; %d descriptors, %d before", checks, slowest.Round(time.Millisecond), now.Descriptors, before.Descriptors)
	if slowest > patience/2 {
		t.Error("a flood keeps others waiting")
	}
	if now.Descriptors > before.Descriptors+80 || now.Goroutines > before.Goroutines+200 {
		t.Errorf("%+v, before %+v", now, before)
	}
	nettest.Eventually(t, patience, func() bool {
		p := relay.status().Process
		return p.Descriptors <= before.Descriptors+1 && p.Goroutines <= before.Goroutines+2
	},
		func() string { return fmt.Sprintf("left: %+v, before %+v", relay.status().Process, before) })
}

// askFrom sends a request from an address of this host.
func askFrom(from, to, target string) (answer string, err error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: patience}
	d.SetMultipathTCP(false)
	c, err := d.Dial("tcp", to)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", target); err != nil {
		return "", err
	}
	all, err := io.ReadAll(c)
	return string(all), err
}

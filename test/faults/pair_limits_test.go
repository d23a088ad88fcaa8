package faults

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/proxyproto"
	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
)

// limited is a relay with a rule that bounds flows: alone, or one of two paired relays, of which the
// other one has no such rule.
type limited struct {
	t       *testing.T
	listen  string
	decides *daemon
	other   *daemon // of a pair
	// farDecides: the far relay of a pair has the rule.
	farDecides bool
}

// rule is a bound that the manual promises. The relay decides by the same code whether a carrier has the
// flow or the event loop, so its words and counters are the same.
type rule struct {
	name    string
	process string // settings of the process that has the rule
	tunnel  string // settings of the tunnel that has it
	target  func(*testing.T) string
	notFar  string // why a far relay has no such rule; "": it does
	notNear string // the same of a near relay
	reason  flow.EndReason
	do      func(*limited)
}

const (
	limitedHost = "127.79.3.1"
	anotherHost = "127.79.3.2"
)

func deafTarget(t *testing.T) string {
	return serve(t, limitedHost+":0", func(net.Conn) { <-t.Context().Done() })
}

func echoingTarget(t *testing.T) string { return echo(t, limitedHost+":0") }

// fullListener accepts no further connection: SYNs get no answer.
func fullListener(t *testing.T) string {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	nettest.Must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	nettest.Must(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: netip.MustParseAddr(limitedHost).As4()}))
	nettest.Must(t, unix.Listen(fd, 0))
	at, err := unix.Getsockname(fd)
	nettest.Must(t, err)
	address := net.JoinHostPort(limitedHost, strconv.Itoa(at.(*unix.SockaddrInet4).Port))
	c, err := net.Dial("tcp", address)
	nettest.Must(t, err)
	t.Cleanup(func() { c.Close() })
	return address
}

var rules = []rule{
	{name: "max_flows", tunnel: "max_flows: 1", target: echoingTarget, reason: flow.EndFlowLimit, do: func(l *limited) {
		h := l.hold(limitedHost)
		l.expectRefused(limitedHost)
		l.end(h)
	}},
	{name: "share of max_flows", tunnel: "max_flows: 9", target: echoingTarget, reason: flow.EndFlowLimit, do: func(l *limited) {
		var all []held
		for range 8 {
			all = append(all, l.hold(limitedHost))
		}
		l.expectRefused(limitedHost)
		l.end(append(all, l.hold(anotherHost))...)
	}},
	{name: "max_flows_per_source", tunnel: "max_flows_per_source: 1", target: echoingTarget, reason: flow.EndFlowLimit, do: func(l *limited) {
		h := l.hold(limitedHost)
		l.expectRefused(limitedHost)
		l.end(h, l.hold(anotherHost))
	}},
	{name: "new_flows_per_second", tunnel: "new_flows_per_second: 0.001", target: echoingTarget, reason: flow.EndRateLimit, do: func(l *limited) {
		l.end(l.hold(limitedHost))
		l.expectRefused(anotherHost)
	}},
	{name: "idle_timeout", tunnel: "idle_timeout: 1s", target: echoingTarget, reason: flow.EndIdle, do: func(l *limited) {
		l.expectReset(l.dial(limitedHost))
	}},
	{name: "half_close_timeout, the client has ended", process: "half_close_timeout: 1s", target: deafTarget, reason: flow.EndHalfClosed, do: func(l *limited) {
		c := l.dial(limitedHost)
		nettest.Must(l.t, c.CloseWrite())
		l.expectReset(c)
	}},
	{name: "half_close_timeout, the target has ended", process: "half_close_timeout: 1s", target: func(t *testing.T) string {
		return serve(t, limitedHost+":0", func(c net.Conn) {
			_ = c.(*net.TCPConn).CloseWrite()
			tcpserver.Discard(c)
		})
	}, reason: flow.EndHalfClosed, do: func(l *limited) {
		c := l.dial(limitedHost)
		nettest.Eventually(l.t, patience, func() bool { return isReset(l.t, c) }, func() string { return "the client is not reset" })
	}},
	{name: "connect_timeout", tunnel: "connect_timeout: 1s", target: fullListener, reason: flow.EndTargetUnreached, do: func(l *limited) {
		l.expectRefused(limitedHost)
	}},
	{name: "stalled", notNear: "it keeps a quarter of memory_limit at most, and the window closes", process: "memory_limit: 1MiB\nstall_timeout: 1s", target: deafTarget, reason: flow.EndStalled, do: func(l *limited) {
		c := l.dial(limitedHost)
		for err := error(nil); err == nil; {
			_, err = c.Write(make([]byte, 64<<10))
		}
	}},
	{name: "limits.memory", process: "limits: {memory: 4MiB}", target: echoingTarget, reason: flow.EndShed, do: func(l *limited) {
		nettest.Eventually(l.t, patience, func() bool { // each answer takes some memory
			return l.decides.status().tunnel("main").State == "shedding"
		}, func() string { return "the relay uses less than 4 MiB" })
		l.expectRefused(limitedHost)
	}},
	{name: "allow", tunnel: "allow: [192.0.2.0/24]", target: echoingTarget, reason: flow.EndDenied, do: func(l *limited) {
		l.expectRefused(limitedHost)
	}, notFar: "its allow is for near relays"},
	{name: "proxy_protocol.in, another source", tunnel: "proxy_protocol: {in: {trusted: [192.0.2.1]}}", target: echoingTarget, reason: flow.EndBadProxyHeader, do: func(l *limited) {
		l.expectRefused(limitedHost)
	}, notFar: "near relays say who the client is"},
	{name: "proxy_protocol.in, a bad header", tunnel: "proxy_protocol: {in: {trusted: any}}", target: echoingTarget, reason: flow.EndBadProxyHeader, do: func(l *limited) {
		c := l.dial(limitedHost)
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\n\r\n")
		l.expectReset(c)
	}, notFar: "near relays say who the client is"},
	{name: "proxy_protocol.in", tunnel: "proxy_protocol: {in: {trusted: any}}\n    max_flows_per_source: 1", target: echoingTarget, reason: flow.EndFlowLimit, do: func(l *limited) {
		c := l.dial(limitedHost)
		_, err := c.Write(proxyproto.AppendHeader(nil, 2, proxyproto.Header{Source: netip.MustParseAddrPort("192.0.2.1:1"), Destination: netip.MustParseAddrPort("192.0.2.2:2")}))
		nettest.Must(l.t, err)
		h := held{c}
		nettest.Must(l.t, h.ping(patience))
		l.expectRefused(limitedHost) // the source is who connects, whatever headers say
		l.end(h)
	}, notFar: "near relays say who the client is"},
	{name: "drain_timeout", process: "drain_timeout: 1s", target: echoingTarget, reason: flow.EndDrain, do: func(l *limited) {
		h := l.hold(limitedHost)
		l.decides.signal(syscall.SIGTERM)
		l.expectReset(h.TCPConn)
		l.decides.expectExit(3)
	}},
}

// TestRulesForPairedFlows holds that each rule bounds a paired flow as it does one without a pair, at
// the near relay and at the far one, with the same reason and counters. The other relay knows the
// reason of a flow that it had.
func TestRulesForPairedFlows(t *testing.T) {
	t.Parallel()
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			alone := r.alone(t)
			for _, near := range []bool{true, false} {
				if !near && r.notFar != "" || near && r.notNear != "" {
					continue
				}
				paired := r.paired(t, near)
				if !near {
					delete(paired, "denied") // has connections between the relays that broke in their handshake
					delete(alone, "denied")
				}
				if !maps.Equal(paired, alone) {
					t.Errorf("near %v: the relay counts %v, and without a pair %v", near, paired, alone)
				}
			}
		})
	}
}

func (r *rule) alone(t *testing.T) map[string]int64 {
	l := &limited{t: t, listen: nettest.FreeAddress(t, limitedHost)}
	l.decides = startDaemon(t, nil, unsupervised, fmt.Sprintf("control_socket: SOCKET\n%s\ntunnels:\n  - name: main\n    listen: %q\n    forward: %q\n    %s\n",
		r.process, l.listen, r.target(t), r.tunnel))
	return r.run(l)
}

func (r *rule) paired(t *testing.T, near bool) map[string]int64 {
	p := &pairOf{t: t, listen: nettest.FreeAddress(t, limitedHost), wan: nettest.FreeAddress(t, limitedHost), target: r.target(t)}
	if near {
		p.moreNear, p.settingsNear = r.process+"\n", "    "+r.tunnel+"\n"
	} else {
		p.moreFar, p.settingsFar = r.process+"\n", "    "+r.tunnel+"\n"
	}
	p.start()
	l := &limited{t: t, listen: p.listen, decides: p.near, other: p.far}
	if !near {
		l.decides, l.other, l.farDecides = p.far, p.near, true
	}
	return r.run(l)
}

// run runs the rule and returns what the relay counts that has it.
func (r *rule) run(l *limited) map[string]int64 {
	l.t.Helper()
	r.do(l)
	says := `msg=("connection refused" .*\breason|flow .*\bend)=` + string(r.reason) + `\b`
	l.decides.expectLog(says)
	if l.other != nil && (l.farDecides || !r.refuses()) {
		l.other.expectLog(says)
	}
	counts := map[string]int64{}
	if r.reason == flow.EndDrain {
		return counts
	}
	var s tunnelStatus
	nettest.Eventually(l.t, patience, func() bool {
		now := l.decides.status()
		s = now.tunnel("main")
		return now.FlowsNow == 0
	}, func() string { return "flows are left" })
	counts = map[string]int64{"flows": s.FlowsTotal, "denied": s.Denied, "limited": s.Limited, "shed": s.Shed, "refused": s.Refused, "errors": s.Errors}
	for _, e := range s.Ended {
		by := e.EndedBy
		if by == "peer" && !l.farDecides { // the far relay knows the target
			by = "target"
		}
		counts[string(e.Reason)+" by "+by] = e.Flows
	}
	return counts
}

// refuses reports whether the rule concerns clients before they have a flow: then no other relay hears
// of them from a near one.
func (r *rule) refuses() bool {
	switch r.reason {
	case flow.EndIdle, flow.EndHalfClosed, flow.EndStalled, flow.EndDrain, flow.EndTargetUnreached:
		return false
	}
	return true
}

func (l *limited) dial(from string) *net.TCPConn {
	l.t.Helper()
	c, err := l.tryDial(from)
	nettest.Must(l.t, err)
	return c
}

func (l *limited) tryDial(from string) (*net.TCPConn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Control: ethernet}
	d.SetMultipathTCP(false)
	c, err := d.DialContext(l.t.Context(), "tcp", l.listen)
	if err != nil {
		return nil, err
	}
	l.t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn), c.SetDeadline(time.Now().Add(patience))
}

// hold opens a flow that is served.
func (l *limited) hold(from string) held {
	l.t.Helper()
	h := held{l.dial(from)}
	nettest.Must(l.t, h.ping(patience))
	return h
}

// expectRefused has a client connect, which is reset, perhaps within its connect.
func (l *limited) expectRefused(from string) {
	l.t.Helper()
	if c, err := l.tryDial(from); err == nil {
		l.expectReset(c)
	} else if !errors.Is(err, syscall.ECONNRESET) {
		l.t.Error(err)
	}
}

func (l *limited) expectReset(c *net.TCPConn) {
	l.t.Helper()
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		l.t.Errorf("a client sees %v, and not a reset", err)
	}
}

// end ends flows, and waits until no relay has them.
func (l *limited) end(flows ...held) {
	l.t.Helper()
	for _, h := range flows {
		nettest.Must(l.t, h.CloseWrite())
		_, err := io.ReadAll(h)
		nettest.Must(l.t, err)
	}
	nettest.Eventually(l.t, patience, func() bool {
		return l.decides.status().FlowsNow == 0
	}, func() string { return "flows are left" })
}

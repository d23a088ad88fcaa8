package faults

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"longhaul/internal/control"
	"longhaul/internal/flow"
	"longhaul/internal/httpd"
	"longhaul/internal/nettest"
	"longhaul/internal/tcpscript"
)

// truth is what every screen must say of the tunnel main.
type truth struct {
	state  flow.UseState
	reason flow.Reason // of a tunnel that is not usable
	hops   string      // their states
	// alerts are the rules whose expressions hold.
	alerts string
}

// truthWorld is a relay in a state.
type truthWorld struct {
	*testing.T
	relay              *daemon
	listen, web, board string
	target             net.Listener // nil: none ever listened
	targetAt           string
	pair               *pairOf
}

// settings are those of a relay that shows itself everywhere.
func (w *truthWorld) settings() string {
	return fmt.Sprintf("http_listen: %s\ndashboard: {listen: %q}\n", w.web, w.board)
}

// start starts a relay whose target listens, unless it is dead from the start.
func (w *truthWorld) start(more string, tunnel string) {
	w.Helper()
	w.relay = startDaemon(w.T, nil, unsupervised, w.settings()+more+single(w.listen, w.targetAt, tunnel))
}

// open has the target listen.
func (w *truthWorld) open() {
	w.Helper()
	l, err := tcpscript.ListenOn(w.targetAt)(w.Context())
	nettest.Must(w.T, err)
	w.target = l
	serveEcho(w.T, l)
}

func (w *truthWorld) serve() held {
	w.Helper()
	return hold(w.T, tcpscript.DialTo(w.listen))
}

// fail has flows fail that come one after another.
func (w *truthWorld) fail(n int) {
	w.Helper()
	for range n {
		expectReset(w.T, tcpscript.DialTo(w.listen), patience)
	}
}

// startPair makes the relay the near one of a pair.
func (w *truthWorld) startPair(change func(p *pairOf), far bool) {
	w.Helper()
	w.pair = &pairOf{t: w.T, listen: w.listen, wan: nettest.FreeAddress(w.T, "127.0.0.1"), target: w.targetAt, moreNear: w.settings()}
	w.pair.pairKeys()
	w.pair.withoutWaitForPair = true
	change(w.pair)
	if far {
		w.pair.startFar()
	}
	w.pair.startNear()
	w.relay = w.pair.near
}

func (w *truthWorld) command(args ...string) {
	w.Helper()
	if out, code := command(w.T, append(args, "--control-socket", w.relay.socket())...); code != 0 {
		w.Fatalf("%v: %s", args, out)
	}
}

const (
	unusableAlert = "tunnel-unusable"
	hopAlert      = "hop-down"
	noEject       = "health: {eject_for: 1h, interval: 1h}"
)

// TestTruthTable walks the states of a relay. In each of them status, ready, /readyz, metrics,
// the dashboard and the alert rules agree.
func TestTruthTable(t *testing.T) {
	t.Parallel()
	down, up := flow.Down, flow.Up
	bothAlerts := unusableAlert + " " + hopAlert
	for _, c := range []struct {
		name string
		make func(w *truthWorld)
		want truth
	}{
		{"nothing tried", func(w *truthWorld) { w.start("", "") }, truth{flow.Untried, "", "untried", ""}},
		{"a flow served", func(w *truthWorld) { w.open(); w.start("", ""); w.serve() }, truth{up, "", "up", ""}},
		{"target dead", func(w *truthWorld) { w.start("", noEject); w.fail(3) }, truth{down, flow.ReasonHopsDown, "ejected", bothAlerts}},
		{"target dead after a single client", func(w *truthWorld) { w.start("", "health: {eject_for: 1h, interval: 100ms}"); w.fail(1) },
			truth{down, flow.ReasonHopsDown, "ejected", bothAlerts}},
		{"target black-holed", func(w *truthWorld) {
			w.targetAt = blackHole(w.T)
			w.start("", "connect_timeout: 200ms\n    "+noEject)
			w.fail(3)
		}, truth{down, flow.ReasonHopsDown, "ejected", bothAlerts}},
		{"returning", func(w *truthWorld) { w.start("", "health: {eject_for: 100ms, interval: 1h}"); w.fail(3) },
			truth{flow.Returning, flow.ReasonHopsDown, "returning", bothAlerts}},
		{"target back, and no client", func(w *truthWorld) {
			w.start("", "health: {eject_for: 1h, interval: 100ms}")
			w.fail(3)
			w.relay.expectLog("hop gets no new flows")
			w.open()
		}, truth{up, "", "up", ""}},
		{"target back, and a client", func(w *truthWorld) { w.start("", noEject); w.fail(3); w.open(); w.serve() }, truth{up, "", "up", ""}},
		{"target dead, and never left out", func(w *truthWorld) { w.start("", "health: off"); w.fail(3) },
			truth{flow.Returning, "", "returning", ""}},
		{"checks fail", func(w *truthWorld) { w.start("", "health: {check: connect, interval: 100ms}") },
			truth{down, flow.ReasonHopsDown, "down", bothAlerts}},
		{"checks succeed", func(w *truthWorld) { w.open(); w.start("", "health: {check: connect, interval: 100ms}") },
			truth{up, "", "up", ""}},
		{"one of two hops dead", func(w *truthWorld) {
			w.open()
			dead := nettest.FreeAddress(w.T, "127.0.0.1")
			w.relay = startDaemon(w.T, nil, unsupervised, w.settings()+fmt.Sprintf("control_socket: SOCKET\ntunnels:\n  - name: main\n    listen: %q\n    forward: [%q, %q]\n    health: {eject_after: 1, eject_for: 1h, interval: 1h}\n",
				w.listen, dead, w.targetAt))
			w.serve()
		}, truth{up, "", "ejected up", hopAlert}},
		{"all hops drained", func(w *truthWorld) { w.start("", ""); w.command("drain", "main/"+w.targetAt) },
			truth{down, flow.ReasonHopsDrained, "drained", unusableAlert}},
		{"tunnel drained", func(w *truthWorld) { w.start("", ""); w.command("drain", "main") },
			truth{down, flow.ReasonDrained, "untried", ""}},
		{"draining", func(w *truthWorld) {
			w.open()
			w.start("drain_timeout: off\n", "")
			w.serve()
			w.relay.signal(syscall.SIGTERM)
		}, truth{down, flow.ReasonDraining, "up", ""}},
		{"over max_flows", func(w *truthWorld) { w.open(); w.start("", "max_flows: 1"); w.serve() },
			truth{down, flow.ReasonMaxFlows, "up", unusableAlert}},
		{"shedding for memory", func(w *truthWorld) { w.start("limits: {memory: 4MiB}\n", "") },
			truth{down, flow.ReasonShedding, "untried", unusableAlert}},
		{"upgraded while down", func(w *truthWorld) {
			w.start("", noEject)
			w.fail(3)
			_, err := w.relay.upgrade("")
			nettest.Must(w.T, err)
		}, truth{down, flow.ReasonHopsDown, "ejected", bothAlerts}},
		{"upgraded while up", func(w *truthWorld) {
			w.open()
			w.start("", "")
			w.serve().release(w.T)
			_, err := w.relay.upgrade("")
			nettest.Must(w.T, err)
		}, truth{up, "", "up", ""}},
		{"pair stands", func(w *truthWorld) { w.startPair(func(*pairOf) {}, true) }, truth{up, "", "up", ""}},
		{"far relay never up", func(w *truthWorld) { w.startPair(func(*pairOf) {}, false) },
			truth{down, flow.ReasonPairDown, "down", bothAlerts}},
		{"far relay dead", func(w *truthWorld) {
			w.startPair(func(p *pairOf) { p.withoutWaitForPair = false }, true)
			w.pair.far.signal(syscall.SIGKILL)
		}, truth{down, flow.ReasonPairDown, "down", bothAlerts}},
		{"far relay silent", func(w *truthWorld) {
			w.startPair(func(p *pairOf) { p.withoutWaitForPair = false }, true)
			w.pair.far.signal(syscall.SIGSTOP)
		}, truth{down, flow.ReasonPairDown, "down", bothAlerts}},
		{"far relay unpaired", func(w *truthWorld) { w.open(); w.startPair(func(p *pairOf) { p.wan = w.targetAt }, false) },
			truth{down, flow.ReasonPairDown, "down", bothAlerts}},
		{"pair key unknown", func(w *truthWorld) {
			w.startPair(func(p *pairOf) { p.nearKeys = w.TempDir() }, true)
		}, truth{down, flow.ReasonPairDown, "down", bothAlerts}},
		{"pair denied", func(w *truthWorld) { w.startPair(func(p *pairOf) { p.peerName = "somebody" }, true) },
			truth{down, flow.ReasonPairDown, "down", bothAlerts}},
		{"pair of two minds about encryption", func(w *truthWorld) {
			w.startPair(func(p *pairOf) { p.tunnelNear = ", encrypt: off" }, true)
		}, truth{down, flow.ReasonPairDown, "down", bothAlerts}},
		{"upgraded while the pair is down", func(w *truthWorld) {
			w.startPair(func(p *pairOf) { p.withoutWaitForPair = false }, true)
			w.pair.far.signal(syscall.SIGKILL)
			nettest.Eventually(w.T, patience, func() bool { return !w.pair.near.session().Up }, func() string { return "the session stands" })
			_, err := w.relay.upgrade("")
			nettest.Must(w.T, err)
		}, truth{down, flow.ReasonPairDown, "down", bothAlerts}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := &truthWorld{T: t, listen: nettest.FreeAddress(t, "127.0.0.1"), web: nettest.FreeAddress(t, "127.0.0.1"),
				board: nettest.FreeAddress(t, "127.0.0.1"), targetAt: nettest.FreeAddress(t, "127.0.0.1")}
			c.make(w)
			w.expect(c.want)
		})
	}
}

// expect waits until every screen says the same.
func (w *truthWorld) expect(want truth) {
	w.Helper()
	text := fmt.Sprintf("%+v", want)
	ready := fmt.Sprint(want.reason == "")
	said := map[string]string{}
	nettest.Eventually(w.T, patience, func() bool {
		w.look(said)
		for screen, got := range said {
			if screen == "ready" || screen == "readyz" {
				if got != ready {
					return false
				}
			} else if got != text {
				return false
			}
		}
		return true
	}, func() string { return fmt.Sprintf("want %s, ready %s; the screens say %q", text, ready, said) })
}

// look asks each screen.
func (w *truthWorld) look(said map[string]string) {
	w.Helper()
	body, err := control.Status(w.Context(), w.relay.socket())
	if err != nil {
		said["status"] = err.Error()
	} else {
		said["status"] = w.tunnelIn(body)
	}
	_, code := command(w.T, "ready", "main", "--control-socket", w.relay.socket(), "--timeout", "20s")
	said["ready"] = fmt.Sprint(code == 0)
	code, _, err = httpd.Get(w.Context(), w.web, "/readyz/main", 4096)
	if said["readyz"] = fmt.Sprint(code == 200); err != nil {
		said["readyz"] = err.Error()
	}
	_, body, err = httpd.Get(w.Context(), w.board, "/api/v1/overview", 1<<20)
	if said["overview"] = w.tunnelIn(body); err != nil {
		said["overview"] = err.Error()
	}
	_, body, err = httpd.Get(w.Context(), w.web, "/metrics", 1<<20)
	if said["metrics"] = w.tunnelInMetrics(string(body)); err != nil {
		said["metrics"] = err.Error()
	}
}

// tunnelIn reads the tunnel main from a status or an overview. The alerts are those that the
// rules would derive.
func (w *truthWorld) tunnelIn(body []byte) string {
	var s struct {
		Tunnels []flow.Tunnel `json:"tunnels"`
	}
	if err := json.Unmarshal(body, &s); err != nil || len(s.Tunnels) != 1 {
		return fmt.Sprintf("%v: %s", err, body)
	}
	t := &s.Tunnels[0]
	u := t.Usability
	got := truth{state: u.State, reason: u.Reason()}
	var states []string
	var alerts []string
	if !u.Usable && !u.Has(flow.ReasonDrained, flow.ReasonDraining) {
		alerts = append(alerts, unusableAlert)
	}
	for _, h := range t.Hops {
		states = append(states, string(h.State))
		if !h.Usable && h.State != flow.HopDrained {
			alerts = append(alerts, hopAlert)
		}
	}
	got.hops, got.alerts = strings.Join(states, " "), strings.Join(alerts, " ")
	return fmt.Sprintf("%+v", got)
}

var sampleLine = regexp.MustCompile(`(?m)^longhaul_(\w+)\{(.*)\} (\S+)$`)

// tunnelInMetrics evaluates the expressions of the alert rules. The metrics have no reason: it
// is that of the status.
func (w *truthWorld) tunnelInMetrics(text string) string {
	got := truth{}
	var hops, alerts []string
	drained := map[string]bool{}
	for _, m := range sampleLine.FindAllStringSubmatch(text, -1) {
		if m[3] != "1" {
			continue
		}
		state := label(m[2], "state")
		switch m[1] {
		case "tunnel_usability":
			got.state = flow.UseState(state)
		case "hop_state":
			hops = append(hops, label(m[2], "hop")+" "+state)
			drained[label(m[2], "hop")] = state == string(flow.HopDrained)
		case "tunnel_state":
			drained["main"] = state == "drained" || state == "draining"
		}
	}
	for _, m := range sampleLine.FindAllStringSubmatch(text, -1) {
		switch {
		case m[1] == "tunnel_usable" && m[3] == "0" && !drained["main"]:
			alerts = append([]string{unusableAlert}, alerts...)
		case m[1] == "hop_up" && m[3] == "0" && !drained[label(m[2], "hop")]:
			alerts = append(alerts, hopAlert)
		}
	}
	slices.SortStableFunc(alerts, func(a, b string) int { return strings.Compare(b, a) })
	var s struct {
		Tunnels []flow.Tunnel `json:"tunnels"`
	}
	if body, err := control.Status(w.Context(), w.relay.socket()); err == nil && json.Unmarshal(body, &s) == nil && len(s.Tunnels) == 1 {
		got.reason = s.Tunnels[0].Usability.Reason()
		var states []string
		for _, h := range s.Tunnels[0].Hops { // in their order
			i := slices.IndexFunc(hops, func(one string) bool { return strings.HasPrefix(one, h.Name+" ") })
			if i >= 0 {
				states = append(states, strings.TrimPrefix(hops[i], h.Name+" "))
			}
		}
		got.hops = strings.Join(states, " ")
	}
	got.alerts = strings.Join(alerts, " ")
	return fmt.Sprintf("%+v", got)
}

func label(labels, name string) string {
	_, rest, _ := strings.Cut(","+labels, ","+name+`="`)
	value, _, _ := strings.Cut(rest, `"`)
	return value
}

// TestTruthRules: the alert rules have the expressions that TestTruthTable evaluates.
func TestTruthRules(t *testing.T) {
	rules, err := os.ReadFile("../../packaging/prometheus/longhaul.rules.yml")
	nettest.Must(t, err)
	text := strings.Join(strings.Fields(string(rules)), " ")
	for _, want := range []string{
		`longhaul_tunnel_usable == 0 unless on (job, instance, tunnel) longhaul_tunnel_state{state=~"drained|draining|removed"} == 1`,
		`longhaul_hop_up == 0 unless on (job, instance, tunnel, hop) longhaul_hop_state{state="drained"} == 1`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no rule has %s", want)
		}
	}
}

// blackHole is the address of a listener with a full queue: the kernel answers no SYN.
func blackHole(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	nettest.Must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	nettest.Must(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	nettest.Must(t, unix.Listen(fd, 0))
	name, err := unix.Getsockname(fd)
	nettest.Must(t, err)
	address := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(name.(*unix.SockaddrInet4).Port)).String()
	c, err := net.Dial("tcp", address)
	nettest.Must(t, err)
	t.Cleanup(func() { c.Close() })
	nettest.Eventually(t, patience, func() bool {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		return err == nil && info.Unacked == 1 // the accept queue's length
	}, func() string { return "the connection does not wait in the listener's queue" })
	return address
}

// TestEventsGoOn: the changes of state are there after an upgrade, and with a history after a
// restart.
func TestEventsGoOn(t *testing.T) {
	t.Parallel()
	w := &truthWorld{T: t, listen: nettest.FreeAddress(t, "127.0.0.1"), targetAt: nettest.FreeAddress(t, "127.0.0.1")}
	w.relay = startDaemon(t, nil, unsupervised, fmt.Sprintf("history: {file: %s/history.db}\n", t.TempDir())+single(w.listen, w.targetAt, "health: {eject_for: 1h, interval: 100ms}"))
	// events waits until these changes follow one another, perhaps with others between them.
	events := func(when string, want ...string) {
		t.Helper()
		var out string
		nettest.Eventually(t, patience, func() bool {
			out, _ = command(t, "events", "--limit", "0", "--control-socket", w.relay.socket())
			rest := out
			for _, one := range want {
				_, after, found := strings.Cut(rest, one)
				if !found {
					return false
				}
				rest = after
			}
			return true
		}, func() string { return fmt.Sprintf("%s, want %q in\n%s", when, want, out) })
	}
	w.fail(3)
	events("target dead", "stopped -> serving", "untried -> ejected", "connection refused")
	w.open()
	events("target back", "untried -> ejected", "ejected -> up")
	_, err := w.relay.upgrade("")
	nettest.Must(t, err)
	events("upgraded", "untried -> ejected", "ejected -> up", "another process -> serving")
	w.command("stop")
	w.relay = restartDaemon(t, nil, w.relay)
	events("started again", "untried -> ejected", "ejected -> up", "another process -> serving", "stopped -> serving")
}

package faults

import (
	"context"
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

	"longhaul/internal/carry/flow"
	"longhaul/internal/run/control"
	"longhaul/internal/sys/httpd"
	"longhaul/test/nettest"
	"longhaul/test/tcpscript"
)

// truth is what every screen must say of the tunnel main.
type truth struct {
	state  flow.UseState
	reason flow.Reason // of a tunnel that is not usable
	hops   string      // their states
	// alerts are the rules whose expressions hold.
	alerts string
	host   lack
}

// lack is what the host of a relay lacks.
type lack struct {
	part flow.HostPart // whose metric is 1; empty: none
	says string        // a part of what ready, /readyz and the printed status say of it
}

// truthWorld is a relay in a state.
type truthWorld struct {
	*testing.T
	relay              *daemon
	listen, web, board string
	target             net.Listener // nil: none ever listened
	targetAt           string
	pair               *pairOf
	want               truth
	routed             *routed // the relay is on its router; nil: on the test's host
	// damage is done again before each look, as by a program that fights the relay; nil: nothing is.
	damage func()
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

// startRouted starts a relay on a router of its own, whose host another program can damage.
func (w *truthWorld) startRouted(tunnel string) {
	w.Helper()
	w.routed = newRouted(w.T)
	w.damaged("ip addr add 10.9.8.1/32 dev lo")
	w.web, w.board = "127.0.0.1:9001", "127.0.0.1:9002"
	w.relay = startDaemon(w.T, w.routed.R, unsupervised, w.settings()+"control_socket: SOCKET\nworkers: 1\ntunnels:\n  - name: main\n    "+tunnel+"\n")
}

// intercept starts such a relay that intercepts.
func (w *truthWorld) intercept() {
	w.Helper()
	w.startRouted(fmt.Sprintf(`intercept: {interface: left, from: [10.9.1.0/24, "fd09:1::/64"], to: [10.9.2.0/24, "fd09:2::/64"], ports: %d}`, routedPort))
}

// damaged runs a script on the router.
func (w *truthWorld) damaged(script string) {
	w.Helper()
	w.routed.shellOn(w.routed.R, script)
}

// fight has a script run until the relay reports a fight, and before each look from then on.
func (w *truthWorld) fight(script string) {
	w.Helper()
	for range 3 {
		before := w.relay.log.count(setAgain)
		w.damaged(script)
		nettest.Eventually(w.T, patience, func() bool { return w.relay.log.count(setAgain) > before }, func() string { return "nothing is set again after " + script })
	}
	w.damage = func() { w.damaged(script + " || true") }
}

// upgrade puts a new process in the relay's place.
func (w *truthWorld) upgrade() {
	w.Helper()
	_, err := w.relay.upgrade("")
	nettest.Must(w.T, err)
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

// listenOn starts such a relay that listens on addresses. The router has 10.9.8.1 beside its own.
func (w *truthWorld) listenOn(addresses ...string) {
	w.Helper()
	w.startRouted(fmt.Sprintf("listen: [%s]\n    forward: 10.9.2.2:5000", strings.Join(addresses, ", ")))
}

// noRules is the truth of a tunnel that intercepts nothing for lack of a part.
func noRules(part flow.HostPart, says string) truth {
	return truth{flow.Down, flow.ReasonNoRules, "untried", unusableAlert, lack{part, says}}
}

// noAddress is that of a tunnel that listens nowhere.
func noAddress(says string) truth {
	return truth{flow.Down, flow.ReasonListener, "untried", unusableAlert, lack{flow.HostAddress, says}}
}

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
		{"nothing tried", func(w *truthWorld) { w.start("", "") }, truth{flow.Untried, "", "untried", "", lack{}}},
		{"a flow served", func(w *truthWorld) { w.open(); w.start("", ""); w.serve() }, truth{up, "", "up", "", lack{}}},
		{"target dead", func(w *truthWorld) { w.start("", noEject); w.fail(3) }, truth{down, flow.ReasonHopsDown, "ejected", bothAlerts, lack{}}},
		{"target dead after a single client", func(w *truthWorld) { w.start("", "health: {eject_for: 1h, interval: 100ms}"); w.fail(1) },
			truth{down, flow.ReasonHopsDown, "ejected", bothAlerts, lack{}}},
		{"target black-holed", func(w *truthWorld) {
			w.targetAt = blackHole(w.T)
			w.start("", "connect_timeout: 200ms\n    "+noEject)
			w.fail(3)
		}, truth{down, flow.ReasonHopsDown, "ejected", bothAlerts, lack{}}},
		{"returning", func(w *truthWorld) { w.start("", "health: {eject_for: 100ms, interval: 1h}"); w.fail(3) },
			truth{flow.Returning, flow.ReasonHopsDown, "returning", bothAlerts, lack{}}},
		{"target back, and no client", func(w *truthWorld) {
			w.start("", "health: {eject_for: 1h, interval: 100ms}")
			w.fail(3)
			w.relay.expectLog("hop gets no new flows")
			w.open()
		}, truth{up, "", "up", "", lack{}}},
		{"target back, and a client", func(w *truthWorld) { w.start("", noEject); w.fail(3); w.open(); w.serve() }, truth{up, "", "up", "", lack{}}},
		{"target dead, and never left out", func(w *truthWorld) { w.start("", "health: off"); w.fail(3) },
			truth{flow.Returning, "", "returning", "", lack{}}},
		{"checks fail", func(w *truthWorld) { w.start("", "health: {check: connect, interval: 100ms}") },
			truth{down, flow.ReasonHopsDown, "down", bothAlerts, lack{}}},
		{"checks succeed", func(w *truthWorld) { w.open(); w.start("", "health: {check: connect, interval: 100ms}") },
			truth{up, "", "up", "", lack{}}},
		{"one of two hops dead", func(w *truthWorld) {
			w.open()
			dead := nettest.FreeAddress(w.T, "127.0.0.1")
			w.relay = startDaemon(w.T, nil, unsupervised, w.settings()+fmt.Sprintf("control_socket: SOCKET\ntunnels:\n  - name: main\n    listen: %q\n    forward: [%q, %q]\n    health: {eject_after: 1, eject_for: 1h, interval: 1h}\n",
				w.listen, dead, w.targetAt))
			w.serve()
		}, truth{up, "", "ejected up", hopAlert, lack{}}},
		{"all hops drained", func(w *truthWorld) { w.start("", ""); w.command("drain", "main/"+w.targetAt) },
			truth{down, flow.ReasonHopsDrained, "drained", unusableAlert, lack{}}},
		{"tunnel drained", func(w *truthWorld) { w.start("", ""); w.command("drain", "main") },
			truth{down, flow.ReasonDrained, "untried", "", lack{}}},
		{"draining", func(w *truthWorld) {
			w.open()
			w.start("drain_timeout: off\n", "")
			w.serve()
			w.relay.signal(syscall.SIGTERM)
		}, truth{down, flow.ReasonDraining, "up", "", lack{}}},
		{"over max_flows", func(w *truthWorld) { w.open(); w.start("", "max_flows: 1"); w.serve() },
			truth{down, flow.ReasonMaxFlows, "up", unusableAlert, lack{}}},
		{"shedding for memory", func(w *truthWorld) { w.start("limits: {memory: 4MiB}\n", "") },
			truth{down, flow.ReasonShedding, "untried", unusableAlert, lack{}}},
		{"upgraded while down", func(w *truthWorld) {
			w.start("", noEject)
			w.fail(3)
			w.upgrade()
		}, truth{down, flow.ReasonHopsDown, "ejected", bothAlerts, lack{}}},
		{"upgraded while up", func(w *truthWorld) {
			w.open()
			w.start("", "")
			w.serve().release(w.T)
			w.upgrade()
		}, truth{up, "", "up", "", lack{}}},
		{"pair stands", func(w *truthWorld) { w.startPair(func(*pairOf) {}, true) }, truth{up, "", "up", "", lack{}}},
		{"target of the far relay dead", func(w *truthWorld) {
			w.startPair(func(p *pairOf) {
				p.withoutWaitForPair, p.moreFar = false, "defaults: {health: {eject_after: 1, eject_for: 1h, interval: 1h}}\n"
			}, true)
			w.fail(1)
		}, truth{down, flow.ReasonHopsDown, "down", bothAlerts, lack{}}},
		{"target of the far relay back, and no client", func(w *truthWorld) {
			w.startPair(func(p *pairOf) {
				p.withoutWaitForPair, p.moreFar = false, "defaults: {health: {eject_after: 1, eject_for: 1h, interval: 100ms}}\n"
			}, true)
			w.fail(1)
			w.expect(truth{down, flow.ReasonHopsDown, "down", bothAlerts, lack{}})
			w.open()
		}, truth{up, "", "up", "", lack{}}},
		{"far tunnel drained", func(w *truthWorld) {
			w.startPair(func(p *pairOf) { p.withoutWaitForPair = false }, true)
			if out, code := command(w.T, "drain", "main", "--control-socket", w.pair.far.socket()); code != 0 {
				w.Fatal(out)
			}
		}, truth{down, flow.ReasonHopsDown, "down", bothAlerts, lack{}}},
		{"far relay never up", func(w *truthWorld) { w.startPair(func(*pairOf) {}, false) },
			truth{down, flow.ReasonPairDown, "down", bothAlerts, lack{}}},
		{"far relay dead", func(w *truthWorld) {
			w.startPair(func(p *pairOf) { p.withoutWaitForPair = false }, true)
			w.pair.far.signal(syscall.SIGKILL)
		}, truth{down, flow.ReasonPairDown, "down", bothAlerts, lack{}}},
		{"far relay silent", func(w *truthWorld) {
			w.startPair(func(p *pairOf) { p.withoutWaitForPair = false }, true)
			w.pair.far.signal(syscall.SIGSTOP)
		}, truth{down, flow.ReasonPairDown, "down", bothAlerts, lack{}}},
		{"far relay unpaired", func(w *truthWorld) { w.open(); w.startPair(func(p *pairOf) { p.wan = w.targetAt }, false) },
			truth{down, flow.ReasonPairDown, "down", bothAlerts, lack{}}},
		{"pair key unknown", func(w *truthWorld) {
			w.startPair(func(p *pairOf) { p.nearKeys = w.TempDir() }, true)
		}, truth{down, flow.ReasonPairDown, "down", bothAlerts, lack{}}},
		{"pair denied", func(w *truthWorld) { w.startPair(func(p *pairOf) { p.peerName = "somebody" }, true) },
			truth{down, flow.ReasonPairDown, "down", bothAlerts, lack{}}},
		{"pair of two minds about encryption", func(w *truthWorld) {
			w.startPair(func(p *pairOf) { p.tunnelNear = ", encrypt: off" }, true)
		}, truth{down, flow.ReasonPairDown, "down", bothAlerts, lack{}}},
		{"upgraded while the pair is down", func(w *truthWorld) {
			w.startPair(func(p *pairOf) { p.withoutWaitForPair = false }, true)
			w.pair.far.signal(syscall.SIGKILL)
			nettest.Eventually(w.T, patience, func() bool { return !w.pair.near.session().Up }, func() string { return "the session stands" })
			w.upgrade()
		}, truth{down, flow.ReasonPairDown, "down", bothAlerts, lack{}}},
		{"rules cleared by the operator", func(w *truthWorld) {
			nettest.RequireRoot(w.T)
			w.intercept()
			w.routed.run(nettest.Longhaul(w.T), "longhaul", "intercept", "clear", "--yes")
		}, noRules(flow.HostRules, "the operator has taken the rules back")},
		{"rules cleared, and upgraded", func(w *truthWorld) {
			nettest.RequireRoot(w.T)
			w.intercept()
			w.routed.run(nettest.Longhaul(w.T), "longhaul", "intercept", "clear", "--yes")
			w.upgrade()
		}, noRules(flow.HostRules, "the operator has taken the rules back")},
		{"rules cleared, and set again", func(w *truthWorld) {
			nettest.RequireRoot(w.T)
			w.intercept()
			w.routed.run(nettest.Longhaul(w.T), "longhaul", "intercept", "clear", "--yes")
			w.command("reload")
		}, truth{flow.Untried, "", "untried", "", lack{}}},
		{"rules flushed again and again", func(w *truthWorld) { w.intercept(); w.fight("nft flush ruleset") },
			noRules(flow.HostRules, "another program has removed")},
		{"routing rule removed again and again", func(w *truthWorld) { w.intercept(); w.fight("ip rule del pref 1812") },
			noRules(flow.HostRules, "get no answer")},
		{"interface down", func(w *truthWorld) { w.intercept(); w.damaged("ip link set left down") },
			noRules(flow.HostInterface, "the interface left is down")},
		{"interface gone", func(w *truthWorld) { w.intercept(); w.damaged("ip link del left") },
			noRules(flow.HostInterface, "the interface left is gone")},
		{"setting changed", func(w *truthWorld) {
			w.intercept()
			nettest.Must(w.T, w.routed.R.Sysctl("net.ipv4.conf.all.src_valid_mark", "1"))
		}, truth{flow.Untried, "", "untried", "", lack{flow.HostSetting, ""}}},
		{"listener's address gone", func(w *truthWorld) { w.listenOn("10.9.8.1:6000"); w.damaged("ip addr del 10.9.8.1/32 dev lo") },
			noAddress("waiting for address 10.9.8.1:6000")},
		{"listener's address gone, and upgraded", func(w *truthWorld) {
			w.listenOn("10.9.8.1:6000")
			w.damaged("ip addr del 10.9.8.1/32 dev lo")
			w.upgrade()
		}, noAddress("waiting for address 10.9.8.1:6000")},
		{"listener's address back", func(w *truthWorld) {
			w.listenOn("10.9.8.1:6000")
			w.damaged("ip addr del 10.9.8.1/32 dev lo")
			w.relay.expectLog("10.9.8.1:6000")
			w.damaged("ip addr add 10.9.8.1/32 dev lo")
		}, truth{flow.Untried, "", "untried", "", lack{}}},
		{"one of two addresses gone", func(w *truthWorld) {
			w.listenOn("10.9.8.1:6000", "10.9.1.1:6000")
			w.damaged("ip addr del 10.9.8.1/32 dev lo")
		}, truth{flow.Untried, "", "untried", "", lack{flow.HostAddress, ""}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := &truthWorld{T: t, listen: nettest.FreeAddress(t, "127.0.0.1"), web: nettest.FreeAddress(t, "127.0.0.1"),
				board: nettest.FreeAddress(t, "127.0.0.1"), targetAt: nettest.FreeAddress(t, "127.0.0.1")}
			c.make(w)
			w.want = c.want
			w.expect(c.want)
		})
	}
}

// expect waits until every screen says the same.
func (w *truthWorld) expect(want truth) {
	w.Helper()
	text := fmt.Sprintf("%+v", want)
	said := map[string]string{}
	nettest.Eventually(w.T, patience, func() bool {
		if w.damage != nil {
			w.damage()
		}
		w.look(said)
		for screen, got := range said {
			switch screen {
			case "status", "overview", "metrics":
				if got != text {
					return false
				}
			case "printed":
				if !strings.Contains(got, want.host.says) {
					return false
				}
			default:
				if is := want.reason == ""; is != (got == "") || !is && !strings.Contains(got, want.host.says) {
					return false
				}
			}
		}
		return true
	}, func() string { return fmt.Sprintf("want %s; the screens say %q", text, said) })
}

// look asks each screen.
func (w *truthWorld) look(said map[string]string) {
	w.Helper()
	body, err := control.Status(w.Context(), w.relay.socket())
	if said["status"] = w.tunnelIn(body); err != nil {
		said["status"] = err.Error()
	}
	said["printed"], _ = command(w.T, "status", "--control-socket", w.relay.socket())
	said["printed"] = strings.Join(strings.Fields(said["printed"]), " ")
	output, code := command(w.T, "ready", "main", "--control-socket", w.relay.socket(), "--timeout", "20s")
	if said["ready"] = strings.Join(strings.Fields(output), " "); code == 0 {
		said["ready"] = ""
	}
	code, body, err = w.get(w.web, "/readyz/main")
	if said["readyz"] = fmt.Sprintf("%v %s", err, body); code == 200 {
		said["readyz"] = ""
	}
	_, body, err = w.get(w.board, "/api/v1/overview")
	if said["overview"] = w.tunnelIn(body); err != nil {
		said["overview"] = err.Error()
	}
	_, body, err = w.get(w.web, "/metrics")
	if said["metrics"] = w.tunnelInMetrics(string(body)); err != nil {
		said["metrics"] = err.Error()
	}
}

// get asks a listener of the relay on its host.
func (w *truthWorld) get(address, path string) (code int, body []byte, err error) {
	return httpd.GetFrom(w.Context(), address, path, 1<<20, func(ctx context.Context) (c net.Conn, err error) {
		if w.routed == nil {
			return tcpscript.DialTo(address)(ctx)
		}
		err = w.routed.R.Do(func() error { c, err = tcpscript.DialTo(address)(ctx); return err })
		return c, err
	})
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
	for _, p := range t.Host {
		got.host = lack{part: p.Part}
		if p.Blocks {
			got.host.says = w.says(u.Detail())
		}
	}
	return fmt.Sprintf("%+v", got)
}

// says is the wanted part of a sentence, if that has it, or else all of it.
func (w *truthWorld) says(detail string) string {
	if strings.Contains(detail, w.want.host.says) {
		return w.want.host.says
	}
	return detail
}

var sampleLine = regexp.MustCompile(`(?m)^longhaul_(\w+)\{(.*)\} (\S+)$`)

// tunnelInMetrics evaluates the expressions of the alert rules. The metrics have no reason, and no
// sentence: they are those of the status.
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
		case "tunnel_host_problem":
			got.host.part = flow.HostPart(label(m[2], "part"))
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
		u := s.Tunnels[0].Usability
		if got.reason = u.Reason(); u.Has(flow.ReasonNoRules, flow.ReasonListener) {
			got.host.says = w.says(u.Detail())
		}
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

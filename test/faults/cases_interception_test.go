package faults

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"longhaul/lab/hosts"
	"longhaul/lab/linktest"
	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
	"longhaul/test/tcpscript"
)

// routed is a client and a target, each at a site of its own, that know nothing of the
// relay on the router between them:
//
//	client A ══left══ router R ══right══ target B
type routed struct {
	linktest.Row
	t      *testing.T
	before string // settings of the relay before its tunnel
	to     string // networks of targets; empty: those of B
	relay  *daemon
	peers  sync.Map // of the target: addresses of connections
}

// The target's addresses, and a port that is intercepted.
var routedTargets = []string{"10.9.2.2", "fd09:2::2"}

const routedPort = 5000

func newRouted(t *testing.T) *routed {
	t.Helper()
	s := &routed{Row: linktest.NewRow(t, 1500), t: t}
	for _, name := range []string{"all", "left", "right"} {
		nettest.Must(t, s.R.Sysctl("net.ipv4.conf."+name+".rp_filter", "1"))
	}
	return s
}

// serve has the target echo at all its addresses.
func (s *routed) serve() *routed {
	s.t.Helper()
	for _, address := range routedTargets {
		l, err := s.listen(address)(s.t.Context())
		nettest.Must(s.t, err)
		s.t.Cleanup(tcpserver.Serve(l, func(c net.Conn) {
			s.peers.Store(c.RemoteAddr().String(), true)
			tcpserver.Echo(c)
		}))
	}
	return s
}

// start starts the relay, with further settings of its tunnel.
func (s *routed) start(more string) *routed {
	s.t.Helper()
	if strings.Contains(more, "refuse: mirror") {
		nettest.RequireRoot(s.t) // it loads BPF programs
	}
	s.relay = startDaemon(s.t, s.R, unsupervised, s.config(more))
	return s
}

func (s *routed) config(more string) string {
	return fmt.Sprintf(`control_socket: SOCKET
workers: 1
%stunnels:
  - name: main
    intercept: {interface: left, from: [10.9.1.0/24, "fd09:1::/64"], to: [%s], ports: %d}
%s
`, s.before, cmp.Or(s.to, `10.9.2.0/24, "fd09:2::/64"`), routedPort, more)
}

// dial connects from the client to an address of the target.
func (s *routed) dial(address string) dialFunc { return s.dialPort(address, routedPort) }

func (s *routed) dialPort(address string, port uint16) dialFunc {
	return func(ctx context.Context) (c net.Conn, err error) {
		err = s.A.Do(func() error {
			c, err = tcpscript.DialTo(netip.AddrPortFrom(netip.MustParseAddr(address), port).String())(ctx)
			return err
		})
		return c, err
	}
}

func (s *routed) listen(address string) func(context.Context) (net.Listener, error) {
	return func(ctx context.Context) (l net.Listener, err error) {
		err = s.B.Do(func() error {
			l, err = tcpscript.ListenOn(routedAddress(address))(ctx)
			return err
		})
		return l, err
	}
}

func routedAddress(address string) string {
	return netip.AddrPortFrom(netip.MustParseAddr(address), routedPort).String()
}

// run runs a command on the router.
func (s *routed) run(name, debianPackage string, args ...string) string {
	s.t.Helper()
	return s.runFile(nettest.RequireProgram(s.t, name, debianPackage), args...)
}

func (s *routed) runFile(path string, args ...string) string {
	s.t.Helper()
	return linktest.Output(s.t, s.R, exec.Command(path, args...))
}

// shellOn runs a script that uses ip and nft.
func (s *routed) shellOn(h *hosts.Host, script string) string {
	s.t.Helper()
	nettest.RequireProgram(s.t, "nft", "nftables")
	nettest.RequireProgram(s.t, "ip", "iproute2")
	cmd := exec.Command("/bin/sh", "-euc", script)
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	return linktest.Output(s.t, h, cmd)
}

// expect opens a connection to each address of the target, and checks that it goes
// through the relay, or past it. The target must see the client's address and port.
func (s *routed) expect(throughRelay bool, when string) (all []held) {
	s.t.Helper()
	for _, address := range routedTargets {
		before := s.relay.status().tunnel("main").FlowsTotal
		h, err := tryHold(s.t.Context(), s.dial(address), patience)
		if err != nil {
			s.t.Fatalf("%s: to %s: %v\n%s", when, address, err, s.run("nft", "nftables", "list", "ruleset"))
		}
		s.t.Cleanup(func() { h.Close() })
		if got := s.relay.status().tunnel("main").FlowsTotal > before; got != throughRelay {
			s.t.Errorf("%s: to %s: through the relay: %v, want %v\n%s", when, address, got, throughRelay, s.run("nft", "nftables", "list", "ruleset"))
		}
		s.expectSeen(h)
		all = append(all, h)
	}
	return all
}

// expectSeen checks that the target sees the client's own address and port.
func (s *routed) expectSeen(h held) {
	s.t.Helper()
	if _, seen := s.peers.Load(h.LocalAddr().String()); !seen {
		s.t.Errorf("the target does not see the client %s", h.LocalAddr())
	}
}

// awaitWay waits until new connections go through the relay, or past it.
func (s *routed) awaitWay(throughRelay bool, when string) {
	s.t.Helper()
	nettest.Eventually(s.t, patience, func() bool {
		before := s.relay.status().tunnel("main").FlowsTotal
		h, err := tryHold(s.t.Context(), s.dial(routedTargets[0]), patience)
		if err != nil {
			return false
		}
		h.Close()
		return s.relay.status().tunnel("main").FlowsTotal > before == throughRelay
	}, func() string { return fmt.Sprintf("%s: new connections do not change their way", when) })
}

// eachRefuse runs a test for tunnels without and with refuse: mirror.
func eachRefuse(t *testing.T, f func(t *testing.T, more string)) {
	t.Parallel()
	for _, refuse := range []string{"after", "mirror"} {
		t.Run(refuse, func(t *testing.T) {
			t.Parallel()
			f(t, "    refuse: "+refuse+"\n")
		})
	}
}

// Status, the log and the rules show an intercepted connection with both its addresses,
// and a stop takes all rules away.
func TestInterceptedFlow(t *testing.T) {
	t.Parallel()
	s := newRouted(t).serve()
	clean := s.run("nft", "nftables", "list", "ruleset")
	s.start("")
	for _, h := range s.expect(true, "at first") {
		f := flowOf(s.relay, h)
		if f.Listen != h.RemoteAddr().String() || f.Target != h.RemoteAddr().String() {
			t.Errorf("status has %+v of the flow to %s", f, h.RemoteAddr())
		}
		h.release(t)
	}
	output, status := command(t, "status", "--control-socket", s.relay.socket())
	if want := "  intercepts left>10.9.2.0/24,fd09:2::/64:5000 -> as dialed\n"; status != 0 || !bytes.Contains([]byte(output), []byte(want)) {
		t.Errorf("status does not print %q:\n%s", want, output)
	}
	s.relay.expectLog(`msg=flow .*\bclient=10\.9\.1\.2:\d+ .*\btarget=10\.9\.2\.2:5000 .*\bend=end `)
	s.relay.reload(s.config("    allow: 10.9.1.7"))
	for _, address := range routedTargets {
		if h, err := tryHold(t.Context(), s.dial(address), patience); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a client that allow excludes gets %v", err)
			h.Close()
		}
	}
	s.relay.expectLog(`msg="connection refused" tunnel=main .*\blisten=10\.9\.2\.2:5000 reason=denied`)
	s.relay.signal(syscall.SIGTERM)
	s.relay.expectExit(0)
	if left := s.run("nft", "nftables", "list", "ruleset"); left != clean {
		t.Errorf("a stop leaves rules:\n%s", left)
	}
}

func flowOf(d *daemon, h held) (found flowStatus) {
	for _, f := range d.status().Flows {
		if f.Client == h.LocalAddr().String() {
			found = f
		}
	}
	return found
}

// The relay's own address is what the target sees with source: relay. Somebody who dials
// the transparent listener itself is refused.
func TestInterceptedFlowFromTheRelay(t *testing.T) {
	t.Parallel()
	s := newRouted(t).serve().start("    source: relay")
	for i, address := range routedTargets {
		h := hold(t, s.dial(address))
		var seen []string
		s.peers.Range(func(peer, _ any) bool { seen = append(seen, peer.(string)); return true })
		want := []string{"10.9.2.1", "fd09:2::1"}[i]
		if len(seen) != i+1 || !containsHost(seen, want) {
			t.Errorf("the target sees %v, want %s", seen, want)
		}
		h.release(t)
	}
	listeners := s.relay.status().tunnel("main").Listen
	if len(listeners) != 2 {
		t.Fatalf("the tunnel listens on %v", listeners)
	}
	for _, address := range listeners {
		dial := func(ctx context.Context) (c net.Conn, err error) {
			err = s.R.Do(func() error { c, err = tcpscript.DialTo(address)(ctx); return err })
			return c, err
		}
		if h, err := tryHold(t.Context(), dial, patience); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("who dials %s gets %v", address, err)
			h.Close()
		}
	}
}

func containsHost(addresses []string, host string) bool {
	for _, a := range addresses {
		if netip.MustParseAddrPort(a).Addr() == netip.MustParseAddr(host) {
			return true
		}
	}
	return false
}

// Case 65: kill -9 of an intercepting relay resets its flows. The next connection goes
// directly, and a new start intercepts again.
func TestCase65InterceptingRelayIsKilled(t *testing.T) {
	eachRefuse(t, func(t *testing.T, more string) {
		s := newRouted(t).serve().start(more)
		flows := s.expect(true, "at first")
		nettest.Must(t, s.relay.cmd.Process.Kill())
		<-s.relay.exited
		for _, h := range flows {
			expectGone(t, h)
		}
		var direct []held
		for _, address := range routedTargets {
			h := hold(t, s.dial(address))
			s.expectSeen(h)
			direct = append(direct, h)
		}
		s.relay = restartDaemon(t, s.R, s.relay)
		s.expect(true, "after the restart")
		for _, h := range direct {
			h.alive(t, "a connection from before the relay's start")
		}
	})
}

// Case 66: an intercepting tunnel that takes no new flow lets new connections pass: while
// it is drained, at max_flows, or when its relay stops. Its flows go on.
func TestCase66InterceptionIsBypassed(t *testing.T) {
	eachRefuse(t, func(t *testing.T, more string) {
		s := newRouted(t).serve().start(more + "    max_flows: 4\n    max_flows_per_source: off")
		flows := s.expect(true, "at first")
		drain := func(verb string) {
			if output, status := command(t, verb, "main", "--control-socket", s.relay.socket()); status != 0 {
				t.Fatalf("%s: %s", verb, output)
			}
		}
		drain("drain")
		s.expect(false, "while the tunnel is drained")
		drain("resume")
		flows = append(flows, s.expect(true, "after resume")...)
		s.awaitWay(false, "at max_flows")
		s.expect(false, "at max_flows")
		for _, h := range flows {
			h.alive(t, "at max_flows")
			h.release(t)
		}
		s.awaitWay(true, "below max_flows")
		lasting := s.expect(true, "below max_flows")
		s.relay.signal(syscall.SIGTERM)
		s.relay.expectLog(`(?s)msg=stopping.*msg="new connections pass the relay"`)
		for _, address := range routedTargets {
			s.expectSeen(hold(t, s.dial(address)))
		}
		for _, h := range lasting {
			h.alive(t, "while the relay stops")
			h.release(t)
		}
		s.relay.expectExit(0)
		for _, address := range routedTargets {
			s.expectSeen(hold(t, s.dial(address)))
		}
	})
}

// Case 66 with another limit: while descriptors run short, new connections pass the relay,
// and no client is left waiting.
func TestCase66InterceptionIsBypassedWhileShedding(t *testing.T) {
	t.Parallel()
	const most = 160
	s := newRouted(t).serve()
	s.before = "limits: {descriptors: 80%}\n"
	s.start("    max_flows_per_source: off")
	pid := s.relay.cmd.Process.Pid
	nettest.Must(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: most}, nil))
	nettest.Eventually(t, patience, func() bool {
		_, limit, capacity := s.relay.status().Resources.of("descriptors")
		return capacity == most && limit > 0
	}, func() string { return "the limit is not seen" })

	// What is short comes and goes by the few descriptors of the relay's own, and with it the
	// bypass; a flow keeps what it has.
	const passes, limit = 10, most * 8 / 10
	var flows []held
	passed, reset := 0, 0
	for passed < passes {
		before := s.relay.status().tunnel("main").FlowsTotal
		h, err := tryHold(t.Context(), s.dial(routedTargets[len(flows)%2]), patience)
		switch {
		case errors.Is(err, syscall.ECONNRESET): // the rules follow within a moment
			if reset++; reset > most {
				t.Fatal("new connections do not pass the relay")
			}
			continue
		case err != nil:
			t.Fatal(err)
		}
		s.expectSeen(h)
		if flows = append(flows, h); s.relay.status().tunnel("main").FlowsTotal == before {
			passed++
		}
	}
	if taken := len(flows) - passed; taken < 20 || taken > limit/2 {
		t.Errorf("a relay that may use %d descriptors took %d connections", limit, taken)
	}
	s.relay.expectLog(`resource=descriptors`)
	for _, h := range flows {
		h.alive(t, "while it sheds")
		h.release(t)
	}
	s.awaitWay(true, "with descriptors to spare")
	s.expect(true, "with descriptors to spare")
}

// What a relay leaves of its rules and of the host's settings is nothing, however it ends.
//
// It is not parallel: host undo takes back what every relay of this process has set.
func TestInterceptionLeavesNothing(t *testing.T) {
	nettest.RequireRoot(t) // host undo looks for BPF programs
	s := newRouted(t).serve()
	before := s.everything()
	kill := func() {
		nettest.Must(t, s.relay.cmd.Process.Kill())
		<-s.relay.exited
	}
	longhaul := func(args ...string) {
		t.Helper()
		s.run(nettest.Longhaul(t), "longhaul", args...)
	}
	for _, way := range []struct {
		name string
		end  func()
	}{
		{"stop", func() {
			s.relay.signal(syscall.SIGTERM)
			s.relay.expectExit(0)
		}},
		{"reload without the tunnel, and stop", func() {
			s.relay.reload("control_socket: SOCKET\ntunnels: [{name: other, listen: 127.0.0.1:6000, forward: 127.0.0.1:1}]\n")
			s.relay.signal(syscall.SIGTERM)
			s.relay.expectExit(0)
		}},
		{"kill and intercept clear", func() { kill(); longhaul("intercept", "clear", "--yes") }},
		{"kill and host undo", func() { kill(); longhaul("host", "undo", "--yes") }},
		{"kill, start and stop", func() {
			kill()
			s.relay = restartDaemon(t, s.R, s.relay)
			s.relay.signal(syscall.SIGTERM)
			s.relay.expectExit(0)
		}},
	} {
		s.start("")
		for _, h := range s.expect(true, way.name) {
			h.release(t)
		}
		if s.everything() == before {
			t.Errorf("%s: the state does not show what a relay sets", way.name)
		}
		way.end()
		if left := s.everything(); left != before {
			t.Errorf("%s leaves (-before +after):\n%s", way.name, gocmp.Diff(strings.Split(before, "\n"), strings.Split(left, "\n")))
		}
	}
}

// everything is the router's rules, routes and settings. Link-local addresses come late.
// The lists of congestion controls are the whole machine's.
func (s *routed) everything() string {
	s.t.Helper()
	return s.run("sh", "dash", "-c", `PATH=$PATH:/usr/sbin:/sbin
		nft list ruleset
		for f in -4 -6; do ip $f rule; ip $f route show table all; done | grep -vE 'fe80|ff00'
		cd /proc/sys/net
		find . -type f ! -name 'tcp_*_congestion_control' | sort | while read -r name; do
			echo "$name $(cat "$name" 2>/dev/null)"
		done`)
}

// Case 67: upgrades and reloads of an intercepting relay. Its flows go on, no connection
// fails, and each new one is intercepted.
func TestCase67InterceptingRelayIsUpgraded(t *testing.T) {
	eachRefuse(t, func(t *testing.T, more string) {
		s := newRouted(t).serve().start(more)
		flows := s.expect(true, "at first")
		newcomers := startNewcomers(t, 20*time.Millisecond, s.dial(routedTargets[0]))
		for range 2 {
			_, err := s.relay.upgrade("")
			nettest.Must(t, err)
			flows = append(flows, s.expect(true, "after an upgrade")...)
		}
		if _, err := s.relay.upgrade("/bin/false"); err == nil {
			t.Error("an upgrade to false succeeds")
		}
		flows = append(flows, s.expect(true, "after a failed upgrade")...)
		newcomers.expectServed(t)
		for _, h := range flows {
			h.alive(t, "after the upgrades")
			h.release(t)
		}
		if log := s.relay.log.String(); bytes.Contains([]byte(log), []byte("new connections pass the relay")) {
			t.Errorf("the rules had a gap:\n%s", log)
		}
	})
}

// Flows go on when a reload takes their port from the tunnel, or leads new flows elsewhere.
func TestInterceptedFlowOutlivesItsPort(t *testing.T) {
	t.Parallel()
	s := newRouted(t).serve().start("")
	flows := s.expect(true, "at first")
	s.relay.reload(strings.Replace(s.config(""), "ports: 5000", "ports: 5999", 1))
	flows = append(flows, s.expect(false, "with another port")...)
	for _, h := range flows {
		h.alive(t, "with another port")
	}
	// The flows through a next hop have a port that no tunnel has.
	s.relay.reload(strings.Replace(s.config("    forward: 10.9.2.2:5000"), "ports: 5000", "ports: 5999", 1))
	var elsewhere []held
	for _, address := range routedTargets[:1] {
		h, err := tryHold(t.Context(), s.dialPort(address, 5999), patience)
		nettest.Must(t, err)
		elsewhere = append(elsewhere, h)
	}
	s.relay.reload(s.config(""))
	for _, h := range append(flows, elsewhere...) {
		h.alive(t, "after the reloads")
		h.release(t)
	}
}

// Case 68: the target of an intercepted connection refuses, or is unreachable. The client
// is reset, and one that can be reached is served all the while.
func TestCase68InterceptedTargetFails(t *testing.T) {
	t.Parallel()
	s := newRouted(t).start("    connect_timeout: 2s")
	for _, address := range append([]string{"10.9.2.9", "fd09:2::9"}, routedTargets...) {
		if h, err := tryHold(t.Context(), s.dial(address), patience); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a client of %s gets %v, want a reset", address, err)
			h.Close()
		}
	}
	s.relay.expectLog(`msg=flow .*\btarget=10\.9\.2\.2:5000 .*\bend=target-refused`)
	s.relay.expectLog(`msg=flow .*\btarget=10\.9\.2\.9:5000 .*\bend=target-unreached`)
	s.serve()
	s.expect(true, "beside others that fail")
}

// Case 69: beside a firewall that drops what conntrack calls invalid, and with source NAT
// towards the target.
func TestCase69InterceptionWithConntrack(t *testing.T) {
	eachRefuse(t, func(t *testing.T, more string) {
		s := newRouted(t).serve()
		rules := s.t.TempDir() + "/rules"
		nettest.Must(t, os.WriteFile(rules, []byte(`
		table inet filter {
			chain forward { type filter hook forward priority filter; policy accept; ct state invalid drop; }
			chain input { type filter hook input priority filter; policy accept; ct state invalid drop; }
			chain output { type filter hook output priority filter; policy accept; ct state invalid drop; }
		}
		table ip nat {
			chain postrouting { type nat hook postrouting priority srcnat; oifname "right" masquerade; }
		}
	`), 0o600))
		s.run("nft", "nftables", "-f", rules)
		s.start(more)
		h := hold(t, s.dial(routedTargets[0]))
		if s.relay.status().tunnel("main").FlowsTotal != 1 {
			t.Error("the connection is not intercepted")
		}
		if _, own := s.peers.Load(h.LocalAddr().String()); own {
			t.Error("the target sees the client in spite of NAT")
		}
		b := startBulk(t, s.dial(routedTargets[0]), 8<<20)
		b.expectWhole(t, "a transfer behind NAT")
		six := hold(t, s.dial(routedTargets[1]))
		s.expectSeen(six)
		h.release(t)
		six.release(t)
	})
}

// Legs to targets in a prefix of destinations have its settings, by the longest match.
// A reload applies to new flows.
func TestInterceptedFlowByDestination(t *testing.T) {
	t.Parallel()
	s := newRouted(t).serve()
	nettest.Must(t, s.B.Address("eth0", netip.MustParsePrefix("10.9.2.3/24")))
	l, err := s.listen("10.9.2.3")(t.Context())
	nettest.Must(t, err)
	t.Cleanup(tcpserver.Serve(l, tcpserver.Echo))
	const settings = `    wan_side: forward
    wan: {congestion_control: cubic}
    destinations:
      - {prefix: 10.9.2.0/24, wan: {congestion_control: cubic}}
      - {prefix: 10.9.2.%d, wan: {congestion_control: reno}}
`
	s.start(fmt.Sprintf(settings, 2))
	// expect checks the algorithm of the target leg, and the prefix that status shows.
	expect := func(h held, congestionControl, destination string) {
		t.Helper()
		f := flowOf(s.relay, h)
		if f.TargetLeg.Destination != destination {
			t.Errorf("to %s: status has the settings of %q, want %q", h.RemoteAddr(), f.TargetLeg.Destination, destination)
		}
		out := s.run("ss", "iproute2", "-Htin", "state", "established", "src", h.LocalAddr().String(), "dst", h.RemoteAddr().String())
		if !bytes.Contains([]byte(out), []byte(" "+congestionControl+" ")) {
			t.Errorf("to %s: want %s: %s", h.RemoteAddr(), congestionControl, out)
		}
	}
	hosts, six := hold(t, s.dial("10.9.2.2")), hold(t, s.dial(routedTargets[1]))
	expect(hosts, "reno", "10.9.2.2/32")
	expect(hold(t, s.dial("10.9.2.3")), "cubic", "10.9.2.0/24")
	expect(six, "cubic", "")
	s.relay.reload(s.config(fmt.Sprintf(settings, 3)))
	expect(hosts, "reno", "10.9.2.2/32")
	expect(hold(t, s.dial("10.9.2.2")), "cubic", "10.9.2.0/24")
	expect(hold(t, s.dial("10.9.2.3")), "reno", "10.9.2.3/32")
}

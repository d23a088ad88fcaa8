package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/lab/linktest"
	"longhaul/test/nettest"
)

// farSource are the ways in which the far relay dials.
var farSources = []string{"client", "relay"}

// seen are the addresses of connections that the target has had.
func (s *routed) seen() (all []string) {
	s.peers.Range(func(peer, _ any) bool { all = append(all, peer.(string)); return true })
	return all
}

// Case 75: intercepted flows of a pair. The far relay dials what the client dialed, from
// the client's address or its own.
func TestCase75InterceptedPair(t *testing.T) {
	t.Parallel()
	for _, source := range farSources {
		t.Run(source, func(t *testing.T) {
			t.Parallel()
			p := newRoutedPair(t)
			p.serve()
			clean := p.onFar().run("nft", "nftables", "list", "ruleset")
			p.start("", "", "    pair_from: near\n    source: "+source)
			for i, address := range routedTargets {
				h := hold(t, p.dial(address))
				if source == "client" {
					p.expectSeen(h)
				} else if want := []string{"10.9.2.1", "fd09:2::1"}[i]; !containsHost(p.seen(), want) {
					t.Errorf("the target sees %v, want %s", p.seen(), want)
				}
				for _, d := range []*daemon{p.pairOf.near, p.pairOf.far} {
					if f := flowOf(d, h); f.Listen != h.RemoteAddr().String() || f.Target != h.RemoteAddr().String() {
						t.Errorf("status has %+v of the flow to %s", f, h.RemoteAddr())
					}
				}
				h.release(t)
				startBulk(t, p.dial(address), 4<<20).expectWhole(t, "a transfer to "+address)
			}
			if output, status := command(t, "check", "main", "--control-socket", p.relay.socket()); status != 0 || !strings.Contains(strings.Join(strings.Fields(output), " "), "and each flow has a target of its own") {
				t.Errorf("check: %d, %s", status, output)
			}
			show := p.onFar().run("ip", "iproute2", "rule")
			if got := strings.Contains(show, "fwmark"); got != (source == "client") {
				t.Errorf("source: %s: the far router's routing rules:\n%s", source, show)
			}
			p.pairOf.far.signal(syscall.SIGTERM)
			p.pairOf.far.expectExit(0)
			if left := p.onFar().run("nft", "nftables", "list", "ruleset"); left != clean {
				t.Errorf("a stop leaves rules:\n%s", left)
			}
		})
	}
}

// Case 76: the target of a pair's intercepted flow refuses, is unreachable, or is none that
// the far relay may dial: another network, another port, or another client.
func TestCase76InterceptedPairTargetFails(t *testing.T) {
	t.Parallel()
	p := newRoutedPair(t)
	p.start("", "    connect_timeout: 2s", "    pair_from: near")
	reset := func(address, reason string) {
		t.Helper()
		h, err := tryHold(t.Context(), p.dial(address), patience)
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a client of %s gets %v, want a reset", address, err)
			h.Close()
		}
		p.relay.expectLog(fmt.Sprintf(`msg=flow .*\btarget="?%s"? .*\bend=%s`, quoted(routedAddress(address)), reason))
	}
	denied := func(address, why string) {
		t.Helper()
		before := p.relay.log.count("reason=denied")
		if h, err := tryHold(t.Context(), p.dial(address), patience); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a client gets %v, want a reset", err)
			h.Close()
		}
		nettest.Eventually(t, patience, func() bool { return p.relay.log.count("reason=denied") > before }, func() string { return "not denied for " + why })
	}
	reset("10.9.2.9", "target-unreached")
	for _, address := range routedTargets {
		reset(address, "target-refused")
	}
	p.serve()
	for _, narrower := range []struct{ from, to string }{
		{"to: [10.9.2.0/24, ", "to: [10.9.3.0/24, "},
		{"from: [10.9.1.0/24, ", "from: [10.9.3.0/24, "},
		{fmt.Sprintf("ports: %d", routedPort), "ports: 1-4999"},
	} {
		config := p.farConfig("    pair_from: near")
		if !strings.Contains(config, narrower.from) {
			t.Fatal(narrower.from)
		}
		p.pairOf.far.reload(strings.Replace(config, narrower.from, narrower.to, 1))
		denied(routedTargets[0], narrower.to)
	}
	p.pairOf.far.reload(p.farConfig("    pair_from: near"))
	for _, address := range routedTargets {
		hold(t, p.dial(address)).release(t)
	}
}

// Case 77: an outage of the WAN under intercepted flows of a pair.
func TestCase77OutageUnderInterceptedPair(t *testing.T) {
	t.Parallel()
	p := newRoutedPair(t)
	p.serve()
	p.start("", "", "    pair_from: near")
	crowds := []*crowd{}
	for _, address := range routedTargets {
		crowds = append(crowds, p.pairOf.gather(p.dial(address), 16<<20))
	}
	for range 2 {
		p.cut()
		nettest.Eventually(t, patience, func() bool { return !p.relay.session().Up }, func() string { return "the near relay does not see the outage" })
		for _, c := range crowds {
			c.join()
		}
		p.mend()
		for _, c := range crowds {
			c.silent.alive(t, "after an outage")
		}
	}
	for _, c := range crowds {
		c.expectWhole()
	}
}

func quoted(address string) string {
	return strings.NewReplacer(".", `\.`, "[", `\[`, "]", `\]`).Replace(address)
}

// awaitReason waits until the near relay says why new connections pass it; "": they do not.
func (p *routedPair) awaitReason(reason string) {
	p.t.Helper()
	nettest.Eventually(p.t, patience, func() bool {
		b := p.relay.status().tunnel("main").Bypass
		return b != nil && b.Reason == reason
	}, func() string {
		return fmt.Sprintf("status has %+v, want %q", p.relay.status().tunnel("main").Bypass, reason)
	})
}

// Case 78: with when_down: bypass, new connections pass an intercepting relay while its
// pair is down, and go over the pair again once it is up.
func TestCase78InterceptedPairIsBypassed(t *testing.T) {
	t.Parallel()
	p := newRoutedPair(t)
	p.serve()
	p.start("", "    when_down: bypass", "    pair_from: near")
	p.awaitReason("")
	p.expect(true, "at first")
	for range 2 {
		nettest.Must(t, p.pairOf.far.cmd.Process.Kill())
		<-p.pairOf.far.exited
		p.awaitReason(flow.BypassPairDown)
		direct := p.expect(false, "while the far relay is dead")
		p.relay.expectLog(`msg="new connections pass the relay" tunnel=main reason=pair-down`)
		p.pairOf.far = restartDaemon(t, p.F, p.pairOf.far)
		p.awaitReason("")
		over := p.expect(true, "with a new far relay")
		for _, h := range append(direct, over...) {
			h.alive(t, "after the far relay's restart")
			h.release(t)
		}
	}
	if b := p.relay.status().tunnel("main").Bypass; b.Total != 2 {
		t.Errorf("status counts %d bypasses", b.Total)
	}
	show := p.runFile(nettest.Longhaul(t), "intercept", "show")
	if !strings.Contains(show, "4 connections went directly while it was paused") {
		t.Errorf("intercept show has no bypassed connections:\n%s", show)
	}
	last := p.expect(true, "before the far relay stops")
	p.pairOf.far.signal(syscall.SIGTERM)
	p.awaitReason(flow.BypassPairDown)
	p.expect(false, "while the far relay takes no flows")
	for _, h := range last {
		h.alive(t, "while the far relay stops")
		h.release(t)
	}
	p.pairOf.far.expectExit(0)
}

// Case 79: an encrypted pair is down, and the tunnel has no when_down. No connection goes
// directly: clients are reset, or served once the pair is up. The same at max_flows, and with
// a rule against forwarding when the near relay dies.
func TestCase79InterceptedPairIsNotBypassed(t *testing.T) {
	t.Parallel()
	p := newRoutedPair(t)
	p.serve()
	p.start(", resume: 2s", "    connect_timeout: 2s\n    max_flows: 1\n    max_flows_per_source: off", "    pair_from: near")
	nettest.Must(t, p.pairOf.far.cmd.Process.Kill())
	<-p.pairOf.far.exited
	nettest.Eventually(t, patience, func() bool { return !p.relay.session().Up }, func() string { return "the near relay does not see the death" })
	for _, address := range routedTargets {
		if _, err := tryHold(t.Context(), p.dial(address), patience); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a client of %s gets %v, want a reset", address, err)
		}
	}
	if seen := p.seen(); len(seen) > 0 {
		t.Errorf("connections went directly: %v", seen)
	}
	p.pairOf.far = restartDaemon(t, p.F, p.pairOf.far)
	p.pairOf.expectUp()
	h := hold(t, p.dial(routedTargets[0]))
	if _, err := tryHold(t.Context(), p.dial(routedTargets[0]), patience); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a client at max_flows gets %v, want a reset", err)
	}
	rules := filepath.Join(t.TempDir(), "rules")
	nettest.Must(t, os.WriteFile(rules, []byte(`table inet filter {
		chain forward { type filter hook forward priority filter; policy accept; iifname "left" ip daddr 10.9.2.0/24 drop; iifname "left" ip6 daddr fd09:2::/64 drop; }
	}`), 0o600))
	p.run("nft", "nftables", "-f", rules)
	h.alive(t, "beside a rule against forwarding")
	h.release(t)
	seen := len(p.seen())
	for _, address := range routedTargets {
		nettest.Eventually(t, patience, func() bool { return p.relay.status().tunnel("main").FlowsNow == 0 }, func() string { return "a flow is left" })
		hold(t, p.dial(address)).release(t)
	}
	nettest.Must(t, p.relay.cmd.Process.Kill())
	<-p.relay.exited
	for _, address := range routedTargets {
		const within = 500 * time.Millisecond // nothing answers
		ctx, cancel := context.WithTimeout(t.Context(), within)
		if h, err := tryHold(ctx, p.dial(address), within); err == nil {
			t.Errorf("a client of %s passes the rule", address)
			h.Close()
		}
		cancel()
	}
	if n := len(p.seen()); n != seen+len(routedTargets) {
		t.Errorf("the target has seen %d connections, want %d", n, seen+len(routedTargets))
	}
}

// Case 80: both sites' routers intercept the same connections, without a pair. Each leg is
// split, and the second relay says that the two should be paired. Over a pair, its own
// connections cross the other router's rules.
func TestCase80BothRoutersIntercept(t *testing.T) {
	t.Parallel()
	p := newRoutedPair(t)
	p.serve()
	far := fmt.Sprintf("control_socket: SOCKET\nworkers: 1\ntunnels:\n"+
		"  - name: main\n    intercept: {interface: wan, to: [10.9.2.0/24, 10.9.9.0/24, \"fd09:2::/64\"], ports: [%d, 6000]}\n", routedPort)
	second := startDaemon(t, p.F, unsupervised, far)
	first := p.routed.start("")
	flows := p.expect(true, "through both relays")
	if n := second.status().tunnel("main").FlowsTotal; n != int64(len(routedTargets)) {
		t.Errorf("the second relay has had %d flows", n)
	}
	for i, address := range routedTargets {
		flows[i].alive(t, "through both relays")
		startBulk(t, p.dial(address), 4<<20).expectWhole(t, "through both relays to "+address)
	}
	if n := second.status().tunnel("main").Relayed; n != 4 {
		t.Errorf("the second relay counts %d relayed connections, want 4", n)
	}
	if n := first.relay.status().tunnel("main").Relayed; n != 0 {
		t.Errorf("the first relay counts %d relayed connections", n)
	}
	second.expectLog(`level=WARN msg="another relay has intercepted the same connections before" tunnel=main`)
	output, _ := command(t, "status", "--control-socket", second.socket())
	if want := "  another relay intercepted 4 connections before: pair the two\n"; !strings.Contains(output, want) {
		t.Errorf("status does not print %q:\n%s", want, output)
	}
	for _, h := range flows {
		h.release(t)
	}
	p.relay.signal(syscall.SIGTERM)
	p.relay.expectExit(0)

	// The second router goes on intercepting, all and everybody, beside a far relay.
	paired := strings.Replace(far, "control_socket: SOCKET\n", fmt.Sprintf("control_socket: SOCKET\npair_keys: %s\n", p.pairOf.farKeys), 1)
	tunnel := p.farConfig("    pair_from: near")
	second.reload(strings.Replace(paired, "workers: 1\n", "", 1) + tunnel[strings.Index(tunnel, "  - name: from-near"):])
	p.pairOf.far = second
	before := second.status().tunnel("main").FlowsTotal
	p.startNear("", "")
	p.pairOf.expectUp()
	for _, h := range p.expect(true, "over the pair") {
		h.alive(t, "over the pair")
		h.release(t)
	}
	if n := second.status().tunnel("main").FlowsTotal - before; n != 0 {
		t.Errorf("the far router has intercepted %d connections of the pair", n)
	}
}

// Case 81: every hop in forward of an intercepting tunnel is down by its health checks. New
// connections pass, also those whose SYNs the relay would hold.
func TestCase81HopsOfInterceptionAreDown(t *testing.T) {
	eachRefuse(t, hopsAreDown)
}

func hopsAreDown(t *testing.T, more string) {
	p := newRoutedPair(t)
	p.serve()
	relay := fmt.Sprintf("control_socket: SOCKET\ntunnels:\n  - name: main\n    listen: \"10.9.9.2:6000\"\n    forward: \"10.9.2.2:%d\"\n", routedPort)
	far := startDaemon(t, p.F, unsupervised, relay)
	p.routed.start(more + "    forward: 10.9.9.2:6000\n    health: {check: connect, interval: 100ms, fall: 2, rise: 1, slow_return: off}")
	p.awaitReason("")
	through := func(want bool, when string) {
		t.Helper()
		before := p.relay.status().tunnel("main").FlowsTotal
		hold(t, p.dial(routedTargets[0])).release(t)
		if got := p.relay.status().tunnel("main").FlowsTotal > before; got != want {
			t.Errorf("%s: through the relay: %v", when, got)
		}
	}
	through(true, "at first")
	nettest.Must(t, far.cmd.Process.Kill())
	<-far.exited
	p.awaitReason(flow.BypassHopsDown)
	through(false, "while the hop is down")
	restartDaemon(t, p.F, far)
	p.awaitReason("")
	through(true, "with the hop")
}

// Case 82: both relays of an intercepting pair are upgraded. Flows go on, and no new
// connection fails or passes the relays.
func TestCase82InterceptingPairIsUpgraded(t *testing.T) {
	t.Parallel()
	p := newRoutedPair(t)
	p.serve()
	p.start("", "", "    pair_from: near")
	flows := p.expect(true, "at first")
	newcomers := startNewcomers(t, 20*time.Millisecond, p.dial(routedTargets[0]))
	for _, d := range []*daemon{p.pairOf.far, p.pairOf.near, p.pairOf.far} {
		_, err := d.upgrade("")
		nettest.Must(t, err)
		p.pairOf.expectUp()
		flows = append(flows, p.expect(true, "after an upgrade")...)
	}
	newcomers.expectServed(t)
	for _, h := range flows {
		h.alive(t, "after the upgrades")
		h.release(t)
	}
}

// Case 83: a reload takes the far tunnel of an intercepting pair away. Its flows go on, and
// the rules go with the last of them.
func TestCase83FarTunnelOfInterceptingPairIsRemoved(t *testing.T) {
	t.Parallel()
	p := newRoutedPair(t)
	p.serve()
	p.start("", "", "    pair_from: near")
	flows := p.expect(true, "at first")
	other := "control_socket: SOCKET\npair_keys: " + p.pairOf.farKeys + "\ntunnels: [{name: other, listen: 127.0.0.1:6001, forward: 127.0.0.1:1}]\n"
	p.pairOf.far.reload(other)
	p.pairOf.far.expectLog("the tunnel of a peer was removed")
	for _, h := range flows {
		h.alive(t, "after its tunnel was removed")
		h.release(t)
	}
	none := func() string { return p.onFar().run("nft", "nftables", "list", "ruleset") }
	nettest.Eventually(t, patience, func() bool { return none() == "" }, none)
}

// Case 90: the far relay is the target's host, behind a router that intercepts for itself. from and to
// decide whether it takes the pair's connections; the pair works either way.
func TestCase90PairThroughInterceptingRouter(t *testing.T) {
	t.Parallel()
	p := newRoutedPair(t)
	p.serve()
	between := func(from string) string {
		return "control_socket: SOCKET\ntunnels:\n  - name: main\n    intercept: {interface: wan, " + from + "to: 10.9.2.0/24}\n"
	}
	router := startDaemon(t, p.F, unsupervised, between("from: 10.9.1.0/24, "))
	far := strings.Replace(p.farConfig("    pair_from: near\n    source: relay"), "original: {", "original: {local_targets: true, ", 1)
	p.pairOf.far = startDaemon(t, p.B, unsupervised, far)
	p.before = fmt.Sprintf("pair_keys: %s\n", p.pairOf.nearKeys)
	near := p.config("    forward: 10.9.2.2:6000\n    pair: far")
	for _, intercepted := range []bool{false, true} {
		before := router.status().tunnel("main").FlowsTotal
		p.relay = startDaemon(t, p.R, unsupervised, near)
		p.pairOf.near = p.relay
		p.pairOf.expectUp()
		for _, address := range routedTargets {
			h := hold(t, p.dial(address))
			h.alive(t, "over the pair")
			h.release(t)
			startBulk(t, p.dial(address), 4<<20).expectWhole(t, "over the pair to "+address)
		}
		if got := router.status().tunnel("main").FlowsTotal > before; got != intercepted {
			t.Errorf("the router intercepts the pair's connections: %v, want %v", got, intercepted)
		}
		p.relay.signal(syscall.SIGTERM)
		p.relay.expectExit(0)
		router.reload(between(""))
	}
}

// Case 104: a client dials an address of the far relay's own host, past the filter of that
// host: one of its devices, or one of a local route. With local_targets it reaches it.
func TestCase104FarRelaysOwnHost(t *testing.T) {
	t.Parallel()
	p := newRoutedPair(t)
	p.serve()
	p.shellOn(p.F, `ip route add local 10.9.2.64/28 dev lo
ip -6 route add local fd09:2::5:0/112 dev lo
nft 'add table inet own'
nft 'add chain inet own in { type filter hook input priority filter; policy drop; }'
nft 'add rule inet own in iif lo accept'
nft 'add rule inet own in tcp dport 6000 accept'
nft 'add rule inet own in ct state established,related accept'
nft 'add rule inet own in meta l4proto icmpv6 accept'`)
	service := &routed{Row: linktest.Row{B: p.F}, t: t}
	l, err := service.listen("::")(t.Context())
	nettest.Must(t, err)
	serveEcho(t, l)
	const relay = "    pair_from: near\n    source: relay"
	p.start("", "", relay)
	own := []string{"10.9.2.1", "10.9.2.70", "fd09:2::1", "fd09:2::5:1"}
	for i, address := range append([]string{"10.9.2.255", "fd09:2::"}, own...) {
		if h, err := tryHold(t.Context(), p.dial(address), patience); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a client of %s gets %v, want a reset", address, err)
			h.Close()
		}
		if n := p.pairOf.far.status().tunnel("from-near").Denied; n != int64(i+1) {
			t.Errorf("after a client of %s the far tunnel has denied %d flows, want %d", address, n, i+1)
		}
	}
	p.relay.expectLog(`reason=denied .*error="10\.9\.2\.255 is an address of this host: see local_targets"`)
	for _, address := range routedTargets {
		hold(t, p.dial(address)).release(t)
	}
	config := p.farConfig(relay)
	p.pairOf.far.reload(strings.Replace(config, "original: {", "original: {local_targets: true, ", 1))
	for _, address := range own {
		hold(t, p.dial(address)).release(t)
	}
}

// The examples of both routers carry connections in both directions.
func TestRoutedExamples(t *testing.T) {
	t.Parallel()
	p := newRoutedPair(t)
	p.serve()
	of := func(name, device, keys, peer, peerHere, router, address string) string {
		return "control_socket: SOCKET\npair_keys: " + keys + "\n" + exampleOf(t, "routed", name,
			"name: "+strings.TrimSuffix(name, ".yaml")+"\n", "", "pair: "+peer, "pair: "+peerHere, "pair_from: "+peer, "pair_from: "+peerHere,
			"lan0", device, router, address, "10.10.10.0/24", "10.9.1.0/24", "10.20.20.0/24", "10.9.2.0/24", "1521", fmt.Sprint(routedPort))
	}
	near := startDaemon(t, p.R, unsupervised, of("site-a.yaml", "left", p.pairOf.nearKeys, "site-b", "far", "router-b.example.net", "10.9.9.2"))
	far := startDaemon(t, p.F, unsupervised, of("site-b.yaml", "right", p.pairOf.farKeys, "site-a", "near", "router-a.example.net", "10.9.9.1"))
	l := &routed{Row: linktest.Row{B: p.A}, t: t}
	back, err := l.listen("10.9.1.2")(t.Context())
	nettest.Must(t, err)
	serveEcho(t, back)
	for _, way := range []struct {
		dial      dialFunc
		near, far *daemon
		tunnel    string
	}{
		{p.dial(routedTargets[0]), near, far, "to-site-b"},
		{dialFrom(p.B, routedAddress("10.9.1.2")), far, near, "to-site-a"},
	} {
		h := hold(t, way.dial)
		for _, d := range []*daemon{way.near, way.far} {
			if f := flowOf(d, h); f.Target != h.RemoteAddr().String() {
				t.Errorf("%s: status has %+v", way.tunnel, f)
			}
		}
		if n := way.near.status().tunnel(way.tunnel).FlowsTotal; n != 1 {
			t.Errorf("%s has had %d flows", way.tunnel, n)
		}
		h.release(t)
		startBulk(t, way.dial, 4<<20).expectWhole(t, way.tunnel)
	}
	p.expectSeen(hold(t, p.dial(routedTargets[0])))
}

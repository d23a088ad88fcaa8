package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"longhaul/lab/hosts"
	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
	"longhaul/test/tcpscript"
)

// twoWays is a client and a target with two ways between them. The relay is on r1.
//
//	                ┌ left r1 right ┐
//	client ─ lan ───┤          alt ─┼──────── back1 ┐
//	                └ left r2 right ┴ wan ─── wan  r3 far ─ target
//	                           alt ────────── back2 ┘
type twoWays struct {
	t     *testing.T
	hosts map[string]*hosts.Host
	relay *daemon
}

const (
	waysClient = "10.9.1.7"
	waysTarget = "10.9.4.2:5000"
)

func newWays(t *testing.T) *twoWays {
	t.Helper()
	nettest.RequireSandbox(t)
	w := &twoWays{t: t, hosts: map[string]*hosts.Host{}}
	for _, name := range []string{"client", "r1", "r2", "r3", "target", "lan", "wan"} {
		h, err := hosts.New(name)
		nettest.Must(t, err)
		t.Cleanup(h.Close)
		w.hosts[name] = h
	}
	for _, c := range []struct{ a, deviceA, addressA, b, deviceB, addressB string }{
		{"client", "eth0", waysClient + "/24", "lan", "client", ""},
		{"r1", "left", "10.9.1.1/24", "lan", "r1", ""},
		{"r2", "left", "10.9.1.2/24", "lan", "r2", ""},
		{"r1", "right", "10.9.2.1/24", "wan", "r1", ""},
		{"r2", "right", "10.9.2.2/24", "wan", "r2", ""},
		{"r3", "wan", "10.9.2.3/24", "wan", "r3", ""},
		{"r1", "alt", "10.9.5.1/24", "r3", "back1", "10.9.5.3/24"},
		{"r2", "alt", "10.9.6.2/24", "r3", "back2", "10.9.6.3/24"},
		{"r3", "far", "10.9.4.1/24", "target", "eth0", "10.9.4.2/24"},
	} {
		nettest.Must(t, hosts.Cable(w.hosts[c.a], c.deviceA, w.hosts[c.b], c.deviceB, 1500))
		nettest.Must(t, w.hosts[c.a].Address(c.deviceA, netip.MustParsePrefix(c.addressA)))
		if c.addressB != "" {
			nettest.Must(t, w.hosts[c.b].Address(c.deviceB, netip.MustParsePrefix(c.addressB)))
		}
	}
	nettest.Must(t, w.hosts["lan"].Switch("br0", "client", "r1", "r2"))
	nettest.Must(t, w.hosts["wan"].Switch("br0", "r1", "r2", "r3"))
	for _, name := range []string{"r1", "r2", "r3"} {
		nettest.Must(t, w.hosts[name].Sysctl("net.ipv4.ip_forward", "1"))
		nettest.Must(t, w.hosts[name].Sysctl("net.ipv4.conf.all.send_redirects", "0"))
	}
	w.route("client", "0.0.0.0/0", "10.9.1.1")
	w.route("target", "0.0.0.0/0", "10.9.4.1")
	w.route("r1", "10.9.4.0/24", "10.9.2.3")
	w.route("r2", "10.9.4.0/24", "10.9.2.3")
	w.route("r3", "10.9.1.0/24", "10.9.2.1")
	var l net.Listener
	nettest.Must(t, w.hosts["target"].Do(func() (err error) {
		l, err = tcpscript.ListenOn("10.9.4.2:5000")(t.Context())
		return err
	}))
	t.Cleanup(tcpserver.Serve(l, tcpserver.Echo))
	w.relay = w.startRelay("r1")
	return w
}

func (w *twoWays) startRelay(host string) *daemon {
	w.t.Helper()
	return startDaemon(w.t, w.hosts[host], unsupervised, `control_socket: SOCKET
workers: 1
tunnels:
  - name: main
    intercept: {interface: left, from: 10.9.1.0/24, to: 10.9.4.0/24}
    connect_timeout: 2s
`)
}

func (w *twoWays) route(host, to, via string) {
	w.t.Helper()
	nettest.Must(w.t, w.hosts[host].Route(hosts.Route{To: netip.MustParsePrefix(to), Via: netip.MustParseAddr(via)}))
}

// strict turns on the reverse-path filter of a router.
func (w *twoWays) strict(host string) {
	w.t.Helper()
	nettest.Must(w.t, w.hosts[host].Sysctl("net.ipv4.conf.all.rp_filter", "1"))
}

// run runs a shell command on a host.
func (w *twoWays) run(host, command string) string {
	w.t.Helper()
	return runOn(w.t, w.hosts[host], "/bin/sh", "-ec", "PATH=$PATH:/usr/sbin:/sbin; "+command)
}

func runOn(t *testing.T, h *hosts.Host, program string, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := h.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", program, args, err, out.String())
	}
	return out.String()
}

// dial connects from the client to the target.
func (w *twoWays) dial(ctx context.Context) (c net.Conn, err error) {
	err = w.hosts["client"].Do(func() error { c, err = tcpscript.DialTo(waysTarget)(ctx); return err })
	return c, err
}

func (w *twoWays) hold(when string) held {
	w.t.Helper()
	h, err := tryHold(w.t.Context(), w.dial, patience)
	if err != nil {
		w.t.Fatalf("%s: %v", when, err)
	}
	w.t.Cleanup(func() { h.Close() })
	return h
}

// verdict is what doctor --intercept prints of one way.
type verdict struct {
	Cause    string
	Certain  bool
	Sentence string
	Evidence []string
	Remedies []struct{ Action, Place, Command string }

	Observation json.RawMessage
}

func judge(t *testing.T, h *hosts.Host, args ...string) verdict {
	t.Helper()
	nettest.RequireRoot(t)
	out := runOn(t, h, nettest.Longhaul(t), append([]string{"doctor", "--intercept", "--time", "1s", "--json"}, args...)...)
	var report struct{ Ways []verdict }
	if err := json.Unmarshal([]byte(out), &report); err != nil || len(report.Ways) != 1 {
		t.Fatalf("%v: %s", err, out)
	}
	return report.Ways[0]
}

// expect checks the verdict about the client and the target.
func (w *twoWays) expect(cause string, certain bool, words ...string) verdict {
	w.t.Helper()
	v := judge(w.t, w.hosts["r1"], waysTarget, "--client", waysClient)
	v.expect(w.t, cause, certain, words...)
	return v
}

func (v *verdict) expect(t *testing.T, cause string, certain bool, words ...string) {
	t.Helper()
	text := fmt.Sprint(v.Sentence, v.Evidence, v.Remedies)
	missing := v.Cause != cause || v.Certain != certain
	for _, word := range words {
		missing = missing || !strings.Contains(text, word)
	}
	if missing {
		t.Errorf("got %s (certain: %v), want %s (certain: %v) with %q: %s\n%s", v.Cause, v.Certain, cause, certain, words, text, v.Observation)
	}
}

// Case 84: the target's answers go to the client by another router.
func TestCase84AsymmetricReturn(t *testing.T) {
	t.Parallel()
	w := newWays(t)
	w.expect("healthy", true)
	w.route("r3", "10.9.1.0/24", "10.9.2.2")
	const remedy = "ip route replace 10.9.1.0/24 via 10.9.2.1"
	w.expect("asymmetric-return", true, remedy, "reset, which arrived at left")
	w.run("r3", "ip route replace 10.9.1.0/24 via 10.9.2.1")
	w.expect("healthy", true)
	// Without a client, this host's own address at the clients' side shows the same.
	w.route("r3", "10.9.1.0/24", "10.9.2.2")
	v := judge(t, w.hosts["r1"], waysTarget)
	v.expect(t, "asymmetric-return", true, remedy, "the answer of 10.9.4.2:5000 arrived at left")
}

// Case 85: a router on the way drops the clients' packets by its reverse-path filter, or
// one that sees the answers alone drops what conntrack calls invalid.
func TestCase85AnswersAreLost(t *testing.T) {
	t.Parallel()
	w := newWays(t)
	w.strict("r3")
	w.expect("healthy", true)
	w.run("r3", "ip route replace 10.9.1.0/24 via 10.9.6.2")
	w.expect("answers-lost", false, "TcpExtIPReversePathFilter", "ip route replace 10.9.1.0/24 via 10.9.2.1")
	nettest.Must(t, w.hosts["r3"].Sysctl("net.ipv4.conf.all.rp_filter", "0"))
	w.expect("asymmetric-return", true)
	nettest.RequireProgram(t, "nft", "nftables")
	w.run("r2", "nft add table ip f; nft 'add chain ip f c { type filter hook forward priority 0; }'; nft add rule ip f c ct state invalid drop")
	w.expect("answers-lost", false, "conntrack -S")
}

// Case 86: the relay's own host drops the answers, by its reverse-path filter or by its
// firewall.
func TestCase86OwnHostDropsAnswers(t *testing.T) {
	t.Parallel()
	w := newWays(t)
	w.route("r3", "10.9.1.0/24", "10.9.5.1")
	w.expect("healthy", true)
	w.strict("r1")
	v := w.expect("reverse-path-filter", true, "counter IPReversePathFilter went up", "sysctl -w net.ipv4.conf.alt.rp_filter=2")
	w.run("r1", v.Remedies[0].Command)
	w.expect("healthy", true)
	nettest.RequireProgram(t, "nft", "nftables")
	w.run("r1", "nft add table ip f; nft 'add chain ip f c { type filter hook input priority 0; }'; nft add rule ip f c iifname alt drop")
	w.expect("firewall", true, "arrived at alt")
	// An answer without its SYN is invalid to conntrack.
	w.run("r1", "nft flush chain ip f c; nft add rule ip f c ct state invalid drop; nft 'add chain ip f raw { type filter hook output priority raw; }'; nft add rule ip f raw oifname right notrack")
	w.expect("firewall", true, "connection tracking calls them invalid")
}

// Case 87: the route of a flow changes to a router that does not know it.
func TestCase87RouteChangesUnderAFlow(t *testing.T) {
	t.Parallel()
	w := newWays(t)
	nettest.RequireProgram(t, "nft", "nftables")
	w.run("r2", "nft add table ip f; nft 'add chain ip f c { type filter hook forward priority 0; }'; nft add rule ip f c ct state new tcp flags != syn drop")
	nettest.Must(t, w.hosts["r2"].Down("left"))
	h := w.hold("at first")
	w.expect("healthy", true)
	w.route("r2", "10.9.1.0/24", "10.9.2.1")
	w.run("r2", "ip route replace 10.9.4.0/24 via 10.9.6.3")
	w.route("r3", "10.9.1.0/24", "10.9.6.2")
	w.route("r1", "10.9.4.0/24", "10.9.2.2")
	_, err := h.Write([]byte("lost"))
	nettest.Must(t, err)
	var v verdict
	nettest.Eventually(t, patience, func() bool {
		v = judge(t, w.hosts["r1"], waysTarget, "--client", waysClient)
		return v.Cause != "healthy"
	}, func() string { return fmt.Sprintf("the flow is not seen: %+v", v) })
	v.expect(t, "route-changed", false, "1 flow to the target gets no answer", "ss -K dst 10.9.4.2")
}

// Case 88: two relays share virtual addresses at both sides by VRRP, and each is the
// master of one side.
func TestCase88RelaysInVRRP(t *testing.T) {
	t.Parallel()
	w := newWays(t)
	program := nettest.RequireProgram(t, "keepalived", "keepalived")
	w.startRelay("r2")
	w.route("client", "0.0.0.0/0", "10.9.1.9")
	w.route("r3", "10.9.1.0/24", "10.9.2.9")
	stop := map[string]func(){}
	start := func(host string, left, right int) {
		file := filepath.Join(t.TempDir(), "keepalived.conf")
		text := "global_defs {\n  router_id " + host + "\n}\n"
		for i, side := range []struct {
			device   string
			priority int
		}{{"left", left}, {"right", right}} {
			text += fmt.Sprintf("vrrp_instance %s {\n interface %s\n virtual_router_id %d\n version 3\n advert_int 0.5\n priority %d\n state BACKUP\n virtual_ipaddress {\n 10.9.%d.9/24\n }\n}\n",
				side.device, side.device, 61+i, side.priority, 1+i)
		}
		writeFile(t, file, text)
		cmd := exec.Command(program, "--dont-fork", "--log-console", "--vrrp", "--use-file", file,
			"--pid", filepath.Join(filepath.Dir(file), "pid"), "--vrrp_pid", filepath.Join(filepath.Dir(file), "vrrp.pid"))
		nettest.Must(t, w.hosts[host].Start(cmd))
		once := false
		stop[host] = func() {
			if !once {
				once = true
				_ = cmd.Process.Signal(syscall.SIGTERM)
				_ = cmd.Wait()
			}
		}
		t.Cleanup(stop[host])
	}
	holds := func(host, device, address string) {
		t.Helper()
		nettest.Eventually(t, patience, func() bool {
			return strings.Contains(w.run(host, "ip -o addr show dev "+device), " "+address+"/")
		}, func() string { return fmt.Sprintf("%s does not get %s", host, address) })
	}
	start("r1", 110, 110)
	start("r2", 90, 90)
	holds("r1", "left", "10.9.1.9")
	holds("r1", "right", "10.9.2.9")
	w.hold("through the master").release(t)
	w.expect("healthy", true)
	v := judge(t, w.hosts["r2"], waysTarget, "--client", waysClient)
	v.expect(t, "standby", true, "backup of 10.9.1.1")

	stop["r1"]()
	stop["r2"]()
	start("r1", 110, 90)
	start("r2", 90, 110)
	holds("r1", "left", "10.9.1.9")
	holds("r2", "right", "10.9.2.9")
	var last verdict
	nettest.Eventually(t, patience, func() bool { // the routers announce the addresses, neighbours learn them
		last = judge(t, w.hosts["r1"], waysTarget, "--client", waysClient)
		return last.Cause == "vrrp-split" && last.Certain
	}, func() string { return fmt.Sprintf("%+v", last) })
	last.expect(t, "vrrp-split", true, "this host is the master at left, and 10.9.2.2 is at right", "vrrp_sync_group")
}

// Case 89: the packets of clients do not pass the relay's host, or arrive at another
// interface; another program has removed its rules.
func TestCase89ClientsGoElsewhere(t *testing.T) {
	t.Parallel()
	w := newWays(t)
	w.route("client", "0.0.0.0/0", "10.9.1.2")
	w.expect("clients-elsewhere", false, "ip route replace 10.9.4.0/24 via 10.9.1.1")
	w.route("client", "0.0.0.0/0", "10.9.1.1")
	w.run("r1", "ip route add 10.9.1.7 via 10.9.2.3")
	w.expect("client-route", true, "leads by right")
	w.run("r1", "ip route del 10.9.1.7")
	w.expect("healthy", true)
	// Answers of targets whose connects do not pass: seen with connections under way.
	w.route("client", "0.0.0.0/0", "10.9.1.2")
	newcomers := startNewcomers(t, 20*time.Millisecond, w.dial)
	v := judge(t, w.hosts["r1"], waysTarget, "--client", waysClient, "--time", "3s")
	v.expect(t, "clients-elsewhere", true, "passed whose connects did not")
	newcomers.end()
	nettest.RequireProgram(t, "nft", "nftables")
	w.relay.signal(syscall.SIGSTOP) // or it would set them again
	w.run("r1", "nft flush ruleset")
	w.expect("rules-missing", true, "longhaul reload")
	w.relay.signal(syscall.SIGCONT)
	w.relay.expectLog("they are set again")
	w.run("r1", "ip rule del pref 1812")
	nettest.Eventually(t, patience, func() bool { return w.relay.log.count("they are set again") == 2 }, func() string { return "the rule is not set again" })
	w.expect("clients-elsewhere", false)
}

// Case 91: something before the clients drops the relay's answers.
func TestCase91AnswersToClientsAreLost(t *testing.T) {
	t.Parallel()
	w := newWays(t)
	nettest.RequireProgram(t, "nft", "nftables")
	w.run("client", "nft add table ip f; nft 'add chain ip f c { type filter hook input priority 0; }'; nft 'add rule ip f c tcp flags & (syn | ack) == (syn | ack) drop'")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		c, err := w.dial(ctx)
		if err == nil {
			c.Close()
		}
		done <- err
	}()
	defer func() { cancel(); <-done }()
	v := judge(t, w.hosts["r1"], waysTarget, "--client", waysClient, "--time", "5s")
	v.expect(t, "handshakes-hang", false, "do not reach the clients", "left by left")
}

// Nothing is named while clients connect, through the relay or past it, and while a
// router loses packets.
func TestHealthyWaysUnderLoad(t *testing.T) {
	t.Parallel()
	w := newWays(t)
	newcomers := startNewcomers(t, 20*time.Millisecond, w.dial)
	healthy := func(when string) {
		t.Helper()
		for _, args := range [][]string{{waysTarget, "--client", waysClient}, {waysTarget}, {}} {
			v := judge(t, w.hosts["r1"], append(args, "--time", "2s")...)
			if v.Cause != "healthy" {
				t.Errorf("%s, %v: %+v\n%s", when, args, v, v.Observation)
			}
		}
	}
	h := w.hold("at first")
	healthy("intercepted")
	if output, status := command(t, "drain", "main", "--control-socket", w.relay.socket()); status != 0 {
		t.Fatal(output)
	}
	healthy("drained")
	if output, status := command(t, "resume", "main", "--control-socket", w.relay.socket()); status != 0 {
		t.Fatal(output)
	}
	nettest.RequireProgram(t, "nft", "nftables")
	w.run("r3", "nft add table ip f; nft 'add chain ip f c { type filter hook forward priority 0; }'; nft add rule ip f c numgen random mod 10 == 0 drop")
	healthy("with losses")
	h.alive(t, "after the probes")
	newcomers.end()
}

// doctor --intercept names nothing on healthy ways, leaves nothing behind, and connects to no
// target: a probe does so only if doctor gets no processor for 200 ms.
func TestHealthyWays(t *testing.T) {
	t.Parallel()
	s := newRouted(t).serve()
	silent := func(value string) {
		nettest.Must(t, s.A.Sysctl("net.ipv4.icmp_echo_ignore_all", value))
	}
	state := func() string {
		return s.run("nft", "nftables", "list", "ruleset") + runOn(t, s.R, "/bin/sh", "-c", "PATH=$PATH:/sbin; ip rule; ip route show table all")
	}
	s.start("")
	probes := 0
	for _, more := range []string{"", "    source: relay"} {
		s.relay.reload(s.config(more))
		for _, firewall := range []string{"", "masquerade"} {
			if firewall != "" {
				s.run("nft", "nftables", "add table ip nat; add chain ip nat post { type nat hook postrouting priority srcnat; }; add rule ip nat post oifname right masquerade; add table inet f; add chain inet f in { type filter hook input priority 0; }; add rule inet f in ct state invalid drop")
			}
			before := state()
			for i, target := range routedTargets {
				client := []string{"10.9.1.2", "fd09:1::2"}[i]
				for _, args := range [][]string{{"--client", client}, nil} {
					v := judge(t, s.R, append([]string{routedAddress(target)}, args...)...)
					v.expect(t, "healthy", true)
					probes++
				}
			}
			silent("1")
			v := judge(t, s.R, "10.9.2.2:5000", "--client", "10.9.1.2")
			v.expect(t, "healthy", true)
			silent("0")
			if after := state(); after != before {
				t.Errorf("the probes leave something behind:\n%s\nbefore:\n%s", after, before)
			}
			if firewall != "" {
				s.run("nft", "nftables", "delete table ip nat; delete table inet f")
			}
		}
	}
	seen := 0
	s.peers.Range(func(any, any) bool { seen++; return true })
	if seen > probes/2 {
		t.Errorf("the target's program has seen %d of %d probes", seen, probes)
	}
	// Of a flow, without arguments.
	h := hold(t, s.dial(routedTargets[0]))
	v := judge(t, s.R)
	v.expect(t, "healthy", true, "10.9.2.2:5000")
	h.alive(t, "after the probes")
}

package faults

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/sys/tcpinfo"
	"longhaul/lab/hosts"
	"longhaul/lab/link"
	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
	"longhaul/test/tcpscript"
)

// crowd are flows of all sorts that a fault of the path must not harm.
type crowd struct {
	p      *pairOf
	dial   dialFunc
	busy   *traffic
	silent held
	bulk   *bulk
	opened <-chan error // of the flow that began in the outage; nil: none did
}

// gather opens flows to a target that echoes.
func (p *pairOf) gather(dial dialFunc, bulkBytes int64) *crowd {
	p.t.Helper()
	c := &crowd{p: p, dial: dial, busy: openTraffic(p.t, dial, 4), silent: hold(p.t, dial), bulk: startBulk(p.t, dial, bulkBytes)}
	c.bulk.expectGot(p.t, bulkBytes/16)
	return c
}

// join begins a flow, which needs not be served before expectWhole.
func (c *crowd) join() { c.opened = begin(c.p.t, c.dial) }

// expectMore waits until the bulk flow has so many bytes more, or all.
func (c *crowd) expectMore(bytes int64) {
	c.p.t.Helper()
	c.bulk.expectGot(c.p.t, min(c.bulk.size, c.bulk.got.Load()+bytes))
}

// expectWhole ends all flows; none may have lost a byte, and none may have been reset.
func (c *crowd) expectWhole() {
	t := c.p.t
	t.Helper()
	c.silent.alive(t, "a silent flow, after the fault")
	c.silent.release(t)
	c.busy.release(t)
	c.bulk.expectWhole(t, "a busy flow")
	if c.opened != nil {
		if err := <-c.opened; err != nil {
			t.Errorf("a flow that began in the outage: %v", err)
		}
	}
}

// providers of a path, with the addresses of both hosts at each.
var providers = []struct {
	name      string
	near, far netip.Prefix
}{
	{"isp1", nearAddress, farAddress},
	{"isp2", netip.MustParsePrefix("10.2.0.1/24"), netip.MustParsePrefix("10.2.0.2/24")},
}

// bothProviders is a path over two providers.
func bothProviders(t *testing.T) *pairPath {
	t.Helper()
	both := link.Settings{MTU: 1500, Delay: 5 * time.Millisecond, RateBps: 40e6}
	p := newPairPathOver(t, wan(providers[0].name, providers[0].near, providers[0].far, both),
		wan(providers[1].name, providers[1].near, providers[1].far, both))
	p.wan = ":6000"
	return p
}

// Case 53: one of two providers dies, and later the other one. The far relay has an
// address at each.
func TestCase53ProviderOfFarRelayDies(t *testing.T) {
	t.Parallel()
	p := bothProviders(t)
	p.nameFar("far-relay.test", providers[0].far.Addr(), providers[1].far.Addr())
	p.forward = "far-relay.test:6000"
	p.start()
	p.echo()
	c := p.gather(p.dial, 16<<20)
	for i := range 2 {
		from := p.near.session().Remote.Addr()
		at := slices.IndexFunc(providers, func(x struct {
			name      string
			near, far netip.Prefix
		}) bool {
			return x.far.Addr() == from
		})
		p.setDown(providers[at].name, true, bothWays)
		if i == 0 {
			c.join()
		}
		p.expectRemote(providers[1-at].far.Addr())
		c.silent.alive(t, "after its provider died")
		c.expectMore(1 << 20)
		p.setDown(providers[at].name, false, bothWays)
	}
	c.expectWhole()
	p.expectNoFlows()
	// The log of a change names the address, whether the relay saw the session down or not.
	p.near.expectLog(`msg="pair: session up.*" .*remote=` + providers[1].far.Addr().String())
}

// expectRemote waits until the session stands with the far relay at an address.
func (p *pairOf) expectRemote(address netip.Addr) {
	p.t.Helper()
	nettest.Eventually(p.t, patience, func() bool { s := p.near.session(); return s.Up && s.Remote.Addr() == address },
		func() string { return fmt.Sprintf("the session is not with %v: %+v", address, p.near.session()) })
}

// nameFar has a name resolve to addresses.
func (p *pairPath) nameFar(name string, addresses ...netip.Addr) {
	p.t.Helper()
	text := "127.0.0.1 localhost\n"
	for _, a := range addresses {
		text += a.String() + " " + name + "\n"
	}
	file := filepath.Join(p.t.TempDir(), "hosts")
	writeFile(p.t, file, text)
	nettest.Must(p.t, os.Chmod(file, 0o644))
	nettest.Must(p.t, unix.Mount(file, "/etc/hosts", "", unix.MS_BIND, ""))
	p.t.Cleanup(func() { _ = unix.Unmount("/etc/hosts", unix.MNT_DETACH) })
}

// Case 53: the near relay has two uplinks. One dies, and routing turns to the other.
func TestCase53UplinkOfNearRelayDies(t *testing.T) {
	t.Parallel()
	p := bothProviders(t)
	service := netip.MustParsePrefix("10.9.0.2/32")
	nettest.Must(t, p.farHost.Address("lo", service))
	over := func(i int) {
		nettest.Must(t, p.nearHost.Route(hosts.Route{To: service, Via: providers[i].far.Addr()}))
	}
	over(0)
	p.forward = netip.AddrPortFrom(service.Addr(), 6000).String()
	p.start()
	p.echo()
	c := p.gather(p.dial, 16<<20)
	for i := range 2 {
		p.setDown(providers[i].name, true, bothWays)
		over(1 - i)
		c.silent.alive(t, "after an uplink died")
		c.expectMore(1 << 20)
		p.setDown(providers[i].name, false, bothWays)
	}
	c.expectWhole()
	p.expectNoFlows()
}

// oneWay are the halves of a path that can fail alone.
var oneWay = map[string]link.Direction{"up": link.AToB, "down": link.BToA}

// Case 54: one direction of the path is down for longer than resume. Its receiver is not
// shown a clean end.
func TestCase54OneWayOutageLongerThanResume(t *testing.T) {
	t.Parallel()
	for name, sender := range map[string]string{"up": "client", "down": "target"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPairPath(t)
			p.tunnelNear = ", resume: 2s"
			p.start()
			p.run(`
				target listens
				client connects
				target accepts
				client sends 100K
				target sends 100K
				target expects 100K
				client expects 100K
				does cut
				`+sender+` sends 1K
				`+sender+` ends
				client expects reset
				target expects reset
				does mend
			`, map[string]func(){"cut": func() { p.cut(oneWay[name]) }, "mend": p.mend})
			p.near.expectLog(`msg=flow .*\bend=wan-lost `)
			p.far.expectLog(`msg=flow .*\bend=wan-lost `)
			p.expectNoFlows()
			p.echo()
			p.expectServed(p.dial)
		})
	}
}

// Case 54: ends and resets while one direction of the path is down arrive after it.
func TestCase54EndsInAOneWayOutage(t *testing.T) {
	t.Parallel()
	for direction, way := range oneWay {
		for _, c := range []struct{ name, script, ends string }{
			{"client resets", "client resets\nwaits 1s\ndoes mend\ntarget expects reset", "client-reset"},
			{"target resets", "target resets\nwaits 1s\ndoes mend\nclient expects reset", "target-reset"},
			{"both end", "client sends 300K\nclient ends\ntarget sends 300K\ntarget ends\nwaits 1s\ndoes mend\ntarget expects 300K, end\nclient expects 300K, end", "end"},
		} {
			t.Run(direction+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				newPairPath(t).endInAnOutage(c.script, c.ends, way)
			})
		}
	}
}

// Case 55: no answer to an OPEN comes, while the far relay connects to a slow target. The
// near relay repeats it on another lane. The target sees one connection.
func TestCase55RepeatedOpen(t *testing.T) {
	t.Parallel()
	isLane := func(s socketOf) bool { return s.info.State == tcpinfo.Established && s.info.BytesReceived >= laneBytes }
	for _, c := range []struct {
		name  string
		atFar bool // the far relay does not get the first OPEN
		deaf  func(socketOf) bool
	}{
		{"the OPEN is lost", true, isLane},
		{"its acknowledgement is lost", false, isLane},
		{"and the control connection is silent", false, func(s socketOf) bool { return s.info.State == tcpinfo.Established }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p, _ := loopbackPair(t)
			p.forward = p.wan // no box between: the kernel must miss acknowledgements
			l, err := tcpscript.ListenOn(p.target)(t.Context())
			nettest.Must(t, err)
			var connections atomic.Int32
			t.Cleanup(tcpserver.Serve(l, func(c net.Conn) {
				connections.Add(1)
				tcpserver.Echo(c)
			}))
			p.start()
			filterListener(t, l, dropAll) // so that the far relay's SYN has no answer
			deaf := p.near
			if c.atFar {
				deaf = p.far
			}
			lanes := p.near.localPorts(isLane)
			deaf.filter(dropAll, c.deaf)
			b := startBulk(t, p.dial(), 4<<20)
			nettest.Eventually(t, patience, func() bool { return !overlap(lanes, p.near.localPorts(isLane)) && p.far.session().FlowsTotal == 1 },
				func() string { return fmt.Sprintf("the OPEN is not repeated: %+v", p.near.session()) })
			filterListener(t, l, nil)
			b.expectWhole(t, "a flow whose OPEN was repeated")
			p.expectNoFlows()
			if n := connections.Load(); n != 1 {
				t.Errorf("the target saw %d connections, want 1", n)
			}
			for _, d := range []*daemon{p.near, p.far} {
				d.expectLog(`msg=flow .*\bend=end `)
				if n := d.session().FlowsTotal; n != 1 {
					t.Errorf("a relay counts %d flows, want 1", n)
				}
			}
		})
	}
}

// localPorts lists the ports of sockets that match wants.
func (d *daemon) localPorts(match func(socketOf) bool) (ports []uint16) {
	d.t.Helper()
	d.eachSocket(func(s socketOf) {
		if match(s) {
			ports = append(ports, s.local.Port())
		}
	})
	return ports
}

func overlap(a, b []uint16) bool {
	return slices.ContainsFunc(a, func(port uint16) bool { return slices.Contains(b, port) })
}

// laneBytes are at least received by a lane of the pool: PAD opens its window.
const laneBytes = 64 << 10

// Case 56: the near relay has no local port for another lane. Flows that have lanes go
// on; those that get none in time are reset, and the cause is named. Ports that are
// given back serve new flows.
func TestCase56NoLocalPortForLanes(t *testing.T) {
	t.Parallel()
	const ports = 8
	p := newPairPath(t)
	nettest.Must(t, p.nearHost.Sysctl("net.ipv4.ip_local_port_range", fmt.Sprintf("40000 %d", 40000+ports-1)))
	p.settings = "    connect_timeout: 2s\n"
	p.start()
	p.echo()
	clients := dialFromMany(p.listen) // which use up no ports of one address
	dial := func(ctx context.Context) (c net.Conn, err error) {
		err = p.nearHost.Do(func() error {
			c, err = clients(ctx)
			return err
		})
		return c, err
	}
	var running []held
	for {
		h, err := tryHold(t.Context(), dial, patience)
		if errors.Is(err, syscall.ECONNRESET) {
			break
		}
		nettest.Must(t, err)
		if running = append(running, h); len(running) == ports {
			t.Fatalf("%d flows are served with %d ports, of which the control connection has one", len(running), ports)
		}
		t.Cleanup(func() { h.Close() })
	}
	if len(running) < warmLanes {
		t.Errorf("%d flows are served, want those of the warm lanes at least", len(running))
	}
	p.near.expectLog(`msg=flow .*\bend=no-local-port ended_by=relay error=.*cannot assign requested address`)
	p.near.expectLog(`level=WARN msg="pair: no new lane" .*cannot assign requested address`)
	if output, _ := command(t, "status", "--control-socket", p.near.socket()); !strings.Contains(output, "no new lane: ") {
		t.Errorf("status does not name the fault:\n%s", output)
	}
	for _, h := range running {
		h.alive(t, "with all ports in use")
	}
	running[0].release(t)
	p.expectServed(dial)
	for _, h := range running[1:] {
		h.release(t)
	}
	p.expectNoFlows()
}

// Case 56: the far relay has no local port towards the target. Both logs say so.
func TestCase56NoLocalPortForTargets(t *testing.T) {
	t.Parallel()
	const ports = 4
	p := newPairPath(t)
	nettest.Must(t, p.farHost.Sysctl("net.ipv4.ip_local_port_range", fmt.Sprintf("40000 %d", 40000+ports-1)))
	p.start()
	p.echo()
	var running []held
	for range ports {
		running = append(running, hold(t, p.dial))
	}
	expectReset(t, p.dial, patience)
	p.near.expectLog(`msg=flow .*\bend=no-local-port .*error=.*cannot assign requested address`)
	p.far.expectLog(`msg=flow .*\bend=no-local-port ended_by=relay error="connect to 127.0.0.1:7000: cannot assign requested address"`)
	output, status := command(t, "check", "main", "--control-socket", p.near.socket())
	if status != 1 || !strings.Contains(output, "cannot assign requested address") {
		t.Errorf("check exits with %d: %s", status, output)
	}
	for _, h := range running {
		h.alive(t, "with all ports in use")
	}
	running[0].SetLinger(0) // else the far relay's end waits in TIME_WAIT, with its port
	running[0].Close()
	p.expectServed(p.dial)
	for _, h := range running[1:] {
		h.release(t)
	}
	p.expectNoFlows()
}

// Case 57: either relay, or both, are upgraded while the path is down. All flows go on,
// in the old processes, and new ones begin.
func TestCase57UpgradeInAnOutage(t *testing.T) {
	t.Parallel()
	for _, which := range []string{"near", "far", "both"} {
		t.Run(which, func(t *testing.T) {
			t.Parallel()
			p := newPairPathOver(t, wan("wan", nearAddress, farAddress, link.Settings{MTU: 1500, Delay: 40 * time.Millisecond, RateBps: 40e6}))
			p.settings = "    connect_timeout: 1m\n"
			p.start()
			p.echo()
			c := p.gather(p.dial, 8<<20)
			p.cut(bothWays...)
			nettest.Eventually(t, patience, func() bool { return !p.near.session().Up && !p.far.session().Up },
				func() string { return "nobody sees the outage" })
			c.join()
			upgraded := map[string][]*daemon{"near": {p.near}, "far": {p.far}, "both": {p.far, p.near}}[which]
			for _, d := range upgraded {
				if _, err := d.upgrade(""); err != nil {
					t.Fatal(err)
				}
			}
			p.mend()
			c.expectWhole()
			p.expectServed(p.dial)
			for _, d := range upgraded {
				d.expectExit(0)
			}
			for _, d := range []*daemon{p.near, p.far} {
				if log := d.log.String(); strings.Contains(log, "end=wan-lost") || strings.Contains(log, "end=peer-restarted") {
					t.Errorf("a flow is lost:\n%s", log)
				}
			}
		})
	}
}

// expectNamed breaks the path with fault, before a session stands and after. Each time the problem
// is named, with these words, flows are reset with the same reason, and all is well once the fault
// is over. It returns the flows that have gone on over lanes that stood.
func (p *pairOf) expectNamed(dial dialFunc, fault func(on bool), problem flow.PairProblem, words, remedy string) (running []held) {
	p.t.Helper()
	p.withoutWaitForPair = true
	p.settings = "    connect_timeout: 2s\n"
	p.startFar()
	fault(true)
	p.startNear()
	p.expectProblem(problem)
	if s := p.near.session(); !strings.Contains(s.Error, words) || !strings.Contains(s.Remedy(), remedy) {
		p.t.Errorf("the error does not name the fault: %s; %s", s.Error, s.Remedy())
	}
	expectReset(p.t, dial, patience)
	p.near.expectLog(`msg=flow .*\bend=pair-down .*` + words)
	fault(false)
	p.expectUp()
	// Flows have their lanes, new ones take those that are warm, and what cannot be made is named.
	fault(true)
	for range warmLanes {
		running = append(running, hold(p.t, dial))
	}
	expectReset(p.t, dial, patience)
	p.near.expectLog(`msg="pair: no new lane" .*` + words + `.* remedy=.*` + remedy)
	fault(false)
	p.expectServed(dial)
	return running
}

// Case 62: a firewall lets handshakes through, and drops packets with data. That has a
// name of its own, and a session stands once the firewall lets it.
func TestCase62FirewallDropsData(t *testing.T) {
	t.Parallel()
	p, _ := loopbackPair(t)
	p.forward = p.wan
	p.target = echo(t, p.target)
	running := p.expectNamed(p.dial(), func(on bool) {
		program := dropPayload
		if !on {
			program = nil
		}
		p.far.filter(program, func(s socketOf) bool { return s.info.State == tcpinfo.Listen })
	}, flow.PairPathDown, "dropped on the way", "firewall")
	for _, h := range running {
		h.alive(t, "behind a firewall")
		h.release(t)
	}
	p.expectNoFlows()
}

// TestPathDropsLargeSegments holds that the problem is path-mtu, and not that of a firewall, if the MTU
// of one direction of the path is smaller than its ends believe.
func TestPathDropsLargeSegments(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		narrow link.Direction
		words  string
	}{
		"to the far relay":   {link.AToB, "one of up to 1448 bytes does not"},
		"from the far relay": {link.BToA, "one of up to 1448 bytes from the far relay does not"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPairPath(t)
			p.echo()
			running := p.expectNamed(p.dial, func(on bool) {
				s := p.Link("wan").Settings(c.narrow)
				if s.MTU = 1500; on {
					s.MTU = 1000
				}
				nettest.Must(t, p.Link("wan").Set(c.narrow, s))
			}, flow.PairPathMTU, c.words, "mtu_probing")
			for _, h := range running {
				h.alive(t, "on a narrow path")
				h.release(t)
			}
			p.expectNoFlows()
		})
	}
}

package faults

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/carry/pair/preface"
	"longhaul/lab/link"
	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
	"longhaul/test/tcpscript"
)

// loopbackPair is a pair on the loopback that a middle box connects.
func loopbackPair(t *testing.T) (*pairOf, *middle) {
	t.Helper()
	const host = "127.79.0.1"
	p := &pairOf{t: t, listen: nettest.FreeAddress(t, host), wan: nettest.FreeAddress(t, host), target: nettest.FreeAddress(t, host)}
	m := newMiddle(t, host, p.wan)
	p.forward = m.listen
	return p, m
}

func (p *pairOf) dial() dialFunc { return dialAsEthernet(p.listen) }

// run runs a script through a pair on the loopback.
func (p *pairOf) run(script string, do map[string]func()) {
	p.t.Helper()
	runScript(p.t, p.dial(), listenAsEthernet(p.target), script, do)
}

// expectNoFlows waits until neither relay has a flow.
func (p *pairOf) expectNoFlows() {
	p.t.Helper()
	for _, d := range []*daemon{p.near, p.far} {
		nettest.Eventually(p.t, patience, func() bool { return d.status().FlowsNow == 0 },
			func() string { return fmt.Sprintf("a relay still has flows: %+v", d.status().Flows) })
	}
}

// bothDirections moves bytes both ways at once, in four parts, and has something done
// before each but the first.
const bothDirections = `
	target listens
	client connects
	target accepts
	client sends 32M
	target sends 32M
	target expects 4M
	client expects 4M
	does fault
	target expects 12M
	client expects 4M
	does fault
	client expects 8M
	target expects 1M
	does fault
	target expects 15M
	client expects 16M
	client ends
	target expects end
	target sends 1K
	target ends
	client expects 1K, end
`

// Case 36: a box on the path resets lanes, in the middle of records.
func TestCase36LaneIsReset(t *testing.T) {
	t.Parallel()
	p, m := loopbackPair(t)
	p.start()
	resets := int64(0)
	p.run(bothDirections, map[string]func(){"fault": func() {
		// The flow must have its lane, or it would lose none.
		nettest.Eventually(t, patience, func() bool { s := p.near.session(); return s.Resumes == resets && s.FlowsMoving == 1 },
			func() string { return fmt.Sprintf("after %d resets: %+v", resets, p.near.session()) })
		m.reset(preface.Lane)
		resets++
	}})
	p.near.expectLog(`msg=flow .*\bend=end `)
	p.far.expectLog(`msg=flow .*\bend=end `)
	p.expectNoFlows()
	if n := p.near.session().Resumes; n != resets {
		t.Errorf("%d resumes, want %d", n, resets)
	}
}

// Case 37: the control connection is reset, alone and with all lanes.
func TestCase37ControlConnectionIsReset(t *testing.T) {
	t.Parallel()
	p, m := loopbackPair(t)
	p.start()
	all := false
	p.run(bothDirections, map[string]func(){"fault": func() {
		m.reset(preface.Control)
		if all {
			m.reset(preface.Lane)
		}
		all = !all
	}})
	p.near.expectLog(`msg=flow .*\bend=end `)
	p.far.expectLog(`msg=flow .*\bend=end `)
	p.expectNoFlows()
}

// Case 38: the path becomes a black hole and comes back: for a busy flow, a silent
// one, and one that a client opens meanwhile.
func TestCase38BlackHole(t *testing.T) {
	t.Parallel()
	for name, directions := range map[string][]link.Direction{"both ways": bothWays, "up": {link.AToB}, "down": {link.BToA}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPairPath(t)
			p.start()
			p.run(strings.Replace(bothDirections, "does fault", "does cut\nwaits 2500ms\ndoes mend", 1), map[string]func(){
				"cut": func() { p.cut(directions...) }, "mend": p.mend, "fault": func() {},
			})
			p.near.expectLog(`msg=flow .*\bend=end `)
			p.far.expectLog(`msg=flow .*\bend=end `)
			p.echo()
			silent := hold(t, p.dial)
			p.cut(directions...)
			opened := begin(t, p.dial)
			time.Sleep(1500 * time.Millisecond) // the fault, not a condition
			p.mend()
			silent.alive(t, "after the outage")
			if err := <-opened; err != nil {
				t.Errorf("a flow that began in the outage: %v", err)
			}
			silent.release(t)
			p.expectNoFlows()
		})
	}
}

// Case 39: the outage lasts longer than resume.
func TestCase39OutageLongerThanResume(t *testing.T) {
	t.Parallel()
	p := newPairPath(t)
	p.tunnelNear = ", resume: 2s"
	p.start()
	p.run(`
		target listens
		client connects
		target accepts
		client sends 100K
		target expects 100K
		target sends 100K
		client expects 100K
		does cut
		client sends 1K
		client expects reset
		target expects reset
		does mend
	`, map[string]func(){"cut": func() { p.cut(bothWays...) }, "mend": p.mend})
	p.near.expectLog(`msg=flow .*\bend=wan-lost `)
	p.far.expectLog(`msg=flow .*\bend=wan-lost `)
	p.expectNoFlows()
	p.echo()
	p.expectServed(p.dial)
}

// expectServed tries new flows, one after the other, until one echoes.
func (p *pairOf) expectServed(dial dialFunc) {
	p.t.Helper()
	var last error
	nettest.Eventually(p.t, patience, func() bool {
		var h held
		if h, last = tryHold(p.t.Context(), dial, 5*time.Second); last == nil {
			h.Close()
		}
		return last == nil
	}, func() string { return fmt.Sprintf("no new flow is served: %v", last) })
}

// Case 40: the near site gets another address.
func TestCase40AddressChange(t *testing.T) {
	t.Parallel()
	p := newPairPath(t)
	p.start()
	p.run(strings.Replace(bothDirections, "does fault", "does renumber", 1), map[string]func(){"renumber": p.renumber, "fault": func() {}})
	p.near.expectLog(`msg=flow .*\bend=end `)
	p.expectNoFlows()
}

// Case 41: the far relay is killed, and starts again.
func TestCase41FarRelayIsKilled(t *testing.T) {
	t.Parallel()
	p, _ := loopbackPair(t)
	p.target = echo(t, p.target)
	p.start()
	flow := hold(t, p.dial())
	_ = p.far.cmd.Process.Kill()
	p.far = restartDaemon(t, nil, p.far)
	flow.SetDeadline(time.Now().Add(patience))
	if n, err := flow.Read(make([]byte, 1)); n > 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the flow of the killed relay got %d bytes, %v; want a reset", n, err)
	}
	p.near.expectLog(`msg=flow .*\bend=peer-restarted `)
	p.expectServed(p.dial())
}

// TestFarRelayStaysAway holds that flows of a far relay that nobody starts again end with a reason
// that says so, long before resume, since its host says that it is dead.
func TestFarRelayStaysAway(t *testing.T) {
	t.Parallel()
	p, _ := loopbackPair(t)
	p.forward = p.wan
	p.target = echo(t, p.target)
	p.tunnelNear = ", resume: 10m"
	p.start()
	flow := hold(t, p.dial())
	_ = p.far.cmd.Process.Kill()
	flow.SetDeadline(time.Now().Add(patience))
	if n, err := flow.Read(make([]byte, 1)); n > 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the flow of the killed relay got %d bytes, %v; want a reset", n, err)
	}
	p.near.expectLog(`msg=flow .*\bend=peer-refused .*error=".*refused all connections`)
}

// Case 42: the near relay is killed, and starts again.
func TestCase42NearRelayIsKilled(t *testing.T) {
	t.Parallel()
	p, _ := loopbackPair(t)
	p.start()
	p.run(`
		target listens
		client connects
		target accepts
		client sends 1K
		target expects 1K
		does kill
		client expects reset
		target expects reset
	`, map[string]func(){"kill": func() {
		_ = p.near.cmd.Process.Kill()
		p.near = restartDaemon(t, nil, p.near)
	}})
	p.target = echo(t, p.target)
	p.expectServed(p.dial())
}

// named is the flow of a client in a relay's status.
func (d *daemon) named(client string) flowStatus {
	d.t.Helper()
	flows := d.status().Flows
	at := slices.IndexFunc(flows, func(f flowStatus) bool { return f.Client == client })
	if at < 0 {
		d.t.Fatalf("there is no flow of %s: %+v", client, flows)
	}
	return flows[at]
}

// Case 43: either relay is upgraded while flows are open; then all connections
// break, so that the flows need new ones. A flow has one name in all of them.
func TestCase43UpgradeWithFlows(t *testing.T) {
	t.Parallel()
	for _, which := range []string{"near", "far", "both"} {
		t.Run(which, func(t *testing.T) {
			t.Parallel()
			p, m := loopbackPair(t)
			p.target = echo(t, p.target)
			p.start()
			busy := openTraffic(t, p.dial(), 4)
			silent := hold(t, p.dial())
			client := silent.LocalAddr().String()
			near, far := p.near.named(client), p.far.named(client)
			if near.Name.IsZero() || near.Name != far.Name || near.Peer == "" || far.Peer == "" {
				t.Errorf("the flow is %v with %q at the near relay, %v with %q at the far one", near.Name, near.Peer, far.Name, far.Peer)
			}
			upgraded := map[string][]*daemon{"near": {p.near}, "far": {p.far}, "both": {p.far, p.near}}[which]
			for _, d := range upgraded {
				if _, err := d.upgrade(""); err != nil {
					t.Fatal(err)
				}
				silent.alive(t, "after the upgrade")
			}
			for range 3 {
				m.reset(preface.Lane)
				m.reset(preface.Control)
				silent.alive(t, "after its connections broke")
			}
			p.expectServed(p.dial())
			busy.release(t)
			silent.release(t)
			p.near.expectLog(`msg=flow .*client=` + client + ` .*name=` + near.Name.String() + ` peer=` + near.Peer + ` .*end=end`)
			p.far.expectLog(`msg=flow .*client=` + client + ` .*name=` + near.Name.String() + ` peer=` + far.Peer + ` .*end=end`)
			for _, d := range upgraded {
				d.expectExit(0)
			}
		})
	}
}

// endInAnOutage runs a script that begins when the path is cut, with a flow that stands.
// Both relays record the same end of it.
func (p *pairPath) endInAnOutage(script, ends string, directions ...link.Direction) {
	p.t.Helper()
	p.start()
	p.run(`
		target listens
		client connects
		target accepts
		client sends 1K
		target expects 1K
		target sends 1K
		client expects 1K
		does cut
	`+script, map[string]func(){"cut": func() { p.cut(directions...) }, "mend": p.mend})
	p.near.expectLog(`msg=flow .*\bend=` + ends + ` `)
	p.far.expectLog(`msg=flow .*\bend=` + ends + ` `)
	p.expectNoFlows()
}

// Case 44: in an outage the client resets or half-closes, or the target resets.
func TestCase44EndsInAnOutage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, script, ends string }{
		{"client resets", "client resets\nwaits 1s\ndoes mend\ntarget expects reset", "client-reset"},
		{"client half-closes", "client sends 10K\nclient ends\nwaits 1s\ndoes mend\ntarget expects 10K, end\ntarget sends 1M\ntarget ends\nclient expects 1M, end", "end"},
		{"target resets", "target resets\nwaits 1s\ndoes mend\nclient expects reset", "target-reset"},
		{"target ends", "target sends 10K\ntarget ends\nwaits 1s\ndoes mend\nclient expects 10K, end\nclient sends 1K\nclient ends\ntarget expects 1K, end", "end"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			newPairPath(t).endInAnOutage(c.script, c.ends, bothWays...)
		})
	}
}

// Case 45: the target refuses.
func TestCase45TargetRefusesFarAway(t *testing.T) {
	t.Parallel()
	p, _ := loopbackPair(t)
	p.start()
	expectReset(t, p.dial(), patience)
	p.near.expectLog(`msg=flow .*\bend=target-refused ended_by=peer`)
	p.far.expectLog(`msg=flow .*\bend=target-refused ended_by=target`)
	p.expectNoFlows()
}

// Case 46: the client uploads and reads nothing, while the target answers: the
// upload goes on, and what waits for the client is bounded.
func TestCase46ClientReadsNothing(t *testing.T) {
	t.Parallel()
	p, _ := loopbackPair(t)
	p.start()
	p.run(`
		target listens
		client connects
		target accepts
		target sends 256M
		waits 1s
		client sends 64M
		target expects 64M
		client expects 256M
		client ends
		target expects end
		target ends
		client expects end
	`, nil)
	p.expectNoFlows()
}

// Case 47: the target stalls. The client waits, and other flows do not.
func TestCase47TargetStalls(t *testing.T) {
	t.Parallel()
	p, _ := loopbackPair(t)
	p.moreNear = "memory_limit: 64MiB\n"
	p.moreFar = "memory_limit: 64MiB\n"
	l, err := tcpscript.ListenOn(p.target)(t.Context())
	nettest.Must(t, err)
	stalls := make(chan struct{})
	var connections atomic.Int32
	t.Cleanup(tcpserver.Serve(l, func(c net.Conn) {
		if connections.Add(1) == 1 {
			<-stalls
		}
		_, _ = io.Copy(c, c)
	}))
	p.start()
	stalled, err := p.dial()(t.Context())
	nettest.Must(t, err)
	defer stalled.Close()
	nettest.Must(t, stalled.SetWriteDeadline(time.Now().Add(2*time.Second)))
	sent := 0
	for buf := make([]byte, 1<<20); ; {
		n, err := stalled.Write(buf)
		sent += n
		if err != nil {
			break
		}
		if sent > 512<<20 {
			t.Fatal("a client sent 512 MiB to a target that reads nothing")
		}
	}
	h := hold(t, p.dial())
	h.alive(t, "beside a stalled flow")
	for name, d := range map[string]*daemon{"near": p.near, "far": p.far} {
		if s := d.status(); s.Process.ResidentBytes > 200<<20 || s.Pairs.RetainedBytes > 17<<20 {
			t.Errorf("the %s relay has %d bytes resident, %d retained", name, s.Process.ResidentBytes, s.Pairs.RetainedBytes)
		}
	}
	close(stalls)
	h.release(t)
	reset(stalled)
	p.expectNoFlows()
}

// Case 48: replayed prefaces, garbage, and a connection that says nothing.
func TestCase48StrangersAtTheFarRelay(t *testing.T) {
	t.Parallel()
	p, m := loopbackPair(t)
	p.target = echo(t, p.target)
	p.start()
	flow := hold(t, p.dial())
	m.set(func() { m.flights = append(m.flights, []byte("GET / HTTP/1.0\r\n\r\n"), make([]byte, 4096)) })
	before := p.far.session()
	for _, flight := range m.flights {
		c := p.stranger(flight)
		// A replay meets a handshake that it cannot end; the rest is reset at once.
		if flight[0] == 'G' || len(flight) == 4096 {
			if n, err := c.Read(make([]byte, 1)); n > 0 || !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("garbage got %d bytes, %v; want a reset", n, err)
			}
		}
		c.Close()
	}
	flow.alive(t, "after strangers came")
	if after := p.far.session(); after.FlowsTotal != before.FlowsTotal+0 || after.LanesWarm > before.LanesWarm+1 {
		t.Errorf("strangers got in: %+v, before %+v", after, before)
	}
	flow.release(t)
	p.expectNoFlows()
	p.far.expectLog(`msg="connection refused" .*reason=denied`)
}

// stranger connects to the far relay and sends some bytes.
func (p *pairOf) stranger(first []byte) net.Conn {
	p.t.Helper()
	c, err := tcpscript.DialTo(p.wan)(p.t.Context())
	nettest.Must(p.t, err)
	p.t.Cleanup(func() { c.Close() })
	nettest.Must(p.t, c.SetDeadline(time.Now().Add(patience)))
	_, err = c.Write(first)
	nettest.Must(p.t, err)
	return c
}

// Case 49: the keys do not match: the far relay does not know the near one's, or
// the near relay has another for the far one.
func TestCase49UnknownKey(t *testing.T) {
	t.Parallel()
	t.Run("far does not know near", func(t *testing.T) {
		t.Parallel()
		p, _ := loopbackPair(t)
		p.pairKeys()
		nettest.Must(t, identity.New(p.farKeys).Remove("near"))
		p.withoutWaitForPair = true
		p.start()
		p.expectProblem(flow.PairKeyUnknown)
	})
	t.Run("near has another key", func(t *testing.T) {
		t.Parallel()
		p, _ := loopbackPair(t)
		p.pairKeys()
		near := identity.New(p.nearKeys)
		nettest.Must(t, near.Remove("far"))
		other, _, _, err := identity.New(t.TempDir()).Key()
		nettest.Must(t, err)
		_, err = near.Pin("far", other)
		nettest.Must(t, err)
		p.withoutWaitForPair = true
		p.start()
		p.expectProblem(flow.PairUnpaired, flow.PairKeyUnknown)
	})
	t.Run("the far tunnel is for others", func(t *testing.T) {
		t.Parallel()
		p, _ := loopbackPair(t)
		p.withoutWaitForPair = true
		p.peerName = "somebody"
		p.start()
		p.expectProblem(flow.PairDenied)
	})
	t.Run("a peer is removed", func(t *testing.T) {
		t.Parallel()
		p, _ := loopbackPair(t)
		p.target = echo(t, p.target)
		p.start()
		h := hold(t, p.dial())
		nettest.Must(t, identity.New(p.farKeys).Remove("near"))
		h.SetDeadline(time.Now().Add(patience))
		if n, err := h.Read(make([]byte, 1)); n > 0 || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a flow of a removed peer got %d bytes, %v; want a reset", n, err)
		}
		p.expectProblem(flow.PairKeyUnknown, flow.PairDenied)
	})
}

// expectProblem waits until the near relay names one of these problems. A client is
// reset, and longhaul check says the same.
func (p *pairOf) expectProblem(problems ...flow.PairProblem) {
	p.t.Helper()
	var found flow.PairProblem
	nettest.Eventually(p.t, patience, func() bool {
		found = p.near.session().Problem
		return slices.Contains(problems, found)
	}, func() string { return fmt.Sprintf("the problem is %+v, want %v", p.near.session(), problems) })
	output, status := command(p.t, "check", "main", "--control-socket", p.near.socket())
	if status != 1 || !strings.Contains(output, string(found)) {
		p.t.Errorf("check exits with %d: %s", status, output)
	}
	p.near.expectLog(`msg="pair: no session: ` + string(found) + `"`)
}

// Case 50: bytes of lanes are altered on the way. No altered byte arrives, and the
// flow goes on over another lane.
func TestCase50AlteredBytes(t *testing.T) {
	t.Parallel()
	p, m := loopbackPair(t)
	p.start()
	p.run(bothDirections, map[string]func(){"fault": func() { m.set(func() { m.alters = 1 }) }})
	p.near.expectLog(`msg=flow .*\bend=end `)
	p.expectNoFlows()
}

// Case 51: what listens in place of the far relay is no paired relay, or nothing
// does.
func TestCase51NoPairedRelayThere(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		problem flow.PairProblem
		serve   func(net.Conn)
	}{
		{"echo", flow.PairUnpaired, func(c net.Conn) { _, _ = io.Copy(c, c) }},
		{"banner", flow.PairUnpaired, func(c net.Conn) {
			_, _ = io.WriteString(c, "SSH-2.0-OpenSSH_9.9\r\n")
			_, _ = io.Copy(io.Discard, c)
		}},
		{"ends at once", flow.PairUnpaired, func(net.Conn) {}},
		{"nobody", flow.PairPathDown, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p, _ := loopbackPair(t)
			p.pairKeys()
			p.forward = nettest.FreeAddress(t, "127.79.0.1")
			if c.serve != nil {
				serve(t, p.forward, c.serve)
			}
			p.settings = "    connect_timeout: 1s\n"
			p.withoutWaitForPair = true
			p.start()
			p.expectProblem(c.problem)
			expectReset(t, p.dial(), patience)
			p.near.expectLog(`msg=flow .*\bend=pair-down `)
		})
	}
	t.Run("a relay without pairs", func(t *testing.T) {
		t.Parallel()
		p, _ := loopbackPair(t)
		p.pairKeys()
		plain := nettest.FreeAddress(t, "127.79.0.1")
		startDaemon(t, nil, unsupervised, single(plain, echo(t, "127.79.0.1:0"), ""))
		p.forward = plain
		p.withoutWaitForPair = true
		p.start()
		p.expectProblem(flow.PairUnpaired)
	})
}

// Case 52: clients and targets that reset at once, many of them.
func TestCase52EarlyResets(t *testing.T) {
	t.Parallel()
	p, _ := loopbackPair(t)
	var connections atomic.Int32
	serve(t, p.target, func(c net.Conn) {
		if connections.Add(1)%3 == 0 {
			reset(c)
			return
		}
		_, _ = io.Copy(c, c)
	})
	p.start()
	before := [2]daemonStatus{p.near.status(), p.far.status()}
	for i := range 200 {
		c, err := p.dial()(t.Context())
		if errors.Is(err, syscall.ECONNRESET) {
			continue // the far relay's refusal came before connect returned
		}
		nettest.Must(t, err)
		if i%2 == 0 {
			_, _ = c.Write([]byte("early"))
		}
		reset(c)
	}
	p.expectNoFlows()
	for i, d := range []*daemon{p.near, p.far} {
		nettest.Eventually(t, patience, func() bool {
			return d.status().Process.Descriptors <= before[i].Process.Descriptors+2*warmLanes
		}, func() string {
			return fmt.Sprintf("descriptors are left: %+v, before %+v", d.status().Process, before[i].Process)
		})
	}
	p.expectServed(p.dial())
}

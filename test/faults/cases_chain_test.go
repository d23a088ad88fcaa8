package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/integrity"
	"longhaul/internal/carry/pair/identity"
	"longhaul/lab"
	"longhaul/lab/link"
	"longhaul/test/nettest"
)

// chainPath is two pairs behind one another, each over a WAN that can be cut: near ── hub ── far. Each relay
// is a host of its own, with the client at near and the target at far.
type chainPath struct {
	*lab.Lab
	t              *testing.T
	near, hub, far *daemon
	tunnel         map[string]string // settings of a relay's tunnel, beside the usual ones
	pair           string            // of each pair beside the peer, such as ", resume: 5s"
}

var (
	hubAddress    = netip.MustParsePrefix("10.1.0.2/24")
	hubWANAddress = netip.MustParsePrefix("10.2.0.1/24")
	endAddress    = netip.MustParsePrefix("10.2.0.2/24")
)

// newChain builds the hosts, with WANs of a round trip; start follows.
func newChain(t *testing.T, rtt time.Duration) *chainPath {
	t.Helper()
	nettest.RequireSandbox(t)
	way := link.Settings{MTU: 1500, Delay: rtt / 2}
	between := func(name, near, far string, nearEnd, farEnd netip.Prefix) lab.LinkSpec {
		return lab.LinkSpec{Name: name, AB: way, BA: way,
			A: lab.Endpoint{Host: near, Device: name, Addresses: []netip.Prefix{nearEnd}},
			B: lab.Endpoint{Host: far, Device: name, Addresses: []netip.Prefix{farEnd}}}
	}
	built, err := lab.Build(lab.Topology{
		Hosts: []lab.HostSpec{
			{Name: "near", Address: nearAddress.Addr(), Sysctls: buffers},
			{Name: "hub", Address: hubAddress.Addr(), Sysctls: buffers},
			{Name: "far", Address: endAddress.Addr(), Sysctls: buffers},
		},
		Links: []lab.LinkSpec{between("wan", "near", "hub", nearAddress, hubAddress), between("wan2", "hub", "far", hubWANAddress, endAddress)},
	})
	nettest.Must(t, err)
	t.Cleanup(func() { built.Close() })
	return &chainPath{Lab: built, t: t, tunnel: map[string]string{}}
}

// start starts all relays and waits until both pairs stand.
func (c *chainPath) start() *chainPath {
	c.t.Helper()
	keys := map[string]*identity.Store{}
	for _, name := range []string{"near", "hub", "far"} {
		keys[name] = identity.New(filepath.Join(c.t.TempDir(), name))
	}
	for _, both := range [][2]string{{"near", "hub"}, {"hub", "far"}} {
		for i, name := range both {
			key, _, _, err := keys[name].Key()
			nettest.Must(c.t, err)
			_, err = keys[both[1-i]].Pin(name, key)
			nettest.Must(c.t, err)
		}
	}
	start := func(name, tunnel string) *daemon {
		return startDaemon(c.t, c.Host(name), unsupervised, fmt.Sprintf("control_socket: SOCKET\npair_keys: %s\ntunnels:\n  - name: main\n    %s\n%s",
			keys[name].Dir(), strings.ReplaceAll(tunnel, "; ", "\n    "), c.tunnel[name]))
	}
	c.far = start("far", "listen: 10.2.0.2:6000; forward: 127.0.0.1:7000; pair_from: hub")
	c.hub = start("hub", "listen: 10.1.0.2:6000; pair_from: near; forward: 10.2.0.2:6000; pair: {peer: far"+c.pair+"}")
	c.near = start("near", "listen: 127.0.0.1:9000; forward: 10.1.0.2:6000; pair: {peer: hub"+c.pair+"}")
	c.expectUp()
	return c
}

func (c *chainPath) relays() []*daemon { return []*daemon{c.near, c.hub, c.far} }

// expectUp waits until both pairs stand.
func (c *chainPath) expectUp() {
	c.t.Helper()
	up := func(d *daemon) (n int) {
		if s := d.status().Pairs; s != nil {
			for _, one := range s.Sessions {
				n += map[bool]int{true: 1}[one.Up && !one.Draining]
			}
		}
		return n
	}
	nettest.Eventually(c.t, patience, func() bool { return up(c.near) >= 1 && up(c.hub) >= 2 && up(c.far) >= 1 },
		func() string { return fmt.Sprintf("the pairs do not stand: %+v", c.hub.status().Pairs) })
}

func (c *chainPath) dial(ctx context.Context) (conn net.Conn, err error) {
	err = c.Host("near").Do(func() error {
		conn, err = dialAsEthernet("127.0.0.1:9000")(ctx)
		return err
	})
	return conn, err
}

func (c *chainPath) listenTarget(ctx context.Context) (l net.Listener, err error) {
	err = c.Host("far").Do(func() error {
		l, err = listenAsEthernet("127.0.0.1:7000")(ctx)
		return err
	})
	return l, err
}

func (c *chainPath) echo() {
	c.t.Helper()
	l, err := c.listenTarget(c.t.Context())
	nettest.Must(c.t, err)
	serveEcho(c.t, l)
}

func (c *chainPath) run(script string, do map[string]func()) {
	c.t.Helper()
	runScript(c.t, c.dial, c.listenTarget, script, do)
}

func (c *chainPath) setDown(name string, down bool) {
	c.t.Helper()
	for _, d := range bothWays {
		s := c.Link(name).Settings(d)
		s.Down = down
		nettest.Must(c.t, c.Link(name).Set(d, s))
	}
}

// expectEnd holds that all relays record the same end of a flow, and have no flow afterwards.
func (c *chainPath) expectEnd(end string) {
	c.t.Helper()
	for _, d := range c.relays() {
		d.expectLog(`msg=flow .*\bend=` + end + ` `)
	}
	c.expectNoFlows()
}

func (c *chainPath) expectNoFlows() {
	c.t.Helper()
	for _, d := range c.relays() {
		nettest.Eventually(c.t, patience, func() bool { return d.status().FlowsNow == 0 },
			func() string { return fmt.Sprintf("a relay still has flows: %+v", d.status().Flows) })
	}
}

// Case 111: flows of every kind end as their peers ended them, over WANs of three lengths.
func TestCase111ChainOfPairs(t *testing.T) {
	t.Parallel()
	const opened = "target listens\nclient connects\ntarget accepts\nclient sends 100K\ntarget expects 100K\ntarget sends 1M\nclient expects 1M\n"
	for _, rtt := range []time.Duration{0, 20 * time.Millisecond, 200 * time.Millisecond} {
		for _, e := range []struct{ name, script, ends string }{
			{"both directions", strings.ReplaceAll(bothDirections, "does fault", ""), "end"},
			{"client resets", opened + "client resets\ntarget expects reset", "client-reset"},
			{"target resets", opened + "target resets\nclient expects reset", "target-reset"},
			{"client half-closes", opened + "client ends\ntarget expects end\ntarget sends 3M\ntarget ends\nclient expects 3M, end", "end"},
			{"target half-closes", opened + "target ends\nclient expects end\nclient sends 3M\nclient ends\ntarget expects 3M, end", "end"},
			{"target refuses", "client connects\nclient expects reset", "target-refused"},
		} {
			t.Run(fmt.Sprintf("%s %v", e.name, rtt), func(t *testing.T) {
				t.Parallel()
				c := newChain(t, rtt).start()
				c.run(e.script, nil)
				c.expectEnd(e.ends)
			})
		}
	}
}

// Case 112: an outage of either WAN delays flows, and one that lasts longer than resume ends them with one
// reason everywhere.
func TestCase112OutageUnderAChain(t *testing.T) {
	t.Parallel()
	for _, wan := range []string{"wan", "wan2"} {
		t.Run(wan+" comes back", func(t *testing.T) {
			t.Parallel()
			c := newChain(t, 0).start()
			peer := map[string]string{"wan": "near", "wan2": "far"}[wan]
			c.run(bothDirections, map[string]func(){"fault": func() {
				c.setDown(wan, true)
				nettest.Eventually(t, patience, func() bool { return !c.hub.pairWith(peer).Up }, func() string { return "the pair stands in an outage" })
				c.setDown(wan, false)
			}})
			c.expectEnd("end")
		})
		t.Run(wan+" stays away", func(t *testing.T) {
			t.Parallel()
			c := newChain(t, 0)
			c.pair = ", resume: 2s"
			c.start()
			c.run("target listens\nclient connects\ntarget accepts\nclient sends 100K\ntarget expects 100K\ndoes cut\nclient sends 1K\nclient expects reset\ntarget expects reset",
				map[string]func(){"cut": func() { c.setDown(wan, true) }})
			c.expectEnd("wan-lost")
			c.setDown(wan, false)
			c.expectUp()
		})
	}
}

// pairWith is the session with a peer; of several, one that stands.
func (d *daemon) pairWith(peer string) (s flow.Session) {
	if now := d.status().Pairs; now != nil {
		for _, one := range now.Sessions {
			if one.Peer == peer && (s.Peer == "" || one.Up && !s.Up) {
				s = one
			}
		}
	}
	return s
}

// Case 113: the hub is upgraded: no flow is reset. It is drained: flows go on, and new ones are refused. It
// is killed: all flows end with a reason.
func TestCase113HubOfAChain(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"upgrade", "drain", "kill"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c := newChain(t, 0)
			c.echo()
			c.start()
			busy := openTraffic(t, c.dial, 4)
			silent := hold(t, c.dial)
			switch client := silent.LocalAddr().String(); what {
			case "upgrade":
				first := c.hub.named(client)
				for range 2 {
					if _, err := c.hub.upgrade(""); err != nil {
						t.Fatal(err)
					}
					silent.alive(t, "after the upgrade")
					hold(t, c.dial).release(t)
				}
				near, far := c.near.named(client), c.far.named(client)
				if first.Name != near.Name || first.Name != far.Name || first.Peer != "near > far" {
					t.Errorf("the flow is %v at the near relay, %v with %q at the hub, %v at the far relay", near.Name, first.Name, first.Peer, far.Name)
				}
			case "drain":
				if out, status := command(t, "drain", "main", "--control-socket", c.hub.socket()); status != 0 {
					t.Fatal(out)
				}
				expectReset(t, c.dial, patience)
				c.near.expectLog(`msg=flow .*\bend=no-hop `)
				silent.alive(t, "at a drained hub")
			case "kill":
				_ = c.hub.cmd.Process.Kill()
				silent.SetDeadline(time.Now().Add(patience))
				if n, err := silent.Read(make([]byte, 1)); n > 0 || !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("a flow of the killed hub got %d bytes, %v; want a reset", n, err)
				}
				c.near.expectLog(`msg=flow .*\bend=peer-refused `)
				return
			}
			busy.release(t)
			silent.release(t)
		})
	}
}

// Case 114: longhaul check walks the chain, and says which part fails; the near relay's status says it too.
// longhaul trace has the parts of all relays.
func TestCase114CheckOfAChain(t *testing.T) {
	t.Parallel()
	c := newChain(t, 0)
	c.echo()
	c.start()
	check := func() (r integrity.Report) {
		out, _ := command(t, "check", "main", "--json", "--control-socket", c.near.socket())
		if err := json.Unmarshal([]byte(out), &r); err != nil || len(r.Chains) != 1 {
			t.Fatalf("%v: %s", err, out)
		}
		return r
	}
	r := check()
	var hops []string
	for _, h := range r.Chains[0].Hops {
		hops = append(hops, strings.TrimSpace(h.Host+" "+h.Address.String()))
	}
	if got := strings.Join(hops, ", "); r.State != integrity.Accepts || got != "hub 10.1.0.2:6000, far 10.2.0.2:6000, 127.0.0.1:7000" {
		t.Errorf("%s, by way of %s: %s", r.State, got, r.Summary)
	}
	silent := hold(t, c.dial)
	name := c.near.named(silent.LocalAddr().String()).Name.String()
	for i, d := range c.relays() { // which asks those before it and behind it
		if r := d.trace(name); len(r.Relays) != 3 || r.Here != i || len(r.Missing) > 0 {
			t.Errorf("the trace of relay %d is %+v", i, r)
		}
	}
	silent.release(t)
	c.setDown("wan2", true)
	nettest.Eventually(t, patience, func() bool {
		u := c.near.status().tunnel("main").Usability
		return !u.Usable && strings.Contains(u.Detail(), "hub has no session") && strings.Contains(u.Detail(), "far")
	}, func() string { return fmt.Sprintf("the near relay says %+v", c.near.status().tunnel("main").Usability) })
	r = check()
	if f := r.Chains[0].Fault; f == nil || !strings.Contains(f.Text, "the pair with hub stands, but the next one behind it does not") {
		t.Errorf("in an outage behind the hub: %s, %+v", r.Summary, f)
	}
	c.setDown("wan2", false)
	c.expectUp()
}

// TestChainRefusesTargets holds that the near relay sees the far one's reason and words.
func TestChainRefusesTargets(t *testing.T) {
	t.Parallel()
	c := newChain(t, 0)
	c.tunnel["near"] = "    connect_timeout: 2s\n"
	c.start()
	conn, err := c.dial(t.Context())
	if !errors.Is(err, syscall.ECONNRESET) { // the reset may come before connect returns
		nettest.Must(t, err)
		defer conn.Close()
		if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil || err == io.EOF {
			t.Errorf("the client got %d bytes, %v", n, err)
		}
	}
	c.near.expectLog(`msg=flow .*\bend=target-refused .*ended_by=peer .*error="connect to 127.0.0.1:7000: connection refused"`)
	c.hub.expectLog(`msg=flow .*\bend=target-refused .*ended_by=peer .*error="connect to 127.0.0.1:7000: connection refused"`)
}

package faults

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/identity"
	"longhaul/test/nettest"
)

// pairHops are a near relay and the two far relays of a site, each with its own key.
type pairHops struct {
	t      *testing.T
	near   *daemon
	far    [2]*daemon
	hops   [2]string // addresses of the far relays
	listen string    // of the near relay
	target string
}

const hopsHost = "127.79.0.2"

func startPairHops(t *testing.T) *pairHops {
	t.Helper()
	p := &pairHops{t: t, listen: nettest.FreeAddress(t, hopsHost), target: nettest.FreeAddress(t, hopsHost)}
	echo(t, p.target)
	keys := t.TempDir()
	near := identity.New(filepath.Join(keys, "near"))
	nearKey, _, _, err := near.Key()
	nettest.Must(t, err)
	for i := range p.far {
		dir := filepath.Join(keys, fmt.Sprint("far", i+1))
		far := identity.New(dir)
		key, _, _, err := far.Key()
		nettest.Must(t, err)
		_, err = far.Pin("near", nearKey)
		nettest.Must(t, err)
		_, err = near.Pin(fmt.Sprint("site/b", i+1), key)
		nettest.Must(t, err)
		p.hops[i] = nettest.FreeAddress(t, hopsHost)
		p.far[i] = startDaemon(t, nil, unsupervised, fmt.Sprintf(
			"control_socket: SOCKET\npair_keys: %s\ntunnels:\n  - {name: main, listen: %q, forward: %q, pair_from: near}\n", dir, p.hops[i], p.target))
	}
	p.near = startDaemon(t, nil, unsupervised, fmt.Sprintf(
		"control_socket: SOCKET\npair_keys: %s\ntunnels:\n  - {name: main, listen: %q, forward: [%q, %q], balance: round-robin, pair: site}\n",
		filepath.Join(keys, "near"), p.listen, p.hops[0], p.hops[1]))
	p.expectHops(flow.HopUp, flow.HopUp)
	return p
}

// expectHops waits until the hops have these states.
func (p *pairHops) expectHops(want ...flow.HopState) (hops []flow.Hop) {
	p.t.Helper()
	nettest.Eventually(p.t, patience, func() bool {
		hops = p.near.status().tunnel("main").Hops
		return len(hops) == 2 && hops[0].State == want[0] && hops[1].State == want[1]
	}, func() string { return fmt.Sprintf("the hops are %+v, want %v\n%s", hops, want, p.near.log) })
	return hops
}

// dial makes a flow, and returns it once it has echoed.
func (p *pairHops) dial() net.Conn {
	p.t.Helper()
	c, err := dialAsEthernet(p.listen)(p.t.Context())
	nettest.Must(p.t, err)
	p.t.Cleanup(func() { c.Close() })
	p.expectEcho(c)
	return c
}

func (p *pairHops) expectEcho(c net.Conn) {
	p.t.Helper()
	nettest.Must(p.t, c.SetDeadline(time.Now().Add(patience)))
	_, err := c.Write([]byte("echo"))
	nettest.Must(p.t, err)
	_, err = io.ReadFull(c, make([]byte, len("echo")))
	nettest.Must(p.t, err)
}

// flows counts the flows of each far relay.
func (p *pairHops) flows() (n [2]int64) {
	for i, h := range p.near.status().tunnel("main").Hops {
		n[i] = h.FlowsNow
	}
	return n
}

// TestFarRelaysAreHops holds that the far relays of a site are hops of its near tunnel: flows are spread
// over them, check and status know each, and whatever becomes of one, new flows go to the other and its
// flows go on.
func TestFarRelaysAreHops(t *testing.T) {
	t.Parallel()
	p := startPairHops(t)
	var flows []net.Conn
	for range 6 {
		flows = append(flows, p.dial())
	}
	if n := p.flows(); n != [2]int64{3, 3} {
		t.Errorf("the hops have %v flows", n)
	}
	if hops := p.expectHops(flow.HopUp, flow.HopUp); hops[0].Host != "site/b1" || hops[1].Host != "site/b2" {
		t.Errorf("the hops are %+v", hops)
	}
	if output, status := command(t, "check", "main", "--control-socket", p.near.socket()); status != 0 || strings.Count(output, p.target) < 2 {
		t.Errorf("check: status %d, %s", status, output)
	}
	output, _ := command(t, "status", "--control-socket", p.near.socket())
	for _, hop := range p.hops {
		if !strings.Contains(output, " at "+hop+" (near): up") {
			t.Errorf("status does not have the session at %s:\n%s", hop, output)
		}
	}

	if output, status := command(t, "drain", p.hops[0], "--control-socket", p.near.socket()); status != 0 {
		t.Fatalf("drain: status %d, %s", status, output)
	}
	for range 4 {
		flows = append(flows, p.dial())
	}
	for _, c := range flows {
		p.expectEcho(c)
	}
	if n := p.flows(); n != [2]int64{3, 7} {
		t.Errorf("after one was drained the hops have %v flows", n)
	}
	if output, status := command(t, "resume", p.hops[0], "--control-socket", p.near.socket()); status != 0 {
		t.Fatalf("resume: status %d, %s", status, output)
	}

	p.far[1].signal(syscall.SIGSTOP) // new flows are served in spite of it
	for range 4 {
		flows = append(flows, p.dial())
	}
	p.far[1].signal(syscall.SIGCONT)
	for _, c := range flows {
		p.expectEcho(c)
	}

	p.far[1].signal(syscall.SIGKILL)
	for range 4 {
		flows = append(flows, p.dial())
	}
	p.expectHops(flow.HopUp, flow.HopDown)
	p.dial()

	p.far[0].signal(syscall.SIGKILL)
	<-p.far[0].exited
	p.expectHops(flow.HopDown, flow.HopDown)
	waits, err := dialAsEthernet(p.listen)(t.Context())
	nettest.Must(t, err)
	defer waits.Close()
	p.far[1] = restartDaemon(t, nil, p.far[1])
	p.expectEcho(waits)
}

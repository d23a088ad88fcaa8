//go:build linux

package main

import (
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"

	"longhaul/internal/carry/relay"
	"longhaul/internal/carry/relay/hops"
)

// resetDrain is how long a relay of these waits for a reader that a reset is to
// reach behind the bytes that came before it: a script has no more to wait for.
const resetDrain = time.Second

// chain is relays one behind the other, each with a tunnel for every family of
// every lane, and another to what refuses there. The first is next to the targets.
type chain struct {
	relays []*relay.Relay
	at     []map[string]netip.AddrPort // where each listens, by the tunnel's name
}

func tunnelName(lane int, f Family, refused bool) string {
	return fmt.Sprintf("%d %s refused=%t", lane, familyNames[f], refused)
}

func newChain(depth int, lanes []*lane) (*chain, error) {
	c := &chain{}
	for n := range depth {
		var tunnels []relay.Tunnel
		for i, l := range lanes {
			for f := range families {
				for _, refused := range []bool{false, true} {
					tunnels = append(tunnels, relay.Tunnel{
						Name:    tunnelName(i, f, refused),
						Listen:  []netip.AddrPort{netip.AddrPortFrom(bindTo[f], 0)},
						Forward: []hops.Target{c.hop(n, l, i, f, refused)},
					})
				}
			}
		}
		r, err := relay.Start(relay.Options{ResetDrainTimeout: resetDrain}, tunnels)
		if err != nil {
			c.close()
			return nil, err
		}
		at := map[string]netip.AddrPort{}
		for _, t := range r.Snapshot().Tunnels {
			at[t.Name] = t.Listen[0]
		}
		c.relays, c.at = append(c.relays, r), append(c.at, at)
	}
	return c, nil
}

func (c *chain) close() {
	for _, r := range c.relays {
		r.Close()
	}
}

// hop is where the n-th relay sends a lane's connections.
func (c *chain) hop(n int, l *lane, i int, f Family, refused bool) hops.Target {
	port := l.target(f, refused).Port()
	if n > 0 {
		port = c.at[n-1][tunnelName(i, f, refused)].Port()
	}
	return hops.Target{Host: dialTo[f].Unmap().String(), Port: port}
}

// way is the way of a script through depth relays. It is closed after the run.
func (c *chain) way(depth int, l *lane, i int, s *Script) (r route, done func(), err error) {
	r = l.direct(s)
	name := tunnelName(i, s.Family, s.Refused)
	quiet := func() bool {
		for n := depth - 1; n >= 0; n-- {
			if !idle(c.relays[n], name, c.at[n][name]) {
				return false
			}
		}
		return true
	}
	done = func() {}
	if !s.Activated {
		r.dial = netip.AddrPortFrom(dialTo[s.Family], c.at[depth-1][name].Port())
		r.quiet = twice(quiet)
		return r, done, nil
	}

	// A relay of its own, which has its listener once the client has connected.
	fd, at, err := bound(bindTo[s.Family], true)
	if err != nil {
		return r, nil, err
	}
	file := os.NewFile(uintptr(fd), "activated")
	var own *relay.Relay
	done = func() {
		if own != nil {
			own.Close()
		}
		file.Close()
	}
	r.dial = netip.AddrPortFrom(dialTo[s.Family], at.Port())
	r.takeOver = func() (err error) {
		own, err = relay.Start(relay.Options{Workers: 1, ResetDrainTimeout: resetDrain}, []relay.Tunnel{{
			Name: name, Inherited: []*os.File{file}, Forward: []hops.Target{c.hop(depth-1, l, i, s.Family, s.Refused)},
		}})
		return err
	}
	depth--
	r.quiet = twice(func() bool { return own == nil || idle(own, name, at) && quiet() })
	return r, done, nil
}

// idle says whether a tunnel has no flow, and none is about to be accepted.
func idle(r *relay.Relay, name string, at netip.AddrPort) bool {
	for _, q := range r.AcceptQueues() {
		if q.Listen == at && q.Waiting > 0 {
			return false
		}
	}
	return r.FlowsByTunnel()[name] == 0
}

// twice wants a condition to hold when it is asked for twice in a row, with time
// between for what has left one place and not reached the next.
func twice(cond func() bool) func() bool {
	held := false
	return func() bool {
		was := held
		held = cond()
		return was && held
	}
}

// prepareNetwork brings a sandbox's loopback device up, and lets its clients and
// targets use Fast Open.
func prepareNetwork() error {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("bring the loopback device up: %w", err)
	}
	return os.WriteFile("/proc/sys/net/ipv4/tcp_fastopen", []byte(fastOpenBoth), 0)
}

// fastOpenBoth is the value of net.ipv4.tcp_fastopen for clients and servers.
const fastOpenBoth = "3"

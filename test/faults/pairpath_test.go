package faults

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"longhaul/lab"
	"longhaul/lab/link"
	"longhaul/test/nettest"
	"longhaul/test/tcpscript"
)

// pairPath is two paired relays, each a host of its own, with a WAN between them
// that can be cut. The client is on the near relay's host, the target on the far
// one's.
type pairPath struct {
	*lab.Lab
	*pairOf
}

// The path's addresses. The near host may have the second in place of the first.
var (
	nearAddress      = netip.MustParsePrefix("10.1.0.1/24")
	otherNearAddress = netip.MustParsePrefix("10.1.0.3/24")
	farAddress       = netip.MustParsePrefix("10.1.0.2/24")
)

// newPairPath builds the hosts; start of the pair follows.
func newPairPath(t *testing.T) *pairPath {
	t.Helper()
	return newPairPathOver(t, wan("wan", nearAddress, farAddress, link.Settings{MTU: 1500}))
}

// wan is a link between both hosts.
func wan(name string, near, far netip.Prefix, both link.Settings) lab.LinkSpec {
	return lab.LinkSpec{
		Name: name,
		A:    lab.Endpoint{Host: "near", Device: name, Addresses: []netip.Prefix{near}},
		B:    lab.Endpoint{Host: "far", Device: name, Addresses: []netip.Prefix{far}},
		AB:   both, BA: both,
	}
}

// newPairPathOver is newPairPath over other links than a perfect one.
func newPairPathOver(t *testing.T, links ...lab.LinkSpec) *pairPath {
	t.Helper()
	nettest.RequireSandbox(t)
	built, err := lab.Build(lab.Topology{
		Hosts: []lab.HostSpec{
			{Name: "near", Address: nearAddress.Addr(), Sysctls: buffers},
			{Name: "far", Address: farAddress.Addr(), Sysctls: buffers},
		},
		Links: links,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { built.Close() })
	return &pairPath{built, &pairOf{
		t: t, nearHost: built.Host("near"), farHost: built.Host("far"),
		listen: "127.0.0.1:9000", wan: netip.AddrPortFrom(farAddress.Addr(), 6000).String(), target: "127.0.0.1:7000",
	}}
}

// cut makes directions of the WAN a black hole.
func (p *pairPath) cut(directions ...link.Direction) { p.setDown("wan", true, directions) }

// mend undoes cut.
func (p *pairPath) mend() { p.setDown("wan", false, bothWays) }

var bothWays = []link.Direction{link.AToB, link.BToA}

func (p *pairPath) setDown(name string, down bool, directions []link.Direction) {
	p.t.Helper()
	for _, d := range directions {
		s := p.Link(name).Settings(d)
		s.Down = down
		nettest.Must(p.t, p.Link(name).Set(d, s))
	}
}

func (p *pairPath) dial(ctx context.Context) (c net.Conn, err error) {
	err = p.nearHost.Do(func() error {
		c, err = dialAsEthernet(p.listen)(ctx)
		return err
	})
	return c, err
}

func (p *pairPath) listenTarget(ctx context.Context) (l net.Listener, err error) {
	err = p.farHost.Do(func() error {
		l, err = listenAsEthernet(p.target)(ctx)
		return err
	})
	return l, err
}

// echo starts a target that echoes.
func (p *pairPath) echo() {
	p.t.Helper()
	l, err := p.listenTarget(p.t.Context())
	nettest.Must(p.t, err)
	serveEcho(p.t, l)
}

// run runs a script between client and target, with functions for its "does".
func (p *pairPath) run(script string, do map[string]func()) {
	p.t.Helper()
	runScript(p.t, p.dial, p.listenTarget, script, do)
}

func runScript(t *testing.T, dial dialFunc, listen func(context.Context) (net.Listener, error), script string, do map[string]func()) {
	t.Helper()
	env := tcpscript.Env{Dial: dial, Listen: listen, Do: map[string]func() error{}, Within: patience}
	for name, f := range do {
		env.Do[name] = func() error { f(); return nil }
	}
	if err := tcpscript.MustParse(script).Run(t.Context(), env); err != nil {
		t.Fatal(err)
	}
}

// renumber gives the near host another address in place of its own, as a site does
// that its provider renumbers.
func (p *pairPath) renumber() {
	p.t.Helper()
	nettest.Must(p.t, p.nearHost.Do(func() error {
		device, err := netlink.LinkByName("wan")
		if err != nil {
			return err
		}
		old, err := netlink.ParseAddr(nearAddress.String())
		if err != nil {
			return err
		}
		return netlink.AddrDel(device, old)
	}))
	nettest.Must(p.t, p.nearHost.Address("wan", otherNearAddress))
}

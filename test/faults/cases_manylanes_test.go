package faults

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"longhaul/internal/sys/tcpinfo"
	"longhaul/lab/hosts"
	"longhaul/lab/link"
	labwan "longhaul/lab/wan"
	"longhaul/test/nettest"
)

const manyLanes = ", lanes: 4"

// expectLanes waits until the flows have so many lanes together.
func (p *pairOf) expectLanes(n int) {
	p.t.Helper()
	nettest.Eventually(p.t, patience, func() bool { return p.near.session().LanesBusy >= n },
		func() string { return fmt.Sprintf("want %d busy lanes: %+v", n, p.near.session()) })
}

// Case 96: one of a flow's many lanes stalls: nothing of it gets through any more, in neither
// direction. The flow goes on over the others, and nothing is lost.
func TestCase96LaneStalls(t *testing.T) {
	t.Parallel()
	p := newPairPathOver(t, wan("wan", nearAddress, farAddress, link.Settings{MTU: 1500, Delay: 10 * time.Millisecond, RateBps: 80e6}))
	for _, h := range []*hosts.Host{p.nearHost, p.farHost} { // which drop packets without a word
		nettest.Must(t, h.Sysctl("net.ipv4.ip_forward", "1"))
	}
	p.tunnelNear = manyLanes
	p.start()
	p.echo()
	c := p.gather(p.dial, 48<<20)
	p.expectLanes(4)
	path := &labwan.Path{Near: p.nearHost, Far: p.farHost, Link: p.Link("wan"), Serves: func(port uint16) bool { return port == 6000 }}
	for range 2 {
		busy := uint64(0)
		var stalls labwan.Connection
		_, err := path.Connections(func(one *tcpinfo.Connection) bool {
			if one.Info.Unacked > 0 && one.Info.BytesAcked > busy {
				busy, stalls = one.Info.BytesAcked, labwan.Connection{Near: one.Local, Far: one.Remote}
			}
			return false
		})
		nettest.Must(t, err)
		if busy == 0 {
			t.Fatal("no lane carries bytes")
		}
		nettest.Must(t, path.Forget(stalls))
		c.expectMore(4 << 20)
		c.silent.alive(t, "beside a lane that stalls")
	}
	c.expectWhole()
	p.expectNoFlows()
}

// Case 97: a group of links keeps each connection on one of them by a hash, and one of the links
// dies. The lanes that were there move to the others.
func TestCase97HashedLinkDies(t *testing.T) {
	t.Parallel()
	p := bothProviders(t)
	near, far := netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("10.9.0.2")
	var toNear, toFar []netip.Addr
	for _, x := range providers {
		toNear, toFar = append(toNear, x.near.Addr()), append(toFar, x.far.Addr())
	}
	for _, end := range []struct {
		host     *hosts.Host
		own      netip.Addr
		other    netip.Addr
		opposite []netip.Addr
	}{{p.nearHost, near, far, toFar}, {p.farHost, far, near, toNear}} {
		nettest.Must(t, end.host.Sysctl("net.ipv4.fib_multipath_hash_policy", "1"))
		nettest.Must(t, end.host.Address("lo", netip.PrefixFrom(end.own, 32)))
		nettest.Must(t, end.host.Route(hosts.Route{To: netip.PrefixFrom(end.other, 32), Group: end.opposite, From: end.own}))
	}
	p.forward = netip.AddrPortFrom(far, 6000).String()
	p.tunnelNear = manyLanes
	p.start()
	p.echo()
	c := p.gather(p.dial, 32<<20)
	p.expectLanes(4)
	for _, x := range providers {
		p.setDown(x.name, true, bothWays)
		c.expectMore(2 << 20)
		c.silent.alive(t, "after a link died")
		p.setDown(x.name, false, bothWays)
	}
	c.expectWhole()
	p.expectNoFlows()
}

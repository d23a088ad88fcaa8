package faults

import (
	"fmt"
	"net/netip"
	"strings"
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

// stallable is a pair whose path may drop the packets of one lane, in both directions.
func stallable(t *testing.T, lanes int) (*pairPath, *labwan.Path) {
	t.Helper()
	p := newPairPathOver(t, wan("wan", nearAddress, farAddress, link.Settings{MTU: 1500, Delay: 10 * time.Millisecond, RateBps: 80e6}))
	for _, h := range []*hosts.Host{p.nearHost, p.farHost} { // which drop packets without a word
		nettest.Must(t, h.Sysctl("net.ipv4.ip_forward", "1"))
	}
	p.tunnelNear = fmt.Sprintf(", lanes: %d", lanes)
	p.start()
	return p, &labwan.Path{Near: p.nearHost, Far: p.farHost, Link: p.Link("wan"), Serves: func(port uint16) bool { return port == 6000 }}
}

// received is how many bytes the near host has got on each connection that stands.
func received(t *testing.T, path *labwan.Path) map[labwan.Connection]uint64 {
	t.Helper()
	all := map[labwan.Connection]uint64{}
	_, err := path.Connections(func(one *tcpinfo.Connection) bool {
		if one.Info.State == tcpinfo.Established {
			all[labwan.Connection{Near: one.Local, Far: one.Remote}] = one.Info.BytesReceived
		}
		return false
	})
	nettest.Must(t, err)
	return all
}

// stallBusiest stalls the lane that has brought most since a look, and returns it.
func stallBusiest(t *testing.T, path *labwan.Path, before map[labwan.Connection]uint64) (busiest labwan.Connection) {
	t.Helper()
	most := uint64(0)
	for c, n := range received(t, path) {
		if grown := n - before[c]; grown > most {
			busiest, most = c, grown
		}
	}
	if most == 0 {
		t.Fatal("no lane carries bytes")
	}
	nettest.Must(t, path.Forget(busiest))
	return busiest
}

// expectReplaced waits until a lane is gone.
func expectReplaced(t *testing.T, path *labwan.Path, lane labwan.Connection) {
	t.Helper()
	nettest.Eventually(t, patience, func() bool {
		_, stands := received(t, path)[lane]
		return !stands
	}, func() string { return fmt.Sprintf("the lane %v still stands", lane) })
}

// Case 96: a lane stalls in the middle of a transfer: nothing of it gets through any more, in neither
// direction. Another one takes its place, and nothing is lost.
func TestCase96LaneStalls(t *testing.T) {
	t.Parallel()
	for _, lanes := range []int{1, 2, 4} {
		t.Run(fmt.Sprintf("lanes: %d", lanes), func(t *testing.T) {
			t.Parallel()
			p, path := stallable(t, lanes)
			p.echo()
			c := p.gather(p.dial, 32<<20)
			p.expectLanes(lanes)
			for range 2 {
				before := received(t, path)
				c.expectMore(1 << 20)
				lane := stallBusiest(t, path, before)
				c.expectMore(4 << 20)
				c.silent.alive(t, "beside a lane that stalls")
				expectReplaced(t, path, lane)
			}
			c.expectWhole()
			p.expectNoFlows()
		})
	}
}

// lastBytes sends from one end to the other, and has a fault happen before the last bytes.
const lastBytes = `
	target listens
	client connects
	target accepts
	client sends 2M
	target expects 2M
	does look
	target sends 8K
	client expects 8K
	does stall
	FROM sends 8K
	FROM ends
	TO expects 8K, end
	TO sends 1K
	TO ends
	FROM expects 1K, end
`

// Case 96, at the end of a transfer: no later bytes show what is missing.
func TestCase96LaneStallsAtTheEnd(t *testing.T) {
	t.Parallel()
	for _, lanes := range []int{1, 2} {
		for _, ends := range []*strings.Replacer{strings.NewReplacer("FROM", "client", "TO", "target"), strings.NewReplacer("FROM", "target", "TO", "client")} {
			t.Run(fmt.Sprintf("lanes: %d, from the %s", lanes, ends.Replace("FROM")), func(t *testing.T) {
				t.Parallel()
				p, path := stallable(t, lanes)
				var before map[labwan.Connection]uint64
				var lane labwan.Connection
				p.run(ends.Replace(lastBytes), map[string]func(){
					"look": func() {
						p.expectLanes(lanes)
						before = received(t, path)
					},
					"stall": func() { lane = stallBusiest(t, path, before) },
				})
				expectReplaced(t, path, lane)
				p.expectNoFlows()
			})
		}
	}
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

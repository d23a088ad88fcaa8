package faults

import (
	"fmt"
	"net/netip"
	"testing"

	"longhaul/internal/carry/flow"
	"longhaul/test/nettest"
)

// severalPaths is a pair with a path over each of two providers.
func severalPaths(t *testing.T, second string) *pairPath {
	t.Helper()
	p := bothProviders(t)
	p.forward = netip.AddrPortFrom(providers[0].far.Addr(), 6000).String()
	p.tunnelNear = fmt.Sprintf(", paths: [{from: %v}, {from: %v, to: '%v:6000'%s}]",
		providers[0].near.Addr(), providers[1].near.Addr(), providers[1].far.Addr(), second)
	p.start()
	p.echo()
	return p
}

// expectPaths waits until both paths are as they should be.
func (p *pairPath) expectPaths(what string, ok func(first, second flow.Path) bool) {
	p.t.Helper()
	nettest.Eventually(p.t, patience, func() bool {
		paths := p.near.session().Paths
		return len(paths) == 2 && ok(paths[0], paths[1])
	}, func() string { return fmt.Sprintf("want %s: %+v", what, p.near.session()) })
}

func bothCarry(a, b flow.Path) bool { return a.Busy > 0 && b.Busy > 0 }

// Case 92: one of two paths dies, and later the other one. Flows go on over what is left.
func TestCase92PathDies(t *testing.T) {
	t.Parallel()
	p := severalPaths(t, "")
	c := p.gather(p.dial, 32<<20)
	for i, x := range providers {
		p.expectPaths("flows on both paths", bothCarry)
		p.setDown(x.name, true, bothWays)
		p.expectPaths("one path that is down", func(a, b flow.Path) bool {
			lost, other := a, b
			if i == 1 {
				lost, other = b, a
			}
			return !lost.Up && lost.Error != "" && lost.Busy == 0 && other.Up && other.Control && other.Busy > 0
		})
		if i == 0 {
			c.join()
		}
		c.expectMore(1 << 20)
		c.silent.alive(t, "without one of the paths")
		p.setDown(x.name, false, bothWays)
	}
	c.expectWhole()
	p.expectNoFlows()
}

// Case 93: a path that was dead comes back. It is used again.
func TestCase93PathComesBack(t *testing.T) {
	t.Parallel()
	p := severalPaths(t, "")
	c := p.gather(p.dial, 48<<20)
	p.expectPaths("flows on both paths", bothCarry)
	p.setDown(providers[1].name, true, bothWays)
	p.expectPaths("one path that is down", func(a, b flow.Path) bool { return a.Up && !b.Up })
	before := p.near.session().Paths[1].Sent
	p.setDown(providers[1].name, false, bothWays)
	p.expectPaths("bytes on the path that is back", func(a, b flow.Path) bool {
		return a.Up && b.Up && b.Busy > 0 && b.Sent > before+256<<10
	})
	c.expectWhole()
	p.expectNoFlows()
}

// Case 94: the ordinary path dies while another one stands by. That takes over, and gives back.
func TestCase94StandbyTakesOver(t *testing.T) {
	t.Parallel()
	p := severalPaths(t, ", standby: true")
	c := p.gather(p.dial, 32<<20)
	first := func(a, b flow.Path) bool { return a.Busy > 0 && a.Control && b.Up && !b.Active && b.Lanes == 0 }
	p.expectPaths("a path that stands by", first)
	p.setDown(providers[0].name, true, bothWays)
	p.expectPaths("flows on the path that stood by", func(a, b flow.Path) bool { return !a.Up && b.Active && b.Control && b.Busy > 0 })
	c.expectMore(1 << 20)
	c.silent.alive(t, "over the path that stood by")
	p.setDown(providers[0].name, false, bothWays)
	p.expectPaths("a path that stands by again", first)
	c.expectWhole()
	p.expectNoFlows()
}

// Case 103: this host loses its address on one path. Nothing that the kernel has sent lacks an
// acknowledgement: it cannot send at all.
func TestCase103AddressOfPathIsTaken(t *testing.T) {
	t.Parallel()
	p := severalPaths(t, "")
	c := p.gather(p.dial, 16<<20)
	p.expectPaths("flows on both paths", bothCarry)
	x := providers[0]
	nettest.Must(t, p.nearHost.DropAddress(x.name, x.near))
	p.expectPaths("one path that is down", func(a, b flow.Path) bool {
		return !a.Up && a.Error != "" && a.Busy == 0 && b.Up && b.Control && b.Busy > 0
	})
	c.join()
	c.expectMore(1 << 20)
	c.silent.alive(t, "without the address of a path")
	nettest.Must(t, p.nearHost.Address(x.name, x.near))
	p.expectPaths("flows on both paths again", bothCarry)
	c.expectWhole()
	p.expectNoFlows()
}

package daemon

import (
	"context"
	"net"
	"net/netip"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/internal/carry/relay"
	"longhaul/internal/carry/relay/names"
	"longhaul/internal/run/config"
)

// nearTunnel is a tunnel whose flows go to paired relays.
type nearTunnel struct {
	hops []nearHop // as in forward
	peer string    // a host, or a site
	// original: the far relay dials what each client dialed.
	original bool
}

// nearHop is one of the far relays of a near tunnel.
type nearHop struct {
	name    string // as configured
	link    *pair.Link
	options pair.LinkOptions // to put into force
}

// near returns the near tunnel of a configuration. A hop with the same peer as before keeps its link.
// The caller holds mu.
func (p *pairs) near(c *config.Tunnel, transport relay.Transport) *nearTunnel {
	o := pair.LinkOptions{
		Tunnel:   c.Name,
		Peer:     c.Pair.Peer,
		Paths:    pathsOf(c.Pair.Paths),
		LanesTo:  c.Pair.LanesTo,
		Changed:  p.relay.HopsChanged,
		Lanes:    c.Pair.Lanes,
		Warm:     c.Pair.Warm,
		Resume:   c.Pair.Resume,
		Origin:   p.host + " " + c.Entrance(),
		NoResume: c.Pair.Resume == 0,
		Clear:    c.Pair.Encrypt == config.EncryptOff,
		Compress: c.Pair.Compress == config.CompressAuto,
	}
	if len(c.Listen) > 0 {
		o.Ports = c.Listen[0].Ports.Len()
	}
	if transport != nil {
		o.Prepare = func(fd int) error { return transport.Prepare(fd, true) }
		o.Established = func(fd int) {
			side, _ := transport.Established(fd, true)
			_ = transport.Lasting(fd, side) // Established has reported what the kernel refuses
		}
	}
	near := &nearTunnel{peer: o.Peer, original: c.Intercept.Enabled()}
	for i := range c.Forward {
		hop := nearHop{name: c.Forward[i].String(), options: o}
		hop.options.Addresses, hop.options.Place = addressesOf(c.Forward[i]), i
		if c.SeveralHops() {
			hop.options.Hop = hop.name
		}
		if hop.link = p.keptLink(c, hop.name); hop.link == nil {
			if was := p.before(c, hop.name); was != nil {
				hop.options.Stood, hop.options.Away, hop.options.Host = true, was.Away, was.Host
			}
			hop.link = p.node.Link(hop.options)
		}
		near.hops = append(near.hops, hop)
	}
	return near
}

// keptLink is the link that a hop has now; nil: it needs another. The only hop of a tunnel keeps its link
// when its address changes, but not one of a service: there another name is another host.
func (p *pairs) keptLink(c *config.Tunnel, hop string) *pair.Link {
	was := p.current.near[c.Name]
	if was == nil || was.peer != c.Pair.Peer {
		return nil
	}
	for _, h := range was.hops {
		if h.name == hop || len(was.hops) == 1 && len(c.Forward) == 1 && !c.SeveralHops() {
			return h.link
		}
	}
	return nil
}

// before is what the process before this one knew of the pair of a hop; nil: it has not stood there.
func (p *pairs) before(c *config.Tunnel, hop string) *linkMemory {
	for i := range p.stood {
		if m := &p.stood[i]; m.Tunnel == c.Name && m.Peer == c.Pair.Peer && (m.Hop == hop || m.Hop == "" || len(c.Forward) == 1) {
			return m
		}
	}
	return nil
}

// links lists the links of all hops.
func (t *tunnelPairs) links() map[*pair.Link]bool {
	all := map[*pair.Link]bool{}
	for _, near := range t.near {
		for _, h := range near.hops {
			all[h.link] = true
		}
	}
	return all
}

// carrier is a link whose errors are in words for users.
type carrier struct{ *pair.Link }

// Taking implements flow.Carrier.
func (c carrier) Taking() flow.Taking {
	t := c.Link.Taking()
	t.Error = inWords(t.Error)
	return t
}

func pathsOf(paths []config.Path) (all []pair.PathOptions) {
	for _, p := range paths {
		o := pair.PathOptions{Name: p.String(), Local: p.From, Interface: p.Interface, Standby: p.Standby}
		if p.To != nil {
			o.Addresses = addressesOf(*p.To)
		}
		all = append(all, o)
	}
	return all
}

// addressesOf resolves the far relay's address.
func addressesOf(f config.Forward) func(context.Context) ([]netip.AddrPort, error) {
	port := f.Ports.First
	if a, err := netip.ParseAddr(f.Host); err == nil {
		one := []netip.AddrPort{netip.AddrPortFrom(a.Unmap(), port)}
		return func(context.Context) ([]netip.AddrPort, error) { return one, nil }
	}
	return func(ctx context.Context) ([]netip.AddrPort, error) {
		found, err := names.Lookup(ctx, net.DefaultResolver, f.Host)
		if err != nil {
			return nil, err
		}
		all := make([]netip.AddrPort, len(found))
		for i, a := range found {
			all[i] = netip.AddrPortFrom(a, port)
		}
		return all, nil
	}
}

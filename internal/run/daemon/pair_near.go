package daemon

import (
	"context"
	"net"
	"net/netip"

	"longhaul/internal/carry/pair"
	"longhaul/internal/carry/relay"
	"longhaul/internal/carry/relay/names"
	"longhaul/internal/run/config"
)

// nearTunnel is a tunnel whose flows go to a paired relay.
type nearTunnel struct {
	link    *pair.Link
	options pair.LinkOptions // to put into force
	peer    string
	// original: the far relay dials what each client dialed.
	original bool
}

// near returns the near tunnel of a configuration. One with the same peer as
// before keeps its link. The caller holds mu.
func (p *pairs) near(c *config.Tunnel, transport relay.Transport) *nearTunnel {
	o := pair.LinkOptions{
		Tunnel:    c.Name,
		Peer:      c.Pair.Peer,
		Addresses: addressesOf(c.Forward[0]),
		Paths:     pathsOf(c.Pair.Paths),
		Lanes:     c.Pair.Lanes,
		Warm:      c.Pair.Warm,
		Resume:    c.Pair.Resume,
		Origin:    p.host + " " + c.Entrance(),
		NoResume:  c.Pair.Resume == 0,
		Clear:     c.Pair.Encrypt == config.EncryptOff,
		Compress:  c.Pair.Compress == config.CompressAuto,
	}
	if transport != nil {
		o.Prepare = func(fd int) error { return transport.Prepare(fd, true) }
		o.Established = func(fd int) {
			side, _ := transport.Established(fd, true)
			_ = transport.Lasting(fd, side) // Established has reported what the kernel refuses
		}
	}
	if was := p.current.near[c.Name]; was != nil && was.peer == o.Peer {
		return &nearTunnel{was.link, o, o.Peer, c.Intercept.Enabled()}
	}
	for _, m := range p.stood {
		if m.Tunnel == c.Name && m.Peer == o.Peer {
			o.Stood, o.Away = true, m.Away
		}
	}
	return &nearTunnel{p.node.Link(o), o, o.Peer, c.Intercept.Enabled()}
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

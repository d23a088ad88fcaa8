package config

import (
	"net/netip"
	"slices"
	"strings"

	"longhaul/internal/words/portrange"
)

// placedTunnel is a tunnel with the node of each hop.
type placedTunnel struct {
	*Tunnel
	forwards []*node
}

// port is one port of a tunnel: ports map one to one from listen to forward. A pair leads from a
// port of the near tunnel to the same of the far one.
type port struct{ tunnel, index int }

// step leads from a port of a tunnel through one of its hops to a port.
type step struct {
	from port
	hop  int
	to   port
}

// checkLoops finds hops through which a flow comes back to the port that accepted it.
// Each would use up the descriptors of the relay.
func (d *decoder) checkLoops(all []Tunnel) {
	var tunnels []placedTunnel
	for i := range all {
		tunnels = append(tunnels, placedTunnel{&all[i], d.forwardNodes[i]})
	}
	hops := d.hopsHere(tunnels)
	listens := listensByPort(tunnels, hops)
	steps := map[port][]step{}
	for _, h := range hops {
		t := tunnels[h.tunnel]
		for index := range t.portCount() {
			number := h.ports.First + uint16(index)
			if t.Pair.Paired() {
				number = h.ports.First
			}
			for _, to := range listens.reached(h.addrs, number) {
				from := port{h.tunnel, index}
				if t.Pair.Paired() && tunnels[to.tunnel].PairFrom.Paired() {
					to.index = index
				}
				steps[from] = append(steps[from], step{from, h.index, to})
			}
		}
	}
	reported := map[*node]bool{}
	state := map[port]int{} // 0 new, 1 on the path, 2 done
	for i, t := range tunnels {
		for index := range t.portCount() {
			d.followLoops(tunnels, steps, state, nil, port{i, index}, reported)
		}
	}
}

// followLoops follows the steps from a port. path has the steps that lead to it.
func (d *decoder) followLoops(tunnels []placedTunnel, steps map[port][]step, state map[port]int, path []step, at port, reported map[*node]bool) {
	const onPath, done = 1, 2
	if state[at] != 0 || len(steps[at]) == 0 {
		return
	}
	state[at] = onPath
	for _, s := range steps[at] {
		if state[s.to] != onPath {
			d.followLoops(tunnels, steps, state, append(path, s), s.to, reported)
			continue
		}
		loop := append(slices.Clone(path), s)
		for loop[0].from != s.to {
			loop = loop[1:]
		}
		if hop := tunnels[at.tunnel].forwards[s.hop]; !reported[hop] {
			reported[hop] = true
			d.reportLoop(tunnels, loop)
		}
	}
	state[at] = done
}

// reportLoop reports the last step of a loop.
func (d *decoder) reportLoop(tunnels []placedTunnel, loop []step) {
	last := loop[len(loop)-1]
	t := tunnels[last.from.tunnel]
	at, f := t.forwards[last.hop], t.Forward[last.hop]
	if len(loop) == 1 {
		d.errorf(at, "forward to the next hop, not to the tunnel's own address", "%s leads back into this tunnel", f)
		return
	}
	var names []string
	for _, s := range loop {
		names = append(names, tunnels[s.from.tunnel].Name)
	}
	names = append(names, names[0])
	d.errorf(at, "let one of these tunnels forward to another host",
		"%s leads back in a loop: %s", f, strings.Join(names, " -> "))
}

// portCount is the number of ports for which the tunnel takes flows: a far one has them in forward.
// To an intercepting tunnel no port leads, so that it stands for one.
func (t Tunnel) portCount() int {
	switch {
	case t.PairFrom.Paired() && len(t.Forward) > 0:
		return t.Forward[0].Ports.Len()
	case len(t.Listen) > 0:
		return t.Listen[0].Ports.Len()
	}
	return 1
}

// portListens are the listening addresses of tunnels by port, each with its tunnel, in their order.
type portListens map[uint16][]tunnelListen

type tunnelListen struct {
	Listen
	tunnel int
}

// hopHere is a hop of a tunnel that leads to this host.
type hopHere struct {
	tunnel, index int
	addrs         []netip.Addr // this host's
	ports         portrange.Range
}

func (d *decoder) hopsHere(tunnels []placedTunnel) (all []hopHere) {
	own := d.ownAddresses(tunnels)
	for i, t := range tunnels {
		for index, f := range t.Forward {
			h := hopHere{tunnel: i, index: index, ports: f.Ports}
			for _, a := range d.addressesOf(f.Host) {
				if a.IsLoopback() || own[a] {
					h.addrs = append(h.addrs, a)
				}
			}
			if len(h.addrs) > 0 {
				all = append(all, h)
			}
		}
	}
	return all
}

// listensByPort has the ports to which these hops lead, and no others: a file may have tens of thousands.
func listensByPort(tunnels []placedTunnel, hops []hopHere) portListens {
	var reached [1 << 16]bool
	for _, h := range hops {
		for number := int(h.ports.First); number <= int(h.ports.Last); number++ {
			reached[number] = true
		}
	}
	all := portListens{}
	for i, t := range tunnels {
		for _, l := range t.Listen {
			for number := int(l.Ports.First); number <= int(l.Ports.Last); number++ {
				if reached[number] {
					all[uint16(number)] = append(all[uint16(number)], tunnelListen{l, i})
				}
			}
		}
	}
	return all
}

// reached lists the ports of tunnels at which a connection to a port of one of these
// addresses of this host arrives.
func (p portListens) reached(addrs []netip.Addr, number uint16) (all []port) {
	for _, l := range p[number] {
		if n := len(all); n > 0 && all[n-1].tunnel == l.tunnel || !slices.ContainsFunc(addrs, func(a netip.Addr) bool {
			return a == l.Addr || covers(l.Addr, a)
		}) {
			continue
		}
		all = append(all, port{l.tunnel, int(number - l.Ports.First)})
	}
	return all
}

// addressesOf returns the addresses of a hop's host that the file tells: a literal
// one, localhost, or a name on which a tunnel listens. A relay resolves other names
// for each flow.
func (d *decoder) addressesOf(host string) []netip.Addr {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a.Unmap()}
	}
	name := hostName(host)
	if name == "localhost" {
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	}
	return d.names[name]
}

// keepName keeps the addresses of a name in listen.
func (d *decoder) keepName(address string, found []Listen) {
	host, _, bad := splitAddress(address)
	if bad != nil || host == "" {
		return
	}
	if d.names == nil {
		d.names = map[string][]netip.Addr{}
	}
	for _, l := range found {
		d.names[hostName(host)] = append(d.names[hostName(host)], l.Addr)
	}
}

// ownAddresses are the addresses of this host: of its interfaces, and those on which
// tunnels listen.
func (d *decoder) ownAddresses(tunnels []placedTunnel) map[netip.Addr]bool {
	own := map[netip.Addr]bool{}
	for _, t := range tunnels {
		for _, l := range t.Listen {
			own[l.Addr] = true
		}
	}
	if d.loader.OwnAddresses != nil {
		for _, a := range d.loader.OwnAddresses() {
			own[a.Unmap()] = true
		}
	}
	return own
}

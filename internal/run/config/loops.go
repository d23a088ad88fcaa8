package config

import (
	"net/netip"
	"slices"
	"strings"
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
	own, listens := d.ownAddresses(tunnels), listensByPort(tunnels)
	steps := map[port][]step{}
	for i, t := range tunnels {
		for hop, f := range t.Forward {
			for index := range t.portCount() {
				number := f.Ports.First + uint16(index)
				if t.Pair.Paired() {
					number = f.Ports.First
				}
				for _, to := range listens.reached(d.addressesOf(f.Host), number, own) {
					from := port{i, index}
					if t.Pair.Paired() && tunnels[to.tunnel].PairFrom.Paired() {
						to.index = index
					}
					steps[from] = append(steps[from], step{from, hop, to})
				}
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
	if state[at] != 0 {
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

func listensByPort(tunnels []placedTunnel) portListens {
	all := portListens{}
	for i, t := range tunnels {
		for _, l := range t.Listen {
			for number := int(l.Ports.First); number <= int(l.Ports.Last); number++ {
				all[uint16(number)] = append(all[uint16(number)], tunnelListen{l, i})
			}
		}
	}
	return all
}

// reached lists the ports of tunnels at which a connection to a port of one of these
// addresses of the network arrives.
func (p portListens) reached(addrs []netip.Addr, number uint16, own map[netip.Addr]bool) (all []port) {
	for _, l := range p[number] {
		if n := len(all); n > 0 && all[n-1].tunnel == l.tunnel || !slices.ContainsFunc(addrs, func(a netip.Addr) bool {
			return a == l.Addr || covers(l.Addr, a) && (a.IsLoopback() || own[a])
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

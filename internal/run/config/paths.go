package config

import (
	"fmt"
	"net/netip"
	"slices"
)

// Path is a way from this host to the far relay of a pair.
type Path struct {
	From      netip.Addr `json:",omitzero"`  // local address that connections are bound to; invalid: any
	Interface string     `json:",omitempty"` // through which packets leave; empty: any
	To        *Forward   `json:",omitempty"` // another address of the far relay; nil: that of forward
	Standby   bool       `json:",omitempty"` // used while all others are lost
}

// maxPaths bounds the paths of a pair.
const maxPaths = 8

// String names a path as the configuration does.
func (p Path) String() string {
	var s string
	switch {
	case p.From.IsValid():
		s = p.From.String()
	case p.Interface != "":
		s = p.Interface
	}
	if p.To == nil {
		return s
	}
	if s != "" {
		s += " "
	}
	return s + "to " + p.To.String()
}

// paths decodes the paths of a pair.
func (d *decoder) paths(n *node, key string) (all []Path, ok bool) {
	before := len(d.errs)
	if n.kind != list || len(n.items) == 0 {
		d.errorf(n, "write one mapping for each path, such as {from: 192.0.2.10}", "%s must be a list of paths", key)
		return nil, false
	}
	if len(n.items) > maxPaths {
		d.errorf(n, "remove some", "%s has %d paths, and at most %d are allowed", key, len(n.items), maxPaths)
		return nil, false
	}
	for _, item := range n.items {
		p, ok := d.path(item)
		switch {
		case !ok:
		case slices.ContainsFunc(all, func(o Path) bool { return o.String() == p.String() }):
			d.errorf(item, "remove one", "%s has the path %s twice", key, p)
		default:
			all = append(all, p)
		}
	}
	if len(d.errs) > before {
		return nil, false
	}
	if !slices.ContainsFunc(all, func(p Path) bool { return !p.Standby }) {
		d.errorf(n, "remove standby from at least one", "every path is for standby")
		return nil, false
	}
	return all, true
}

// path decodes one path.
func (d *decoder) path(n *node) (p Path, ok bool) {
	before := len(d.errs)
	d.mapping(n, "a path of pair",
		into("from", &p.From, d.localAddress),
		into("interface", &p.Interface, d.pathInterface),
		field{"to", func(n *node) { p.To = d.pathTarget(n) }},
		into("standby", &p.Standby, d.boolean),
	)
	if len(d.errs) > before {
		return p, false
	}
	switch {
	case !p.From.IsValid() && p.Interface == "" && p.To == nil:
		d.errorf(n, "add the local address, such as from: 192.0.2.10, or interface: wan1, or to: relay-b:6000", "the path has no from, interface or to")
	case p.From.IsValid() && p.Interface != "":
		d.errorf(n.lookup("interface"), "remove one: from chooses a route by the address, interface by the interface",
			"a path has from or interface, not both")
	}
	return p, len(d.errs) == before
}

// checkPathFamilies finds paths between addresses of IPv4 and IPv6.
func (d *decoder) checkPathFamilies(n *node, t *Tunnel) {
	if len(t.Forward) == 0 {
		return
	}
	for i, p := range t.Pair.Paths {
		all := t.Forward
		if p.To != nil {
			all = []Forward{*p.To}
		}
		for _, far := range all {
			if to, err := netip.ParseAddr(far.Host); err == nil && p.From.IsValid() && to.Unmap().Is4() != p.From.Is4() {
				d.errorf(n.items[i], "give the path the far relay's address of the same family in to",
					"no connection from %s can reach %s", p.From, to.Unmap())
			}
		}
	}
}

// localAddress decodes an address of this host.
func (d *decoder) localAddress(n *node, key string) (netip.Addr, bool) {
	s, ok := d.text(n, key)
	if !ok {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(s)
	a = a.Unmap()
	switch {
	case err != nil:
		d.errorf(n, "use one address of this host, such as 192.0.2.10", "%s cannot be %q", key, s)
	case a.IsUnspecified(), a.IsMulticast():
		d.errorf(n, "use one address of this host, such as 192.0.2.10", "%s cannot be %s", key, a)
	case a.IsLinkLocalUnicast() && a.Is6() && a.Zone() == "":
		d.errorf(n, fmt.Sprintf("write %s%%eth0", a), "%s is a link-local address without its interface", a)
	default:
		return a, true
	}
	return netip.Addr{}, false
}

// pathInterface decodes the interface through which the packets of a path leave.
func (d *decoder) pathInterface(n *node, key string) (string, bool) {
	s, ok := d.text(n, key)
	if ok && !validInterfaceName(s) {
		d.errorf(n, "use the name of a network interface; ip link shows them", "%s cannot be %q", key, s)
		return "", false
	}
	return s, ok
}

// pathTarget decodes another address of the far relay.
func (d *decoder) pathTarget(n *node) *Forward {
	s, ok := d.text(n, "to")
	if !ok {
		return nil
	}
	f, bad := parseForward(s)
	switch {
	case bad != nil:
		d.mistake(n, bad)
		return nil
	case f.Ports.Len() > 1:
		d.errorf(n, "give one port", "the path leads to a range of ports")
		return nil
	}
	return &f
}

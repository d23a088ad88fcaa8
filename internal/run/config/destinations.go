package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"longhaul/internal/words/ipprefix"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/sorted"
)

// Destination is the settings of legs to the targets in a prefix.
type Destination struct {
	Prefix   netip.Prefix
	LAN, WAN Leg
}

// maxDestinations bounds the destinations of a tunnel: a new flow looks through them.
const maxDestinations = 256

// destinations decodes `destinations` of a tunnel whose other settings are known: a
// destination has those settings of `lan` and `wan` that it does not replace.
func (d *decoder) destinations(n *node, t *Tunnel) {
	if n == nil {
		return
	}
	for _, clash := range []struct {
		problem bool
		with    string
	}{{t.Transport == TransportKernel, "transport: kernel"}, {t.Pair.Paired(), "pair"}} {
		if clash.problem {
			d.errorf(n, "remove destinations, or "+clash.with, "destinations has no effect with %s", clash.with)
			return
		}
	}
	switch {
	case n.kind != list:
		d.errorf(n, "write a list such as [{prefix: 10.20.30.0/24, wan: {rate: 50Mbit}}]", "destinations must be a list, not %s", n.kind)
		return
	case len(n.items) > maxDestinations:
		d.errorf(n, "make the prefixes wider, or make a second tunnel", "destinations has %d entries, and at most %d are allowed", len(n.items), maxDestinations)
		return
	}
	for _, item := range n.items {
		before := len(d.errs)
		one := Destination{LAN: t.LAN, WAN: t.WAN}
		d.mapping(item, "a destination",
			into("prefix", &one.Prefix, d.prefix),
			field{"lan", func(n *node) { d.leg(n, "lan", &one.LAN) }},
			field{"wan", func(n *node) { d.leg(n, "wan", &one.WAN) }})
		if len(d.errs) == before {
			d.checkDestination(item, t, one)
		}
		if len(d.errs) == before {
			t.Destinations = append(t.Destinations, one)
		}
	}
	sorted.By(t.Destinations, func(a, b Destination) int { return b.Prefix.Bits() - a.Prefix.Bits() })
}

func (d *decoder) prefix(n *node, key string) (netip.Prefix, bool) {
	s, ok := d.text(n, key)
	if !ok {
		return netip.Prefix{}, false
	}
	p, err := ipprefix.Parse(s)
	if err != nil {
		d.mistake(n, &mistake{err.Error(), remedy.Of(err)})
	}
	return p, err == nil
}

// checkDestination finds a destination that repeats another, or has no effect.
func (d *decoder) checkDestination(n *node, t *Tunnel, one Destination) {
	at, lan, wan := n.lookup("prefix"), n.lookup("lan"), n.lookup("wan")
	switch {
	case at == nil:
		d.errorf(n, "add one, such as prefix: 10.20.30.0/24", "the destination has no prefix")
		return
	case lan == nil && wan == nil:
		d.errorf(n, "add what differs there, such as wan: {rate: 50Mbit}", "the destination %s changes nothing", one.Prefix)
		return
	case slices.ContainsFunc(t.Destinations, func(o Destination) bool { return o.Prefix == one.Prefix }):
		d.errorf(at, "remove one of them", "destinations has %s twice", one.Prefix)
		return
	}
	if targets := t.targets(); len(targets) > 0 && !slices.ContainsFunc(targets, one.Prefix.Overlaps) {
		texts := make([]string, len(targets))
		for i, p := range targets {
			texts[i] = strings.TrimSuffix(p.String(), fmt.Sprintf("/%d", p.Addr().BitLen()))
		}
		d.errorf(at, "give a prefix of "+strings.Join(texts, ", "), "no target of the tunnel is in %s", one.Prefix)
	}
	// Connections to targets are all of one kind, unless wan_side is auto.
	if lan != nil && (t.WANSide == WANBoth || t.WANSide == WANForward) {
		d.errorf(lan, "write wan", "lan of a destination has no effect with wan_side: %s", t.WANSide)
	}
	if wan != nil && (t.WANSide == WANNone || t.WANSide == WANListen) {
		d.errorf(wan, "write lan", "wan of a destination has no effect with wan_side: %s", t.WANSide)
	}
	if t.WANSide == WANAuto && one.LAN.MSS != one.WAN.MSS {
		d.errorf(n, "say which side is the WAN with wan_side, or give lan and wan the same mss",
			"lan and wan of the destination %s differ in mss, which is announced before the round-trip time tells them apart", one.Prefix)
	}
}

// targets are the networks of all targets; none if some are known by name alone.
func (t *Tunnel) targets() (all []netip.Prefix) {
	if t.LeadsAsDialed() {
		return t.Intercept.To
	}
	for _, f := range t.Forward {
		a, err := netip.ParseAddr(f.Host)
		if err != nil {
			return nil
		}
		all = append(all, netip.PrefixFrom(a.Unmap().WithZone(""), a.Unmap().BitLen()))
	}
	return all
}

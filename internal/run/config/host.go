package config

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/carry/pair/trust"
	"longhaul/internal/words/portrange"
)

// maxLookups bounds the names that are looked up at a time.
const maxLookups = 16

// warnHost warns of what this host lacks for the configuration. All of it may come later, or be
// there on the relay's host, so nothing of it is a mistake.
func (d *decoder) warnHost(tunnels []Tunnel) {
	d.warnAddresses()
	d.warnOutgoingPorts()
	d.warnNames(tunnels)
}

// warnAddresses warns of listening addresses that this host does not have.
func (d *decoder) warnAddresses() {
	if d.loader.HasAddress == nil {
		return
	}
	has := map[netip.Addr]bool{}
	warned := map[*node]bool{}
	for _, l := range d.listens {
		known, asked := has[l.Addr]
		if !asked {
			known = d.loader.HasAddress(l.Addr)
			has[l.Addr] = known
		}
		if known || warned[l.at] {
			continue
		}
		warned[l.at] = true
		d.warn(l.at, "the relay waits for it: give the host the address, or listen on one of those that ip addr shows",
			"%s is no address of this host", l.Addr)
	}
}

// warnOutgoingPorts warns of listening ports that the kernel may give to an outgoing connection
// before the relay starts.
func (d *decoder) warnOutgoingPorts() {
	if d.loader.OutgoingPorts == nil {
		return
	}
	outgoing := d.loader.OutgoingPorts()
	var at *node
	var ports []string
	for _, l := range d.listens {
		if len(outgoing) == 0 || !portrange.Overlap(outgoing, []portrange.Range{l.Ports}) {
			continue
		}
		if at == nil {
			at = l.at
		}
		if text := l.Ports.String(); !slices.Contains(ports, text) {
			ports = append(ports, text)
		}
	}
	if at == nil {
		return
	}
	d.warn(at, "reserve them: sysctl -w net.ipv4.ip_local_reserved_ports="+strings.Join(ports, ",")+", beside those that it lists",
		"listening on %s fails while an outgoing connection of this host has a port of net.ipv4.ip_local_port_range there", strings.Join(ports, ", "))
}

// warnNames warns of names of next hops that have no address, and of services that have no targets.
func (d *decoder) warnNames(tunnels []Tunnel) {
	places := map[string]*node{}
	services := map[string]bool{}
	var names []string
	for i, t := range tunnels {
		if t.Service != "" && places[t.Service] == nil && len(d.services) > i {
			places[t.Service], services[t.Service] = d.services[i], true
			names = append(names, t.Service)
		}
		for hop, f := range t.Forward {
			if _, err := netip.ParseAddr(f.Host); err == nil || f.Host == "" || places[f.Host] != nil || hop >= len(d.forwardNodes[i]) {
				continue
			}
			places[f.Host] = d.forwardNodes[i][hop]
			names = append(names, f.Host)
		}
	}
	ctx, cancel := context.WithTimeout(d.ctx, resolveTimeout)
	defer cancel()
	found := make([]error, len(names))
	turns := make(chan struct{}, maxLookups)
	var looking sync.WaitGroup
	for i, name := range names {
		looking.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			if services[name] {
				found[i] = d.loader.FindService(ctx, name)
			} else {
				_, found[i] = d.loader.Resolve(ctx, name)
			}
		})
	}
	looking.Wait()
	for i, err := range found {
		switch {
		case err != nil && services[names[i]]:
			d.warn(places[names[i]], "check the name, and the DNS of this host; a relay that starts asks again until it has targets, and a reload refuses it",
				"the service %s has no targets here, so its hops are not checked: %v", names[i], err)
		case err != nil:
			d.warn(places[names[i]], "check the name, and the DNS of this host; the relay looks it up again for each flow",
				"the name %s has no address: %v", names[i], err)
		}
	}
}

// warnKeys warns of peers whose keys this host does not have: nothing of theirs passes.
func (d *decoder) warnKeys(c *Config, nodes []*node) {
	if d.loader.PeerKey == nil || d.badTrust {
		return // or any peer may be one of pair_trust
	}
	for i, t := range c.Tunnels {
		if i >= len(nodes) {
			return
		}
		look := func(key, peer, fix string) {
			at := nodes[i].lookup(key)
			if at == nil {
				at = nodes[i]
			}
			if slices.ContainsFunc(c.PairTrust.Names, func(n trust.Name) bool { return identity.IsOf(n.Peer, peer) }) {
				return
			}
			if err := d.loader.PeerKey(c.PairKeys, peer); err != nil {
				d.warn(at, fmt.Sprintf(fix, peer), "%v", err)
			}
		}
		if t.Pair.Paired() {
			look("pair", t.Pair.Peer, "pair them: at the far relay longhaul pair invite NAME --address HOST:PORT, here longhaul pair join - --as %s < line")
		}
		for _, peer := range t.PairFrom.Peers {
			look("pair_from", peer, "pair them: here longhaul pair invite %s --address HOST:PORT, at the near relay longhaul pair join - < line")
		}
	}
}

func (d *decoder) warn(n *node, fix, format string, args ...any) {
	d.warnings = append(d.warnings, &Error{n.at, oneLine(fmt.Sprintf(format, args...)), oneLine(fix)})
}

package pair

import (
	"crypto/ed25519"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/words/sorted"
)

// maxPlacesOf bounds the addresses of a host that a session tries beside those of its tunnel.
const maxPlacesOf = 8

// hostOf is the host of a key that was proved in a handshake.
func (p *process) hostOf(key ed25519.PublicKey, err error) (host, error) {
	if err != nil {
		return host{}, problem(flow.PairKeyUnknown, "%w", err)
	}
	peer, known := p.identity.PeerOf(key)
	if !known {
		return host{}, problem(flow.PairKeyUnknown, "a key of no peer")
	}
	return host{key: key, name: peer}, nil
}

// renamed is the host with the name that the list of peers has for it now.
func (p *process) renamed(h host) host {
	if h.key != nil {
		if name, known := p.identity.PeerOf(h.key); known {
			h.name = name
		}
	}
	return h
}

// listed reports whether a session's host is a peer still, and remembers the key and the name that it has now:
// after a rotation and a rename it is found by neither of those that it had. A peer whose key was replaced
// without a rotation is another host. Where this host's own keys are away too, as with a file system that is
// not mounted, the list says nothing.
func (p *process) listed(proved *atomic.Pointer[host]) bool {
	was := proved.Load()
	if was == nil {
		return true
	}
	now, is := p.present(*was)
	if !is && len(p.identity.PublicKeys()) > 0 {
		if now, is = p.present(*was); !is { // this host's keys may have come back since the first look
			return false
		}
	}
	if is && (now.name != was.name || !now.key.Equal(was.key)) {
		proved.CompareAndSwap(was, &now)
	}
	return true
}

// present is a host with the key and the name that the list has for it now. The list may change between two
// questions, so that each answer comes from one.
func (p *process) present(h host) (now host, is bool) {
	name, known := p.identity.PeerOf(h.key)
	if known {
		h.name = name
		return h, true
	}
	next, err := p.identity.Successor(h.key) // a key that stands for a name in a certificate has none
	if err != nil {                          // it is unknown whether it was a rotation
		return h, slices.Contains(p.identity.Hosts(h.name), h.name)
	}
	h.key = next
	name, known = p.identity.PeerOf(next)
	return h, known && name == h.name // a key that the host once announced may be another's by now
}

// same reports whether two hosts are one.
func (p *process) same(a, b host) bool {
	return a.key != nil && a.key.Equal(b.key) || p.renamed(a).name == p.renamed(b).name
}

// placesOf are the addresses at which a host was, and nobody since, the latest first: those of a tunnel, and
// others that are allowed.
func (p *process) placesOf(tunnel string, who host, allowed func(netip.Addr) bool) (all []netip.AddrPort) {
	seen := map[netip.AddrPort]time.Time{}
	for w, one := range p.book.all() {
		if (w.tunnel == tunnel || allowed(w.at.Addr())) && p.same(one.who, who) && one.seen.After(seen[w.at]) {
			seen[w.at] = one.seen
		}
	}
	for at := range seen {
		all = append(all, at)
	}
	sorted.By(all, func(x, y netip.AddrPort) int { return seen[y].Compare(seen[x]) })
	return all[:min(len(all), maxPlacesOf)]
}

// hostsFor are the hosts that a name means, the one that was last at an address first.
func (p *process) hostsFor(peer, tunnel string, at netip.AddrPort) []string {
	hosts := p.identity.Hosts(peer)
	if who, known := p.book.last(tunnel, at); known && len(hosts) > 1 {
		if i := slices.Index(hosts, p.renamed(who).name); i > 0 {
			hosts[0], hosts[i] = hosts[i], hosts[0]
		}
	}
	return hosts
}

package config

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/words/remedy"
)

// Pair makes a tunnel the near end of a pair of relays. The zero value means
// that the tunnel is not paired.
type Pair struct {
	Peer     string // name of the far relay, or of its site, among the keys of this host
	Lanes    int    // WAN connections of a flow that moves much
	Warm     int    // idle WAN connections that are kept ready
	Compress Compress
	Resume   time.Duration // longest outage that a flow survives; 0: a flow ends with its connection
	Encrypt  Encrypt       // the far relay must have the same
	Paths    []Path        `json:",omitempty"` // to the far relay; empty: one, by the host's routes
	// LanesTo are networks to which lanes may go if the far relay tells an address in them as its own.
	LanesTo []netip.Prefix `json:",omitempty"`
}

// Compress is whether bytes of flows are compressed.
type Compress string

// The values of compress.
const (
	CompressOff  Compress = Off
	CompressAuto Compress = "auto" // while that makes a flow faster
)

// Encrypt is whether a pair encrypts the bytes of flows.
type Encrypt string

// The values of encrypt. Without encryption, relays still authenticate each other, but
// the bytes of flows are neither encrypted nor authenticated.
const (
	EncryptOn  Encrypt = "on"
	EncryptOff Encrypt = Off
)

// PairFrom makes a tunnel the far end of pairs. The zero value means that it is none.
type PairFrom struct {
	Peers   []string // the near relays whose flows the tunnel takes; it takes no others
	Encrypt Encrypt  // the near relays must have the same
	// Advertise is the address to which near relays are to make their lanes. Without it that is the one
	// from which this host answers.
	Advertise netip.AddrPort `json:",omitzero"`
}

// Paired reports whether the tunnel is the far end of pairs.
func (p PairFrom) Paired() bool { return len(p.Peers) > 0 }

// Paired reports whether the tunnel is the near end of a pair.
func (p Pair) Paired() bool { return p.Peer != "" }

// Bounds of a pair.
const (
	maxLanes  = 16
	maxWarm   = 64
	minResume = time.Second
	maxResume = time.Hour
	maxPeers  = 64 // of a far tunnel
)

// DefaultPair is a pair without settings of its own, and without a peer.
func DefaultPair() Pair {
	return Pair{Lanes: 1, Warm: 4, Compress: CompressOff, Resume: 2 * time.Minute, Encrypt: EncryptOn}
}

// pair decodes `pair`: the name of the peer, or a mapping.
func (d *decoder) pair(n *node, p *Pair) {
	*p = DefaultPair()
	if n.kind == scalar {
		if name, ok := d.peerName(n, "pair"); ok {
			p.Peer = name
		}
		return
	}
	d.mapping(n, "pair",
		into("peer", &p.Peer, d.peerName),
		into("lanes", &p.Lanes, d.lanes),
		into("compress", &p.Compress, oneOf(d, CompressOff, CompressAuto)),
		into("warm", &p.Warm, d.integer(0, maxWarm)),
		into("resume", &p.Resume, d.duration(minResume, maxResume, new(time.Duration))),
		d.encrypt(&p.Encrypt),
		into("paths", &p.Paths, d.paths),
		into("lanes_to", &p.LanesTo, d.prefixes),
	)
	if n.kind == mapping && n.lookup("peer") == nil {
		d.errorf(n, "add peer: with the name that longhaul pair list shows", "pair has no peer")
	}
	if p.Lanes != 1 && p.Resume == 0 {
		d.errorf(n.lookup("lanes"), "remove one of them", "several lanes need resume: a lost one would end the flow, and resume is off")
	}
	if p.Compress == CompressAuto && p.Encrypt == EncryptOff && p.Resume == 0 {
		d.errorf(n.lookup("compress"), "remove one of them",
			"with encrypt: off and resume: off the kernel passes bytes on unseen, and nobody can compress them")
	}
	if len(p.Paths) > 1 && p.Resume == 0 {
		d.errorf(n.lookup("paths"), "remove one of them", "several paths need resume: a lost one would end flows, and resume is off")
	}
}

// advertise decodes the address to which near relays are to make their lanes.
func (d *decoder) advertise(n *node, key string) (netip.AddrPort, bool) {
	s, ok := d.text(n, key)
	if !ok {
		return netip.AddrPort{}, false
	}
	a, err := netip.ParseAddrPort(s)
	if err != nil || a.Port() == 0 || a.Addr().IsUnspecified() || a.Addr().IsMulticast() || a.Addr().IsLinkLocalUnicast() {
		d.errorf(n, "write the address and port at which near relays reach this host, such as 192.0.2.20:6000", "%s cannot be %q", key, s)
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), true
}

// lanes decodes a number of lanes.
func (d *decoder) lanes(n *node, key string) (int, bool) {
	if n.kind == scalar && n.text == "auto" {
		d.wasRemoved(n, "lanes: auto", "write lanes: N; longhaul doctor HOST, with longhaul measure --serve there, says which N")
		return 0, false
	}
	return d.integer(1, maxLanes)(n, key)
}

func (d *decoder) encrypt(to *Encrypt) field {
	return into("encrypt", to, oneOf(d, EncryptOn, EncryptOff))
}

// pairFrom decodes `pair_from`: the names of near relays, or a mapping.
func (d *decoder) pairFrom(n *node, p *PairFrom) {
	p.Encrypt = EncryptOn
	if n.kind != mapping {
		p.Peers, _ = d.peers(n, "pair_from")
		return
	}
	d.mapping(n, "pair_from", into("peer", &p.Peers, d.peers), d.encrypt(&p.Encrypt))
	if n.lookup("peer") == nil {
		d.errorf(n, "add peer: with the names that longhaul pair list shows", "pair_from has no peer")
	}
}

// peers decodes the names of the near relays of a far tunnel.
func (d *decoder) peers(n *node, key string) ([]string, bool) {
	var peers []string
	before := len(d.errs)
	d.each(n, key, func(n *node, _ string) {
		name, ok := d.peerName(n, key)
		switch {
		case !ok:
		case slices.Contains(peers, name):
			d.errorf(n, "remove one", "%s has %s twice", key, name)
		default:
			peers = append(peers, name)
		}
	})
	if len(d.errs) == before && len(peers) > maxPeers {
		d.errorf(n, "make a second tunnel", "%s has %d names, and at most %d are allowed", key, len(peers), maxPeers)
	}
	return peers, len(d.errs) == before
}

// peerName decodes the name of a peer, of a site, or of one host of a site.
func (d *decoder) peerName(n *node, key string) (string, bool) {
	s, ok := d.text(n, key)
	if !ok {
		return "", false
	}
	if err := identity.CheckName(s); err != nil {
		d.errorf(n, remedy.Of(err), "%s cannot be %q", key, s)
		return "", false
	}
	return s, true
}

// pairKeys decodes the directory of this host's key and the keys of its peers.
func (d *decoder) pairKeys(n *node, key string) (string, bool) {
	s, ok := d.text(n, key)
	if ok && (!filepath.IsAbs(s) || filepath.Clean(s) != s) {
		d.errorf(n, "use an absolute path such as /var/lib/longhaul/pair", "%s cannot be %q", key, s)
		return "", false
	}
	return s, ok
}

// checkPair finds settings that do not go with a pair.
func (d *decoder) checkPair(n *node, t *Tunnel) {
	near, far := t.Pair.Paired(), t.PairFrom.Paired()
	if v := n.lookup("advertise"); v != nil && !far {
		d.errorf(v, "remove it, or add pair_from", "advertise has no effect without pair_from")
	}
	if !near && !far {
		return
	}
	clash := func(path, fix, format string, args ...any) { d.clash(n, path, fix, format, args...) }
	if near && far {
		d.checkChain(n, t)
	}
	key := "pair"
	if far {
		key = "pair_from"
	}
	clash("check", "remove check; longhaul check says how the pair is without it", "check has no effect with %s", key)
	if near {
		d.checkPathFamilies(n.lookup("pair").lookup("paths"), t)
		if to := slices.IndexFunc(t.Pair.Paths, func(p Path) bool { return p.To != nil }); to >= 0 && t.SeveralHops() {
			d.errorf(n.lookup("pair").lookup("paths").items[to], "remove to; each hop of forward has its own address",
				"a path to another address cannot have several hops")
		}
		if t.SeveralHops() {
			for _, key := range []string{"check", "interval", "timeout", "rise", "fall"} {
				clash("health."+key, "remove it; the relay watches its pairs all the time", "health.%s has no effect with pair", key)
			}
		} else {
			clash("health", "remove health; the relay watches its pair all the time", "health has no effect with pair")
		}
		clash("proxy_protocol.out", "remove it; proxy_protocol.out at the far relay sends the client's address to the target",
			"proxy_protocol.out has no effect with pair")
	}
	if far {
		clash("proxy_protocol.in", "remove it; the far relay knows the client's address from the near one",
			"proxy_protocol.in has no effect with pair_from")
	}
	// What defaults set for other tunnels.
	t.Check = defaultCheck()
	if near {
		was := t.Health
		t.Health, t.ProxyOut = DefaultSettings().Health, 0
		if t.SeveralHops() {
			t.Health.EjectAfter, t.Health.EjectFor, t.Health.SlowReturn = was.EjectAfter, was.EjectFor, was.SlowReturn
		}
	}
	if far {
		t.ProxyIn = ProxyIn{}
	}
}

// checkChain finds what keeps a tunnel from taking flows on from one pair to the next.
func (d *decoder) checkChain(n *node, t *Tunnel) {
	d.clash(n, "original", "remove it, and write original at the last relay of the chain", "original has no effect with pair, whose far relay dials the target")
	for _, name := range t.PairFrom.Peers {
		if identity.IsOf(t.Pair.Peer, name) || identity.IsOf(name, t.Pair.Peer) {
			d.errorf(n.lookup("pair"), "name the next relay in pair, and in pair_from only those before this one",
				"%s cannot be in pair and in pair_from of one tunnel: its flows would go back to where they come from", name)
		}
	}
}

// maxPool is how many idle connections of one host a far relay keeps.
const maxPool = 1024

// warnPools warns of pools that a far relay would not keep: it would close idle connections as
// often as the near one dials them.
func (d *decoder) warnPools(at *node, tunnels []Tunnel) {
	pools := map[string]int{}
	for _, t := range tunnels {
		if !t.Pair.Paired() {
			continue
		}
		before := pools[t.Pair.Peer]
		pools[t.Pair.Peer] += t.Pair.Warm * max(len(t.Pair.Paths), 1)
		if before <= maxPool && pools[t.Pair.Peer] > maxPool {
			d.warnings = append(d.warnings, &Error{at.at,
				fmt.Sprintf("the tunnels to %s keep more than %d idle connections (warm, times paths), and it keeps as many at most", t.Pair.Peer, maxPool),
				"lower warm"})
		}
	}
}

// warnClear warns of a pair whose flows cross the WAN in clear.
func (d *decoder) warnClear(n *node, t *Tunnel) {
	for key, encrypt := range map[string]Encrypt{"pair": t.Pair.Encrypt, "pair_from": t.PairFrom.Encrypt} {
		if encrypt == EncryptOff {
			d.warnings = append(d.warnings, &Error{n.lookup(key).lookup("encrypt").at,
				fmt.Sprintf("the tunnel %s has encrypt: off: bytes cross the WAN unprotected and unauthenticated", t.Name),
				"remove encrypt at both relays, unless the network between them is trusted"})
		}
	}
}

package config

import (
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Pair makes a tunnel the near end of a pair of relays. The zero value means
// that the tunnel is not paired.
type Pair struct {
	Peer   string        // name of the far relay among the keys of this host
	Warm   int           // idle WAN connections that are kept ready
	Resume time.Duration // longest outage that a flow survives
}

// Paired reports whether the tunnel is the near end of a pair.
func (p Pair) Paired() bool { return p.Peer != "" }

// Bounds of a pair.
const (
	maxWarm   = 64
	minResume = time.Second
	maxResume = time.Hour
	maxPeers  = 64 // of a far tunnel
)

// DefaultPair is a pair without settings of its own, and without a peer.
func DefaultPair() Pair { return Pair{Warm: 4, Resume: 2 * time.Minute} }

// pair decodes `pair`: the name of the peer, or a mapping.
func (d *decoder) pair(n *node, p *Pair) {
	*p = DefaultPair()
	if n.kind == scalar {
		if name, ok := d.tunnelName(n, "pair"); ok {
			p.Peer = name
		}
		return
	}
	d.mapping(n, "pair",
		into("peer", &p.Peer, d.tunnelName),
		into("warm", &p.Warm, d.integer(0, maxWarm)),
		into("resume", &p.Resume, d.duration(minResume, maxResume, nil)),
		field{"encrypt", func(n *node) {
			d.onlyWord(n, "encrypt", "on", "a pair without encryption is not supported yet")
		}},
		field{"fallback", func(n *node) {
			d.onlyWord(n, "fallback", "never", "a fallback to an unpaired relay is not supported yet")
		}},
	)
	if n.kind == mapping && n.lookup("peer") == nil {
		d.errorf(n, "add peer: with the name that longhaul pair list shows", "pair has no peer")
	}
}

// onlyWord decodes a setting that has one value so far.
func (d *decoder) onlyWord(n *node, key, word, why string) {
	if s, ok := d.text(n, key); ok && s != word {
		d.errorf(n, "write "+key+": "+word+", or remove the line", "%s cannot be %q: %s", key, s, why)
	}
}

// pairFrom decodes the names of the near relays of a far tunnel.
func (d *decoder) pairFrom(n *node, key string) ([]string, bool) {
	var peers []string
	before := len(d.errs)
	d.each(n, key, func(n *node, _ string) {
		name, ok := d.tunnelName(n, key)
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
	near, far := t.Pair.Paired(), len(t.PairFrom) > 0
	if !near && !far {
		return
	}
	clash := func(path, fix, format string, args ...any) {
		at := n
		for key := range strings.SplitSeq(path, ".") {
			at = at.lookup(key)
		}
		if at != nil && !(at.kind == scalar && at.text == Off) {
			d.errorf(at, fix, format, args...)
		}
	}
	if near && far {
		clash("pair_from", "make two tunnels, the second behind the first", "pair and pair_from in one tunnel are not supported yet")
		return
	}
	key := "pair"
	if far {
		key = "pair_from"
	}
	if t.ports().Len() > 1 {
		clash("listen", "make a tunnel for each port", "a range of ports is not supported with %s yet", key)
	}
	clash("check", "remove check; longhaul check says how the pair is without it", "check has no effect with %s", key)
	if near {
		if len(t.Forward) > 1 {
			clash("forward", "give one address, or a name with several", "several hops are not supported with pair yet")
		}
		clash("health", "remove health; the relay watches its pair all the time", "health has no effect with pair")
		clash("proxy_protocol.out", "remove it; proxy_protocol.out at the far relay sends the client's address to the target",
			"proxy_protocol.out has no effect with pair")
	} else {
		clash("proxy_protocol.in", "remove it; the far relay knows the client's address from the near one",
			"proxy_protocol.in has no effect with pair_from")
	}
	// What defaults set for other tunnels.
	t.Check = defaultCheck()
	if near {
		t.Health, t.ProxyOut = DefaultSettings().Health, 0
	} else {
		t.ProxyIn = ProxyIn{}
	}
}

package config

import (
	"cmp"
	"path/filepath"
	"strings"

	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/carry/pair/trust"
	"longhaul/internal/words/remedy"
)

// pairTrust decodes `pair_trust`: files of certificates, and the names that are trusted.
func (d *decoder) pairTrust(n *node, o *trust.Options) {
	before := len(d.errs)
	absolute := d.secretFile("pair_trust", "/etc/longhaul/pair/tls.crt")
	file := func(n *node, key string) (string, bool) {
		path, ok := absolute(n, key)
		if ok && isCredential(path) {
			d.errorf(n, "name the file itself, and let the service's user read it: give it a group, and the unit SupplementaryGroups= with that",
				"pair_trust.%s cannot be %s: a credential is a copy that no renewal reaches", key, path)
			return "", false
		}
		return path, ok
	}
	d.mapping(n, "pair_trust",
		into("ca", &o.CA, file),
		into("cert", &o.Cert, file),
		into("key", &o.Key, file),
		field{"names", func(n *node) { o.Names = d.trustedNames(n) }},
	)
	if n.kind != mapping || len(d.errs) > before {
		*o, d.badTrust = trust.Options{}, true
		return
	}
	for _, missing := range []struct{ key, fix string }{
		{"ca", "add ca: with the file of the authorities"},
		{"cert", "add cert: with the file of this host's certificate"},
		{"key", "add key: with the file of its key"},
		{"names", "add names: with the names of the peers, such as [spiffe://corp/site-b]"},
	} {
		if n.lookup(missing.key) == nil {
			d.errorf(n, missing.fix, "pair_trust has no %s", missing.key)
			*o, d.badTrust = trust.Options{}, true
			return
		}
	}
}

// isCredential reports whether a file is a copy that systemd makes when it starts a service. What is mounted elsewhere
// below /run/credentials may change, as a Secret of Kubernetes does.
func isCredential(path string) bool {
	below, ok := strings.CutPrefix(filepath.Clean(path), "/run/credentials/")
	unit, _, _ := strings.Cut(below, "/")
	return ok && strings.HasSuffix(unit, ".service")
}

// trustedNames decodes the list of names. Each is one host.
func (d *decoder) trustedNames(n *node) (all []trust.Name) {
	if n.kind != list || len(n.items) == 0 {
		d.errorf(n, "write a dash before each name, such as - spiffe://corp/site-b", "names must be a list of names")
		return nil
	}
	if len(n.items) > trust.MaxNames {
		d.errorf(n, "remove some", "names has %d entries, and at most %d are allowed", len(n.items), trust.MaxNames)
		return nil
	}
	lines := map[string]int{}
	for _, item := range n.items {
		san, peer := item.text, ""
		if item.kind != scalar {
			before := len(d.errs)
			d.mapping(item, "an entry of names", into("name", &san, d.text), into("peer", &peer, d.peerName))
			if item.kind == mapping && item.lookup("name") == nil {
				d.errorf(item, "add name: spiffe://corp/site-b", "the entry has no name")
			}
			if len(d.errs) > before {
				continue
			}
		}
		name, err := trust.ParseName(san, peer)
		if err != nil {
			d.errorf(item, remedy.Of(err), "%v", err)
			continue
		}
		for _, other := range all {
			switch {
			case other.SAN == name.SAN:
				d.errorf(item, "remove one", "%s is there twice, also on line %d", name.SAN, lines[other.SAN])
				return nil
			case identity.IsOf(other.Peer, name.Peer), identity.IsOf(name.Peer, other.Peer):
				d.errorf(item, "give each host a peer's name of its own, such as site-b/b1 and site-b/b2",
					"the peer %s of %s and the peer %s on line %d are one, or one is the site of the other", name.Peer, name.SAN, other.Peer, lines[other.SAN])
			}
		}
		lines[name.SAN] = item.at.Line
		all = append(all, name)
	}
	return all
}

// checkTrust reads the files of a trust.
func (d *decoder) checkTrust(n *node, c *Config) {
	if n == nil || c.PairTrust.CA == "" || d.loader.CheckTrust == nil {
		return
	}
	warnings, err := d.loader.CheckTrust(c.PairKeys, c.PairTrust)
	if err != nil {
		d.errorf(n, cmp.Or(remedy.Of(err), "check the files"), "%v", err)
	}
	for _, w := range warnings {
		d.warn(n, remedy.Of(w), "%v", w)
	}
}

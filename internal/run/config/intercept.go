package config

import (
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"longhaul/internal/words/ipprefix"
	"longhaul/internal/words/portrange"
)

// Intercept selects the routed connections that a tunnel takes, in place of listening
// addresses. The zero value means that the tunnel listens.
type Intercept struct {
	Interface string            // on which the clients' packets arrive
	From      []netip.Prefix    // clients; empty: everybody behind Interface
	To        []netip.Prefix    // targets
	Ports     []portrange.Range // of the targets; empty: all
	// PastForwardRules: the tunnel may take connections that the host's own rules would
	// not forward.
	PastForwardRules bool `json:",omitzero"`
	// LocalTargets lets flows reach a target that has become an address of this host.
	LocalTargets bool `json:",omitzero"`
}

// Enabled reports whether the tunnel intercepts.
func (i Intercept) Enabled() bool { return i.Interface != "" }

// String is the interception in one word, as logs and lists show it.
func (i Intercept) String() string {
	s := i.Interface + ">" + commas(i.To)
	if len(i.Ports) > 0 {
		s += ":" + commas(i.Ports)
	}
	return s
}

func commas[T fmt.Stringer](all []T) string {
	texts := make([]string, len(all))
	for i, one := range all {
		texts[i] = one.String()
	}
	return strings.Join(texts, ",")
}

// Source is the address from which the relay dials.
type Source string

// The values of source.
const (
	SourceClient Source = "client" // the client's address and port
	SourceRelay  Source = "relay"
)

// WhenDown is what becomes of new connections of an intercepting tunnel while its pair or
// every hop is down.
type WhenDown string

// The values of when_down.
const (
	WhenDownBypass WhenDown = "bypass" // they go directly, as while the tunnel is drained
	WhenDownRefuse WhenDown = "refuse" // the tunnel takes them all the same
)

// Refuse is when a client learns that its target refuses or cannot be reached.
type Refuse string

// The values of refuse.
const (
	RefuseAfter  Refuse = "after"  // its connect succeeds, and a reset follows
	RefuseMirror Refuse = "mirror" // its connect fails, as without the relay
)

// Interception is what the host's rules for intercepting tunnels use. The zero value of
// a field means that longhaul chooses.
type Interception struct {
	Mark  uint32 // one bit of a packet's mark
	Table uint32 // number of the routing table
}

// Bounds of an interception.
const (
	maxInterfaceName = 15  // IFNAMSIZ less its terminator
	maxIntercepted   = 256 // prefixes, and ranges of ports, of a tunnel
)

// interception decodes `interception`.
func (d *decoder) interception(n *node, i *Interception) {
	d.mapping(n, "interception", into("mark", &i.Mark, d.packetMark), into("table", &i.Table, d.routingTable))
}

func (d *decoder) packetMark(n *node, key string) (uint32, bool) {
	v, ok := d.uint32(n, key)
	if ok && bits.OnesCount32(v) != 1 {
		d.errorf(n, "use one bit that nobody else on this host sets, such as 0x1000", "%s cannot be %s", key, n.text)
		return 0, false
	}
	return v, ok
}

func (d *decoder) routingTable(n *node, key string) (uint32, bool) {
	v, ok := d.uint32(n, key)
	if ok && (v == 0 || v >= 253 && v <= 255) {
		d.errorf(n, "use the number of a table that nobody else uses, such as 1812", "%s cannot be %s, a table of the system", key, n.text)
		return 0, false
	}
	return v, ok
}

// uint32 decodes a decimal number, or a hexadecimal one after 0x.
func (d *decoder) uint32(n *node, key string) (uint32, bool) {
	s, ok := d.text(n, key)
	if !ok {
		return 0, false
	}
	digits, base := s, 10
	if hex, found := strings.CutPrefix(s, "0x"); found {
		digits, base = hex, 16
	}
	v, err := strconv.ParseUint(digits, base, 32)
	if err != nil {
		d.errorf(n, "use a number such as 1812 or 0x1000", "%s cannot be %q", key, s)
		return 0, false
	}
	return uint32(v), true
}

// intercept decodes `intercept`.
func (d *decoder) intercept(n *node, i *Intercept) {
	before := len(d.errs)
	d.mapping(n, "intercept",
		into("interface", &i.Interface, d.interfaceName),
		into("from", &i.From, d.distinctPrefixes),
		into("to", &i.To, d.distinctPrefixes),
		into("ports", &i.Ports, d.distinctPorts),
		into("past_forward_rules", &i.PastForwardRules, d.boolean),
		into("local_targets", &i.LocalTargets, d.boolean),
	)
	if n.kind != mapping {
		return
	}
	for _, required := range []struct{ key, fix string }{
		{"interface", "add the interface on which the clients' packets arrive, such as interface: lan0"},
		{"to", "add the targets' networks, such as to: 10.20.20.0/24"},
	} {
		if n.lookup(required.key) == nil {
			d.errorf(n, required.fix, "intercept has no %s", required.key)
		}
	}
	if len(d.errs) == before {
		d.checkFamilies(n, i.From, i.To)
	}
}

// checkFamilies finds clients without targets of their family, and the reverse. No
// clients are all clients.
func (d *decoder) checkFamilies(n *node, clients, targets []netip.Prefix) {
	if len(clients) == 0 {
		return
	}
	for _, family := range []struct {
		name string
		has  func(netip.Prefix) bool
	}{
		{"IPv4", func(p netip.Prefix) bool { return p.Addr().Is4() }},
		{"IPv6", func(p netip.Prefix) bool { return p.Addr().Is6() }},
	} {
		from, to := slices.ContainsFunc(clients, family.has), slices.ContainsFunc(targets, family.has)
		with, without := "from", "to"
		if to {
			with, without = "to", "from"
		}
		if from != to {
			d.errorf(n.lookup(with), fmt.Sprintf("add %s networks to %s, or remove those of %s", family.name, without, with),
				"%s has %s networks and %s has none", with, family.name, without)
		}
	}
}

func (d *decoder) interfaceName(n *node, key string) (string, bool) {
	s, ok := d.text(n, key)
	if !ok {
		return "", false
	}
	switch {
	case !validInterfaceName(s):
		d.errorf(n, "use the name of a network interface; ip link shows them", "%s cannot be %q", key, s)
		return "", false
	case s == "lo":
		d.errorf(n, "use the interface on which the clients' packets arrive", "%s cannot be lo: routed packets do not arrive there", key)
		return "", false
	}
	return s, true
}

func validInterfaceName(s string) bool {
	valid := s != "" && s != "." && s != ".." && len(s) <= maxInterfaceName
	for _, c := range s {
		valid = valid && c > ' ' && c < 0x7f && !strings.ContainsRune(`/:"\*`, c)
	}
	return valid
}

// distinctPrefixes decodes prefixes of which none is within another.
func (d *decoder) distinctPrefixes(n *node, key string) ([]netip.Prefix, bool) {
	all, ok := d.prefixes(n, key)
	for i, p := range all {
		for _, other := range all[:i] {
			if ok && p.Overlaps(other) {
				d.errorf(n, fmt.Sprintf("remove %s", narrower(p, other)), "%s has %s and %s, which overlap", key, other, p)
				return nil, false
			}
		}
	}
	return all, ok && d.atMost(n, key, len(all))
}

func narrower(a, b netip.Prefix) netip.Prefix {
	if a.Bits() >= b.Bits() {
		return a
	}
	return b
}

// distinctPorts decodes ports and ranges of ports that do not overlap.
func (d *decoder) distinctPorts(n *node, key string) ([]portrange.Range, bool) {
	before := len(d.errs)
	var all []portrange.Range
	d.each(n, key, func(n *node, s string) {
		p, bad := parsePortRange(s)
		if bad != nil {
			d.mistake(n, bad)
			return
		}
		if i := slices.IndexFunc(all, p.Overlaps); i >= 0 {
			d.errorf(n, "remove one of them", "%s has %s and %s, which overlap", key, all[i], p)
			return
		}
		all = append(all, p)
	})
	return all, len(d.errs) == before && d.atMost(n, key, len(all))
}

func (d *decoder) atMost(n *node, key string, length int) bool {
	if length > maxIntercepted {
		d.errorf(n, "make them wider, or make a second tunnel", "%s has %d entries, and at most %d are allowed", key, length, maxIntercepted)
	}
	return length <= maxIntercepted
}

// checkIntercept finds settings that do not go with an interception, and resets those
// that come from defaults.
func (d *decoder) checkIntercept(n *node, t *Tunnel) {
	if !t.Intercept.Enabled() {
		for _, key := range []string{"source", "refuse", "when_down"} {
			if v := n.lookup(key); v != nil && !(key == "source" && t.Original.Enabled()) {
				d.errorf(v, fmt.Sprintf("remove %s, or replace listen by intercept", key), "%s has no effect without intercept", key)
			}
		}
		return
	}
	clash := func(path, fix, problem string) { d.clash(n, path, fix, "%s", problem) }
	clash("pair_from", "make two tunnels", "pair_from takes the flows of near relays alone, and intercept those of routed clients")
	if t.Pair.Paired() {
		d.checkInterceptPair(n, t)
	}
	if !t.LeadsAsDialed() {
		clash("intercept.local_targets", "remove local_targets; "+leadsToForward(t), "local_targets has no effect with forward")
	}
	clash("check", "remove check; a tunnel with listen and the same target can have one", "check has no effect with intercept")
	clash("proxy_protocol.in", "remove it; the relay sees the client's own address", "proxy_protocol.in has no effect with intercept")
	t.ProxyIn, t.Check = ProxyIn{}, defaultCheck()
	if t.LeadsAsDialed() {
		d.checkOriginalHop(n, t, "intercept")
	} else if slices.ContainsFunc(t.Forward, func(f Forward) bool { return f.Ports.Len() > 1 }) {
		clash("forward", "give one port, or leave forward out", "forward with intercept cannot have a range of ports")
	}
	if t.Refuse == RefuseMirror {
		clash("pair", "remove refuse", "refuse: mirror has no effect with pair, whose far relay dials the target")
	}
	if t.Refuse == "" {
		t.Refuse = RefuseAfter
	}
	if t.Source == "" && !t.Pair.Paired() {
		t.Source = SourceClient
		if !t.LeadsAsDialed() {
			t.Source = SourceRelay
		}
	}
	switch v := n.lookup("when_down"); {
	case t.LeadsAsDialed():
		if v != nil {
			d.errorf(v, "remove when_down; a target that fails says nothing of the others", "when_down has no effect without forward")
		}
	case v == nil:
		t.WhenDown = WhenDownBypass
		if t.Pair.Paired() && t.Pair.Encrypt == EncryptOn {
			t.WhenDown = WhenDownRefuse
		}
	}
}

// leadsToForward says why it does not matter which address an intercepted client dialed.
func leadsToForward(t *Tunnel) string {
	if t.Pair.Paired() {
		return "the far relay dials the target, and its original has a local_targets of its own"
	}
	return "every flow leads to forward"
}

// warnBypass warns of a tunnel whose connections may pass a pair that encrypts.
func (d *decoder) warnBypass(n *node, t *Tunnel) {
	if !t.Pair.Paired() || t.Pair.Encrypt != EncryptOn || t.WhenDown != WhenDownBypass {
		return
	}
	d.warnings = append(d.warnings, &Error{n.lookup("when_down").at,
		fmt.Sprintf("the tunnel %s has when_down: bypass: while the pair is down, new connections cross the WAN unencrypted", t.Name),
		"remove when_down, unless the network between the sites is trusted"})
}

// checkInterceptPair finds settings that do not go with a pair behind an interception.
func (d *decoder) checkInterceptPair(n *node, t *Tunnel) {
	if t.LeadsAsDialed() {
		d.errorf(n.lookup("pair"), "add forward with the address of the far relay, such as forward: relay-b:6000", "the tunnel has pair and no forward")
	}
	if v := n.lookup("source"); v != nil {
		d.errorf(v, "remove source; the far relay's tunnel has it", "source has no effect with pair")
	}
}

// clash reports a setting of a tunnel at a dotted path, unless it is absent or off.
func (d *decoder) clash(n *node, path, fix, format string, args ...any) {
	for key := range strings.SplitSeq(path, ".") {
		n = n.lookup(key)
	}
	if n != nil && !(n.kind == scalar && n.text == Off) {
		d.errorf(n, fix, format, args...)
	}
}

// checkIntercepts finds tunnels that intercept the same connections.
func (d *decoder) checkIntercepts(tunnels []Tunnel) {
	var targets []netip.Prefix
	var owners []int // of targets, by their place in tunnels
	clients := make([]ipprefix.Ordered, len(tunnels))
	for i := range tunnels {
		clients[i] = ipprefix.Order(tunnels[i].Intercept.From)
		for _, p := range tunnels[i].Intercept.To {
			targets, owners = append(targets, p), append(owners, i)
		}
	}
	first := map[int]int{} // the first tunnel that a later one meets
	ipprefix.Overlapping(targets, func(a, b int) {
		i, j := min(owners[a], owners[b]), max(owners[a], owners[b])
		was, met := first[j]
		if i == j || met && was <= i {
			return
		}
		one, other := &tunnels[i].Intercept, &tunnels[j].Intercept
		if one.Interface == other.Interface && portrange.Overlap(one.Ports, other.Ports) &&
			(len(one.From) == 0 || len(other.From) == 0 || clients[i].Meets(clients[j])) {
			first[j] = i
		}
	})
	for j := range tunnels {
		if i, met := first[j]; met {
			d.errorf(d.intercepts[j], "give them other networks, ports or interfaces",
				"the tunnels %s and %s intercept the same connections", tunnels[i].Name, tunnels[j].Name)
		}
	}
}

package intercept

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"longhaul/internal/carry/intercept/hold"
	"longhaul/internal/sys/kernel"
	"longhaul/internal/sys/ledger"
	"longhaul/internal/sys/netfilter"
	"longhaul/internal/words/ipprefix"
	"longhaul/internal/words/portrange"
	"longhaul/internal/words/remedy"
)

// ErrNoInterface reports that this host has no interface of a tunnel's name. It comes
// wrapped.
var ErrNoInterface = errors.New("no such interface")

// Check returns the first thing on this host that interception would collide with, with
// its remedy, or a [*kernel.ErrUnsupported]. It changes nothing. What a relay of the
// same name left does not collide.
func (h *Host) Check(o Options) error {
	if o.IsEmpty() {
		return nil
	}
	if err := needPrivilege(); err != nil {
		return err
	}
	if bits.OnesCount32(o.mark()) != 1 {
		return remedy.New(fmt.Errorf("the mark %#x is not one bit", o.mark()), fmt.Sprintf("use one such as %#x", DefaultMark))
	}
	book, err := ledger.Read(h.Ledger)
	if err != nil {
		return err
	}
	c, err := newChecking(o)
	if err != nil {
		return err
	}
	defer c.close()
	c.book = book
	for _, step := range []func() error{
		c.modules, c.mirror, c.interfaces, c.bridges, c.relays, c.forwarding, c.reversePath, c.routingRules, c.routingTable, c.firewall,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// checking asks the kernel by one socket, once for each device and each prefix.
type checking struct {
	Options
	book    *ledger.Book
	kernel  *netlink.Handle
	devices map[string]netlink.Link // by name
	ways    map[netip.Prefix]routeDevice
}

// routeDevice is the device of a route; ok is false if the route names no device.
type routeDevice struct {
	index int
	ok    bool
}

func newChecking(o Options) (checking, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return checking{}, fmt.Errorf("ask the kernel for devices and routes: %w", err)
	}
	return checking{Options: o, kernel: h, devices: map[string]netlink.Link{}, ways: map[netip.Prefix]routeDevice{}}, nil
}

func (c checking) close() { c.kernel.Close() }

// device returns the interface of a tunnel.
func (c checking) device(t Tunnel) (netlink.Link, error) {
	if known := c.devices[t.Interface]; known != nil {
		return known, nil
	}
	device, err := c.kernel.LinkByName(t.Interface)
	if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
		return nil, remedy.New(fmt.Errorf("tunnel %s intercepts at %s: %w", t.Name, t.Interface, ErrNoInterface), "see ip link")
	}
	if err != nil {
		return nil, fmt.Errorf("find the interface %s of tunnel %s: %w", t.Interface, t.Name, err)
	}
	c.devices[t.Interface] = device
	return device, nil
}

// modules names a missing module, before Set needs it.
func (c checking) modules() error {
	if m, found := missingModule(neededModules); found {
		return kernel.LacksModule(unix.ENOENT, feature, m.name, m.option)
	}
	return nil
}

// mirror tries what only refuse: mirror needs.
func (c checking) mirror() error {
	if !slices.ContainsFunc(c.Tunnels, func(t Tunnel) bool { return t.Mirror }) {
		return nil
	}
	if m, found := missingModule([]neededModule{{"nft_reject_inet", "CONFIG_NFT_REJECT_INET"}}); found {
		return kernel.LacksModule(unix.ENOENT, "refuse: mirror", m.name, m.option)
	}
	return hold.Check()
}

func (c checking) interfaces() error {
	for _, t := range c.Tunnels {
		device, err := c.device(t)
		if err != nil {
			return err
		}
		for _, p := range t.From {
			if p.Bits() == 0 {
				continue
			}
			index, ok := c.routeTo(p.Masked())
			if !ok || index == device.Attrs().Index {
				continue // an unreachable client sends nothing
			}
			by := fmt.Sprint("interface ", index)
			if other, err := c.kernel.LinkByIndex(index); err == nil {
				by = other.Attrs().Name
			}
			return remedy.New(fmt.Errorf("tunnel %s intercepts at %s, but the route to its clients in %s goes by %s", t.Name, t.Interface, p, by),
				fmt.Sprintf("intercept at %s, or route %s by %s", by, p, t.Interface))
		}
	}
	return nil
}

// routeTo returns the device of the route to a prefix, by its first address that is not
// this host's.
func (c checking) routeTo(p netip.Prefix) (index int, ok bool) {
	found, known := c.ways[p]
	if !known {
		const tries = 4
		at := p
		for i := 0; i < tries && !found.ok; i++ {
			address := firstHost(at)
			routes, err := c.kernel.RouteGet(address.AsSlice())
			if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_UNICAST {
				found = routeDevice{routes[0].LinkIndex, true}
			}
			at = netip.PrefixFrom(address, p.Bits())
		}
		c.ways[p] = found
	}
	return found.index, found.ok
}

// firstHost is the next address in a prefix, the only one if it has no other.
func firstHost(p netip.Prefix) netip.Addr {
	if next := p.Addr().Next(); p.Contains(next) {
		return next
	}
	return p.Addr()
}

// relays finds another running relay that intercepts the same.
func (c checking) relays() error {
	here, err := ledger.Here()
	if err != nil {
		return err
	}
	for _, e := range c.book.Of(ledger.Intercept, here) {
		if e.Name == c.Relay || !slices.ContainsFunc(e.Claims, func(c ledger.Claim) bool { return !c.Ended() }) {
			continue
		}
		if err := c.shares(e.Name, ledger.Decode[Options](e.InForce()).Tunnels); err != nil {
			return err
		}
	}
	return nil
}

// shares finds a tunnel that intercepts connections of another relay's.
func (c checking) shares(relay string, others []Tunnel) (taken error) {
	var targets []netip.Prefix
	var owners []*Tunnel
	for _, all := range [][]Tunnel{c.Tunnels, others} {
		for i := range all {
			for _, p := range all[i].To {
				targets, owners = append(targets, p), append(owners, &all[i])
			}
		}
	}
	own := 0 // targets of this relay, which come first
	for i := range c.Tunnels {
		own += len(c.Tunnels[i].To)
	}
	ipprefix.Overlapping(targets, func(a, b int) {
		if a, b = min(a, b), max(a, b); taken != nil || a >= own || b < own {
			return
		}
		t, other := owners[a], owners[b]
		if t.Interface == other.Interface && portrange.Overlap(t.Ports, other.Ports) &&
			(len(t.From) == 0 || len(other.From) == 0 || ipprefix.Order(t.From).Meets(ipprefix.Order(other.From))) {
			taken = remedy.New(fmt.Errorf("tunnel %s intercepts connections that tunnel %s of relay %s also intercepts", t.Name, other.Name, relay),
				"give the two other prefixes, ports or interfaces")
		}
	})
	return taken
}

// sysctl reads a setting by its file below /proc/sys, since the names of devices have
// dots. It returns an empty string if the kernel does not have the setting.
func sysctl(file string) string {
	b, err := os.ReadFile("/proc/sys/" + file)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func (c checking) forwarding() error {
	for i, name := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
		f := families[i]
		intercepts := slices.ContainsFunc(c.Tunnels, func(t Tunnel) bool { return f.in(t.To) })
		if intercepts && sysctl(strings.ReplaceAll(name, ".", "/")) == "0" {
			return remedy.New(fmt.Errorf("%s is 0: without forwarding no connection passes while the relay is down", name), "sysctl -w "+name+"=1")
		}
	}
	return nil
}

// reversePath finds settings with which the kernel looks up the route back with the mark,
// finds this host and drops the packet. It does so even without a filter.
func (c checking) reversePath() error {
	if !c.has(families[0]) {
		return nil
	}
	names := append([]string{"all"}, interfaces(c.Tunnels)...)
	for _, d := range c.Dialers {
		for _, p := range d.To {
			if index, ok := c.routeTo(p.Masked()); ok && p.Bits() > 0 {
				if device, err := c.kernel.LinkByIndex(index); err == nil {
					names = append(names, device.Attrs().Name)
				}
			}
		}
	}
	for _, device := range names {
		name := "net.ipv4.conf." + device + ".src_valid_mark"
		if sysctl("net/ipv4/conf/"+device+"/src_valid_mark") == "1" {
			return remedy.New(fmt.Errorf("%s is 1, as wg-quick sets it: the kernel would drop intercepted packets by their mark", name),
				"sysctl -w "+name+"=0, and net.ipv4.conf.all.rp_filter=2 where a VPN needs it")
		}
	}
	return nil
}

// ours are the deliveries of relays, which share them.
func (c checking) ours() (all []delivery) {
	here, _ := ledger.Here()
	for _, e := range c.book.Of(ledger.Intercept, here) {
		all = append(all, ledger.Decode[[]delivery](e.Detail)...)
	}
	return all
}

func (c checking) routingRules() error {
	ours := c.ours()
	for _, d := range deliveries(c.Options) {
		rules, err := c.kernel.RuleList(d.Family)
		if err != nil {
			return fmt.Errorf("list routing rules: %w", err)
		}
		for _, r := range rules {
			if slices.ContainsFunc(ours, func(o delivery) bool { return o.Family == d.Family && o.isRule(r) }) {
				continue
			}
			mask := ^uint32(0)
			if r.Mask != nil {
				mask = *r.Mask
			}
			if r.Mark&mask&d.Mark != 0 {
				return markTaken(fmt.Sprintf("the routing rule of priority %d", r.Priority), d.Mark)
			}
			if r.Table == int(d.Table) {
				return tableTaken(fmt.Sprintf("the routing rule of priority %d looks up table %d", r.Priority, d.Table))
			}
		}
	}
	return nil
}

func markTaken(by string, bit uint32) error {
	return remedy.New(fmt.Errorf("%s uses the mark %#x", by, bit),
		"choose another bit for the relay: interception: {mark: 0x2000}, or one that no rule of ip rule and nft list ruleset has")
}

func tableTaken(by string) error {
	return remedy.New(errors.New(by), "choose another table for the relay: interception: {table: 1813}, or one for which ip route show table N prints nothing")
}

func (c checking) routingTable() error {
	for _, d := range deliveries(c.Options) {
		routes, err := d.routes()
		if err != nil {
			return err
		}
		shared := slices.Contains(c.ours(), d)
		for _, r := range routes {
			if !shared || !isDelivery(r) {
				return tableTaken(fmt.Sprintf("table %d has routes of another program", d.Table))
			}
		}
	}
	return nil
}

// firewall finds rules that use the mark, and input chains that drop what the relay must
// get.
func (c checking) firewall() error {
	rules, err := foreignRules()
	if err != nil {
		return err
	}
	for _, chain := range rules.Chains {
		for _, rule := range chain.Rules {
			accepts := chain.IsBase && chain.Hook == unix.NF_INET_LOCAL_IN || !chain.IsBase
			if rule.MarkBits()&c.mark() != 0 && !(accepts && rule.Accepts()) {
				return markTaken(fmt.Sprintf("a rule in %s", chain), c.mark())
			}
		}
	}
	for _, t := range c.Tunnels {
		for _, f := range families {
			p, ok := sample(t, f)
			if !ok {
				continue
			}
			p.Mark = c.mark()
			v, err := rules.Input(p)
			if err != nil {
				return err
			}
			if v.Outcome == netfilter.Rejected {
				return dropped(t, *v.Base, f, rules, c.mark())
			}
		}
	}
	return nil
}

// foreignRules are the rules of other programs.
func foreignRules() (*netfilter.Ruleset, error) {
	return netfilter.Read(func(family, table string) bool { return family == "inet" && strings.HasPrefix(table, tablePrefix) })
}

// sample is a client's first packet to the tunnel.
func sample(t Tunnel, f family) (p netfilter.Packet, ok bool) {
	if !f.in(t.To) {
		return p, false
	}
	p = netfilter.Packet{Interface: t.Interface, From: firstIn(f, t.From), To: firstIn(f, t.To), Port: 1024}
	if len(t.Ports) > 0 {
		p.Port = t.Ports[0].First
	}
	return p, true
}

// first returns the first prefix of the family.
func (f family) first(prefixes []netip.Prefix) (first netip.Prefix, ok bool) {
	for _, p := range prefixes {
		if f.in([]netip.Prefix{p}) {
			return p, true
		}
	}
	return first, false
}

func firstIn(f family, prefixes []netip.Prefix) netip.Addr {
	if p, ok := f.first(prefixes); ok {
		return firstHost(p.Masked())
	}
	if f.bits == 32 {
		return netip.AddrFrom4([4]byte{192, 0, 2, 1})
	}
	return netip.MustParseAddr("2001:db8::1")
}

// dropped says which chain drops a tunnel's packets of a family, and which rule lets them
// in.
func dropped(t Tunnel, chain netfilter.ChainName, f family, rules *netfilter.Ruleset, bit uint32) error {
	fix := fmt.Sprintf("nft insert rule %s meta mark and %#x == %#x accept", chain.Path(), bit, bit)
	has := func(name string) bool {
		return slices.ContainsFunc(rules.Chains, func(c *netfilter.Chain) bool {
			return c.Program == chain.Program && c.ChainName.Family == chain.Family && c.Name == name
		})
	}
	isINPUT := chain.Family != "inet" && chain.Name == "INPUT"
	switch {
	case chain.Program == netfilter.NFTables && chain.Table == "firewalld":
		// What an iptables rule accepts, as firewalld's direct rules are, firewalld rejects
		// all the same.
		fix = fmt.Sprintf("firewall-cmd --permanent --zone=\"$(firewall-cmd --get-zone-of-interface=%s || firewall-cmd --get-default-zone)\" --add-rich-rule='%s', likewise for its other networks, then firewall-cmd --reload; or put %s into a zone that accepts: firewall-cmd --permanent --zone=trusted --change-interface=%s",
			t.Interface, richRule(t, f), t.Interface, t.Interface)
	case isINPUT && (chain.Program == netfilter.Legacy || chain.Table == "filter"):
		program, six := "iptables", ""
		if chain.Family == "ip6" {
			program, six = "ip6tables", "6"
		}
		if chain.Program == netfilter.Legacy {
			program += "-legacy"
		}
		if chain.Table != "filter" {
			program += " -t " + chain.Table
		}
		match := fmt.Sprintf("-m mark --mark %#x/%#x -j ACCEPT", bit, bit)
		fix = fmt.Sprintf("%s -I INPUT %s", program, match)
		// Before its users' rules ufw drops packets whose destination is not this host.
		if ufw := "ufw" + six + "-before-input"; has(ufw) {
			fix = fmt.Sprintf("sed -i '/^-A %s -i lo/i -A %s %s' /etc/ufw/before%s.rules, then ufw reload", ufw, ufw, match, six)
		}
	}
	return remedy.New(fmt.Errorf("%s drops connections that tunnel %s intercepts", chain, t.Name), fix)
}

// richRule is firewalld's, for the first networks of a family.
func richRule(t Tunnel, f family) string {
	rule := fmt.Sprintf("rule family=%q", f.name)
	for _, side := range []struct {
		name     string
		prefixes []netip.Prefix
	}{{"source", t.From}, {"destination", t.To}} {
		if p, ok := f.first(side.prefixes); ok {
			rule += fmt.Sprintf(" %s address=%q", side.name, p)
		}
	}
	return rule + " accept"
}

// unrecorded returns the deliveries of a table of longhaul's without a record: those of
// the mark that its rules set.
func unrecorded(table string) (found []delivery, err error) {
	rules, err := netfilter.Read(nil)
	if err != nil {
		return nil, err
	}
	var mark uint32
	for _, c := range rules.Chains {
		if c.Program == netfilter.NFTables && c.ChainName.Family == "inet" && c.Table == table {
			for _, rule := range c.Rules {
				mark |= rule.MarkBits()
			}
		}
	}
	if mark == 0 {
		return nil, nil
	}
	for _, f := range families {
		rules, err := netlink.RuleList(f.rtnl)
		if err != nil {
			continue // a kernel without the family
		}
		for _, rule := range rules {
			d := delivery{f.rtnl, mark, uint32(rule.Table)}
			if d.isRule(rule) {
				found = append(found, d)
			}
		}
	}
	return found, nil
}

package config

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"longhaul/internal/words/sorted"
	"longhaul/internal/words/units"
)

// Bounds of values; the comment names the kernel's bound if there is one.
const (
	maxWorkers    = 1024
	maxFlows      = 10_000_000
	minMemory     = 1 << 20
	maxMemory     = 1 << 40
	maxSocketPath = 107 // sun_path less its terminator
	maxNameLength = 63
)

const (
	never    = time.Duration(0)
	forever  = time.Duration(-1)
	thirtyDs = 30 * 24 * time.Hour
)

// config decodes the whole tree.
func (d *decoder) config(root *node) Config {
	c := Default()
	c.Files = d.files
	base := DefaultSettings()
	off := forever

	// Decode defaults first, wherever the file has them.
	if n := root.lookup("defaults"); n != nil && n.kind != null {
		d.mapping(n, "defaults", d.settingsFields(&base)...)
		d.checkRise(n, base.Health)
	} else {
		d.mapping(&node{kind: mapping}, "defaults", d.settingsFields(&base)...)
	}

	var tunnels *node
	var listenNames []string
	d.mapping(root, "the configuration",
		into("name", &c.Name, d.relayName),
		into("control_socket", &c.ControlSocket, d.socketPath),
		into("drain_timeout", &c.DrainTimeout, d.duration(0, thirtyDs, &off)),
		into("half_close_timeout", &c.HalfCloseTimeout, d.duration(time.Millisecond, thirtyDs, &off)),
		into("reset_drain_timeout", &c.ResetDrainTimeout, d.duration(time.Millisecond, time.Hour, nil)),
		into("memory_limit", &c.MemoryLimit, d.memoryLimit),
		into("stall_timeout", &c.StallTimeout, d.duration(time.Second, time.Hour, &off)),
		field{"limits", func(n *node) { d.limits(n, &c.Limits) }},
		field{"http_listen", func(n *node) {
			if all, ok := d.httpListen(n, "http_listen"); ok {
				c.HTTPListen = all
				listenNames = namesOf(n)
			}
		}},
		into("http_names", &c.HTTPNames, d.httpNames),
		field{"http_web_config", d.webConfig("http_web_config", &c.HTTPWebConfig, nil)},
		into("health_listen", &c.HealthListen, d.httpListen),
		field{"metrics", func(n *node) {
			d.mapping(n, "metrics", into("detail", &c.Metrics.Detail, oneOf(d, DetailHop, DetailTunnel)))
		}},
		field{"dashboard", func(n *node) { d.dashboard(n, &c.Dashboard) }},
		field{"history", func(n *node) { d.history(n, &c.History) }},
		into("pair_keys", &c.PairKeys, d.pairKeys),
		field{"pair_trust", func(n *node) { d.pairTrust(n, &c.PairTrust) }},
		field{"interception", func(n *node) { d.interception(n, &c.Interception) }},
		into("workers", &c.Workers, d.workers),
		field{"log", func(n *node) {
			d.mapping(n, "log",
				into("format", &c.Log.Format, oneOf(d, "logfmt", "json")),
				into("level", &c.Log.Level, oneOf(d, "debug", "info", "warn", "error")))
		}},
		field{includeKey, func(*node) {}}, // read and put together before
		field{"defaults", func(*node) {}},
		field{"tunnels", func(n *node) { tunnels = n }},
	)
	c.HTTPNames = append(c.HTTPNames, listenNames...)
	d.checkTrust(root.lookup("pair_trust"), &c)
	if c.HTTPWebConfig.File != "" && len(c.HTTPListen) == 0 {
		d.errorf(root.lookup("http_web_config"), "add http_listen, or remove it", "http_web_config belongs to http_listen")
	}
	if c.Name != "" && c.ControlSocket != "" {
		d.errorf(root.lookup("name"), "leave one of them out", "name and control_socket both say where the control socket is")
	}
	switch {
	case root.kind != mapping:
	case tunnels == nil:
		if root.lookup("tunnels") == nil {
			d.errorf(root, "add a list with at least one tunnel: its name, listen and forward", "there are no tunnels")
		}
	case tunnels.kind != list:
		d.errorf(tunnels, "put a dash before each tunnel", "tunnels must be a list, not %s", tunnels.kind)
	case len(tunnels.items) == 0:
		d.errorf(tunnels, "add at least one tunnel: its name, listen and forward", "tunnels is empty")
	default:
		names := map[string]Position{}
		for _, n := range tunnels.items {
			c.Tunnels = append(c.Tunnels, d.tunnel(n, base, names))
		}
		d.checkClashes()
		d.warnPools(tunnels, c.Tunnels)
		d.warnKeys(&c, tunnels.items)
		if d.onHost {
			d.warnHost(c.Tunnels)
		}
		if len(d.errs) == 0 {
			d.checkIntercepts(c.Tunnels)
			d.checkLoops(c.Tunnels)
		}
	}
	d.inOrder(d.warnings)
	c.Warnings = d.warnings
	// The decoder read defaults out of order: sort the mistakes by position.
	d.inOrder(d.errs)
	return c
}

// inOrder sorts by position: the files of the configuration in their order, then those that they name.
func (d *decoder) inOrder(all []*Error) {
	place := func(e *Error) int {
		if i := slices.IndexFunc(d.files, func(f File) bool { return f.Path == e.At.File }); i >= 0 {
			return i
		}
		return len(d.files)
	}
	sorted.By(all, func(a, b *Error) int {
		return cmp.Or(place(a)-place(b), strings.Compare(a.At.File, b.At.File), a.At.Line-b.At.Line, a.At.Column-b.At.Column)
	})
}

func (d *decoder) socketPath(n *node, key string) (string, bool) {
	s, ok := d.text(n, key)
	switch {
	case !ok:
		return "", false
	case s == Off:
	case !filepath.IsAbs(s):
		d.errorf(n, "use an absolute path such as /run/longhaul/control.sock, or off", "%s cannot be %q", key, s)
		return "", false
	case len(s) > maxSocketPath:
		d.errorf(n, fmt.Sprintf("use one of at most %d bytes", maxSocketPath), "%s has %d bytes, too long for a unix socket", key, len(s))
		return "", false
	}
	return s, true
}

func (d *decoder) relayName(n *node, key string) (string, bool) {
	s, ok := d.tunnelName(n, key)
	if s == "lab" { // the socket of `longhaul lab`
		d.errorf(n, "use another name: the socket of longhaul lab has this one", "%s cannot be %q", key, s)
		return "", false
	}
	return s, ok
}

func (d *decoder) memoryLimit(n *node, key string) (units.Size, bool) {
	if n.kind == scalar && n.text == Off {
		return 0, true
	}
	return d.size(minMemory, maxMemory)(n, key)
}

func (d *decoder) workers(n *node, key string) (int, bool) {
	if n.kind == scalar && n.text == "auto" {
		return 0, true
	}
	return d.integer(1, maxWorkers)(n, key)
}

// tunnel decodes one entry of `tunnels`.
func (d *decoder) tunnel(n *node, base Settings, names map[string]Position) Tunnel {
	t := Tunnel{Settings: base}
	var listens []placedListen
	var forwards []*node
	fields := []field{
		into("name", &t.Name, d.tunnelName),
		{"listen", func(n *node) {
			d.each(n, "listen", func(n *node, s string) {
				found, bad := d.listen(s)
				if bad != nil {
					d.mistake(n, bad)
					return
				}
				d.keepName(s, found)
				for _, l := range found {
					listens = append(listens, placedListen{l, n, &t.Name, ""})
					t.Listen = append(t.Listen, l)
				}
			})
		}},
		{"intercept", func(n *node) { d.intercept(n, &t.Intercept) }},
		into("source", &t.Source, oneOf(d, SourceClient, SourceRelay)),
		into("refuse", &t.Refuse, oneOf(d, RefuseAfter, RefuseMirror)),
		into("when_down", &t.WhenDown, oneOf(d, WhenDownBypass, WhenDownRefuse)),
		{"forward", func(n *node) { t.Forward, t.Service, forwards = d.forwards(n) }},
		{"original", func(n *node) { d.original(n, &t.Original) }},
		{"pair", func(n *node) { d.pair(n, &t.Pair) }},
		{"pair_from", func(n *node) { d.pairFrom(n, &t.PairFrom) }},
		into("advertise", &t.PairFrom.Advertise, d.advertise),
		{"destinations", func(*node) {}}, // after what they replace
	}
	before := len(d.errs)
	d.mapping(n, "a tunnel", append(fields, d.settingsFields(&t.Settings)...)...)
	if n.kind != mapping {
		return t
	}
	d.destinations(n.lookup("destinations"), &t)
	for _, required := range []struct{ key, fix string }{
		{"name", "add a name; logs and status use it"},
		{"listen", "add where it listens, such as listen: 10.10.10.20:6000"},
		{"forward", "add where it leads, such as forward: rhel-vm-2:6000"},
	} {
		replaced := required.key != "name" && n.lookup("intercept") != nil || required.key == "forward" && n.lookup("original") != nil
		if n.lookup(required.key) == nil && !replaced {
			// The position of a tunnel from flags is the first flag.
			if n.at.Flag != "" {
				d.errs = append(d.errs, &Error{Position{Flag: "command line"}, "--" + required.key + " is missing", strings.Replace(required.fix, required.key+": ", "--"+required.key+" ", 1)})
				continue
			}
			d.errorf(n, required.fix, "the tunnel has no %s", required.key)
		}
	}
	if v := n.lookup("intercept"); v != nil && n.lookup("listen") != nil {
		d.errorf(v, "remove one, or make two tunnels", "a tunnel cannot listen and intercept")
	}
	if at, again := names[t.Name]; again && t.Name != "" {
		d.errorf(n.lookup("name"), "give each tunnel its own name", "the name %s is taken by the tunnel %s", t.Name, at.seenFrom(n.lookup("name").at))
	} else {
		names[t.Name] = n.at
	}
	if len(d.errs) == before {
		d.checkPorts(t, listens, forwards)
		d.checkIntercept(n, &t)
		d.checkOriginal(n, &t)
		d.checkPair(n, &t)
		d.checkSettings(n, t.Settings)
		if !t.Pair.Paired() {
			d.checkRise(n, t.Health)
		}
	}
	d.warnClear(n, &t)
	d.warnBypass(n, &t)
	d.warnLocalTargets(n, &t)
	if !t.PairFrom.Paired() && n.lookup("pair_from") == nil && (len(d.errs) == before || n.lookup("allow") == nil) { // only peers use the others
		d.warnOpen(t, listens)
	}
	d.listens = append(d.listens, listens...)
	d.forwardNodes = append(d.forwardNodes, forwards)
	d.services = append(d.services, n.lookup("forward"))
	d.intercepts = append(d.intercepts, n.lookup("intercept"))
	return t
}

func (d *decoder) listen(s string) ([]Listen, *mistake) {
	ctx, cancel := context.WithTimeout(d.ctx, resolveTimeout)
	defer cancel()
	return d.loader.parseListen(ctx, s)
}

func (d *decoder) tunnelName(n *node, key string) (string, bool) {
	s, ok := d.text(n, key)
	if !ok {
		return "", false
	}
	valid := s != "" && len(s) <= maxNameLength
	for _, c := range s {
		valid = valid && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("-_.", c))
	}
	if !valid {
		d.errorf(n, fmt.Sprintf("use 1 to %d letters, digits, hyphens, underscores and dots", maxNameLength), "%s cannot be %q", key, s)
	}
	return s, valid
}

// settingsFields lists the keys that tunnels and defaults share.
func (d *decoder) settingsFields(s *Settings) []field {
	off := never
	return []field{
		into("allow", &s.Allow, d.prefixes),
		into("max_flows", &s.MaxFlows, d.flowLimit),
		into("max_flows_per_source", &s.MaxFlowsPerSource, orOff(-1, d.integer(1, maxFlows))),
		into("new_flows_per_second", &s.NewFlowsPerSecond, d.perSecond),
		into("new_flows_per_second_per_source", &s.NewFlowsPerSecondPerSource, orOff(-1, d.sourcePerSecond)),
		into("connect_timeout", &s.ConnectTimeout, d.duration(time.Millisecond, time.Hour, nil)),
		into("idle_timeout", &s.IdleTimeout, d.duration(time.Millisecond, thirtyDs, &off)),
		into("balance", &s.Balance, oneOf(d, BalanceOrdered, BalanceLeastFlows, BalanceRoundRobin, BalanceSource)),
		{"health", func(n *node) { d.health(n, &s.Health) }},
		{"proxy_protocol", func(n *node) { d.proxyProtocol(n, s) }},
		{"check", func(n *node) { d.check(n, &s.Check) }},
		into("transport", &s.Transport, oneOf(d, TransportAuto, TransportKernel)),
		into("wan_side", &s.WANSide, oneOf(d, WANAuto, WANListen, WANForward, WANBoth, WANNone)),
		{"lan", func(n *node) { d.leg(n, "lan", &s.LAN) }},
		{"wan", func(n *node) { d.leg(n, "wan", &s.WAN) }},
	}
}

func (d *decoder) flowLimit(n *node, key string) (int, bool) {
	if n.kind == scalar && n.text == "0" {
		d.errorf(n, "remove the line for no bound; to let nobody in, remove the tunnel", "%s cannot be 0", key)
		return 0, false
	}
	return d.integer(1, maxFlows)(n, key)
}

func (d *decoder) perSecond(n *node, key string) (float64, bool) {
	s, ok := d.text(n, key)
	if !ok {
		return 0, false
	}
	v, err := strconv.ParseFloat(s, 64)
	switch {
	case err != nil || math.IsNaN(v) || strings.Trim(s, "0123456789.") != "":
		d.errorf(n, "use a number such as 200 or 0.5", "%s must be a number, not %q", key, s)
	case v < 0.001 || v > 1e7:
		d.errorf(n, "use 0.001 to 10000000, or remove the line for no bound", "%s cannot be %s", key, s)
	default:
		return v, true
	}
	return 0, false
}

// sourcePerSecond decodes a rate of at least one per second.
func (d *decoder) sourcePerSecond(n *node, key string) (float64, bool) {
	v, ok := d.perSecond(n, key)
	if ok && v < 1 {
		d.errorf(n, "use 1 or more, or off for no bound", "%s cannot be %s", key, n.text)
		return 0, false
	}
	return v, ok
}

// orOff decodes "off" as a given value, and everything else with read.
func orOff[T any](off T, read func(*node, string) (T, bool)) func(*node, string) (T, bool) {
	return func(n *node, key string) (T, bool) {
		if n.kind == scalar && n.text == "off" {
			return off, true
		}
		return read(n, key)
	}
}

func (d *decoder) proxyProtocol(n *node, s *Settings) {
	d.mapping(n, "proxy_protocol",
		field{"in", func(n *node) {
			d.mapping(n, "proxy_protocol.in", field{"trusted", func(n *node) {
				if n.kind == scalar && n.text == "any" {
					s.ProxyIn = ProxyIn{Required: true}
					return
				}
				if trusted, ok := d.prefixes(n, "trusted"); ok {
					s.ProxyIn = ProxyIn{Required: true, Trusted: trusted}
				}
			}})
			if n.kind == mapping && n.lookup("trusted") == nil {
				d.errorf(n, "add trusted: with the sources that send the header, or trusted: any", "proxy_protocol.in has no trusted sources")
			}
		}},
		field{"out", func(n *node) {
			versions := []string{Off, "v1", "v2"}
			if v, ok := oneOf(d, versions...)(n, "out"); ok {
				s.ProxyOut = slices.Index(versions, v)
			}
		}},
	)
}

// placedListen is a listening address with its position.
type placedListen struct {
	Listen
	at     *node
	tunnel *string // its name; nil: the address belongs to a server
	server string  // its key, such as http_listen
}

// overlaps is [Listen.overlaps], but that [::] takes IPv4 beside 0.0.0.0 as well if one belongs to a server: only
// tunnels share them out.
func (l placedListen) overlaps(o placedListen) bool {
	server := l.tunnel == nil || o.tunnel == nil
	return l.Listen.overlaps(o.Listen) || server && l.Addr.IsUnspecified() && o.Addr.IsUnspecified() && l.Ports.Overlaps(o.Ports)
}

// checkPorts compares a tunnel's port ranges: all listening addresses need
// equal ports, and every target as many. Between a pair there is one port: the near
// tunnel has the range in listen, and the far one in forward.
func (d *decoder) checkPorts(t Tunnel, listens []placedListen, forwards []*node) {
	if len(listens) == 0 {
		return
	}
	ports := listens[0].Ports
	for i, l := range listens {
		if l.Ports == ports {
			continue
		}
		if !slices.ContainsFunc(listens[:i], func(o placedListen) bool { return l.overlaps(o) }) { // else checkClashes says so
			d.errorf(l.at, "listen on the same ports everywhere, or make a second tunnel", "the tunnel listens on ports %s and on ports %s", ports, l.Ports)
		}
		return
	}
	if t.PairFrom.Paired() && ports.Len() > 1 {
		ports.Last = ports.First
		d.errorf(listens[0].at, fmt.Sprintf("write %s; the near tunnel's listen and this tunnel's forward have the range", Listen{listens[0].Addr, ports}),
			"a tunnel with pair_from listens on one port, the pair's, and not on %s", listens[0].Ports)
		return
	}
	if t.Service != "" && !t.Pair.Paired() && ports.Len() > 1 {
		d.errorf(listens[0].at, "listen on one port, or write the hops with their ranges in forward",
			"listen has %s, and an SRV record of %s gives one", count(ports.Len(), "port"), t.Service)
		return
	}
	n, unequal := ports.Len(), "listen has %s and forward has %s"
	switch {
	case t.Pair.Paired():
		n = 1
	case t.PairFrom.Paired() && len(t.Forward) > 0:
		n, unequal = t.Forward[0].Ports.Len(), "the first hop has %s and this one has %s"
	}
	for i, f := range t.Forward {
		if f.Ports.Len() == n {
			continue
		}
		if t.Pair.Paired() {
			f.Ports.Last = f.Ports.First
			d.errorf(forwards[i], fmt.Sprintf("write %s, the far relay's one port; the far tunnel's forward has the range", f),
				"a tunnel with pair leads to one port, the pair's, and not to %s", t.Forward[i].Ports)
			continue
		}
		high := int(f.Ports.First) + n - 1
		fix := "use fewer ports; they map one to one"
		if high <= 65535 {
			f.Ports.Last = uint16(high)
			fix = fmt.Sprintf("write %s; ports map one to one", f)
		}
		d.errorf(forwards[i], fix, unequal, count(n, "port"), count(t.Forward[i].Ports.Len(), "port"))
	}
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// checkClashes finds listening addresses that one host cannot have at the same
// time.
func (d *decoder) checkClashes() {
	for i, first := range firstClashes(d.listens) {
		if first == i {
			continue
		}
		l, o := d.listens[i], d.listens[first]
		other := "of " + o.server
		switch {
		case o.tunnel == nil:
		case o.tunnel == l.tunnel:
			other = "of the same tunnel"
		default:
			other = fmt.Sprintf("of tunnel %s", *o.tunnel)
		}
		where := ""
		if o.at.at.Line > 0 {
			where = " " + o.at.at.seenFrom(l.at.at)
		}
		fix := "change one of them, or remove it"
		switch {
		case l.Addr == o.Addr:
		case l.Addr.IsUnspecified() && o.Addr.IsUnspecified():
			fix = "[::] also takes IPv4; remove one of them, or use another port"
		default:
			fix = "a wildcard takes every address of the host; name the addresses, or use another port"
		}
		d.errorf(l.at, fix, "%s clashes with %s %s%s", l.Listen, o.Listen, other, where)
	}
}

// firstClashes returns for each listening address the index of the first one before it that it overlaps; its
// own index: none. A file may have tens of thousands of them, too many to compare each with each. Two ranges
// overlap if and only if one has the first port of the other, so that no other ports are looked at.
func firstClashes(all []placedListen) []int {
	var begins [1 << 16]bool // the first ports of ranges
	for _, l := range all {
		begins[l.Ports.First] = true
	}
	// The first one on a port of an address, also of servers alone, and on a port of the addresses that a
	// wildcard covers.
	on, ofServers, below := map[netip.AddrPort]int{}, map[netip.AddrPort]int{}, map[netip.AddrPort]int{}
	found := make([]int, len(all))
	for i, l := range all {
		found[i] = i
		for port := int(l.Ports.First); port <= int(l.Ports.Last); port++ {
			if !begins[port] {
				continue
			}
			look := func(firsts map[netip.AddrPort]int, a netip.Addr) {
				if o, has := firsts[netip.AddrPortFrom(a, uint16(port))]; has {
					found[i] = min(found[i], o)
				}
			}
			enter := func(firsts map[netip.AddrPort]int, a netip.Addr) {
				at := netip.AddrPortFrom(a, uint16(port))
				if _, has := firsts[at]; !has {
					firsts[at] = i
				}
			}
			look(on, l.Addr)
			look(below, l.Addr) // there if it is a wildcard
			enter(on, l.Addr)
			others := ofServers
			if l.tunnel == nil {
				enter(ofServers, l.Addr)
				others = on
			}
			for _, wildcard := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
				if l.Addr.IsUnspecified() {
					look(others, wildcard)
				}
				if covers(wildcard, l.Addr) {
					look(on, wildcard)
					enter(below, wildcard)
				}
			}
		}
	}
	return found
}

// checkSettings finds settings of a tunnel that contradict each other. Settings
// from defaults may have no effect: other tunnels use them.
func (d *decoder) checkSettings(n *node, s Settings) {
	d.checkSettingsOfCheck(n, s.Check)
	d.checkHealth(n, s)
	if s.Transport == TransportKernel {
		for _, key := range []string{"lan", "wan", "wan_side"} {
			if v := n.lookup(key); v != nil {
				d.errorf(v, fmt.Sprintf("remove %s, or transport: kernel", key), "%s has no effect with transport: kernel", key)
			}
		}
	}
	if v := n.lookup("wan"); v != nil && s.WANSide == WANNone {
		d.errorf(v, "remove wan, or choose another wan_side", "wan has no effect with wan_side: none")
	}
	if v := n.lookup("lan"); v != nil && s.WANSide == WANBoth {
		d.errorf(v, "remove lan, or choose another wan_side", "lan has no effect with wan_side: both")
	}
	if s.Transport == TransportAuto && s.WANSide == WANAuto && s.LAN.MSS != s.WAN.MSS {
		at := n
		for _, leg := range []string{"lan", "wan"} {
			if v := n.lookup(leg).lookup("mss"); v != nil {
				at = v
			}
		}
		d.errorf(at, "say which side is the WAN with wan_side, or give lan and wan the same mss",
			"lan and wan differ in mss, which is announced before the round-trip time tells them apart")
	}
	if len(s.Allow) > 0 {
		for _, p := range s.ProxyIn.Trusted {
			if !slices.ContainsFunc(s.Allow, func(a netip.Prefix) bool { return a.Overlaps(p) }) {
				at := n // both may come from defaults
				for _, key := range []string{"allow", "proxy_protocol"} {
					if v := n.lookup(key); v != nil {
						at = v
					}
				}
				d.errorf(at, fmt.Sprintf("add %s to allow, or remove it from trusted", p), "trusted source %s is not allowed to connect", p)
			}
		}
	}
}

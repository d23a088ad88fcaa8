package config

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"longhaul/internal/words/units"
)

// Limit is the threshold at which a resource is short: a share of the total, or
// an amount. The zero value is no limit.
type Limit struct {
	Share  float64 // above 0, at most 1
	Amount int64   // descriptors, or bytes
}

// Limits are the thresholds at which new flows are refused because a resource
// is short.
type Limits struct {
	Descriptors  Limit // of the process, against its limit of open files
	Memory       Limit // resident, of the process
	CgroupMemory Limit // of its control groups, against their limits
	TCPMemory    Limit // of the machine, against net.ipv4.tcp_mem
	CPU          Limit // of the process, against the CPUs that it may use
}

// DefaultLimits prevent only real harm. A process without descriptors cannot
// accept. A process at its control group's memory limit is killed with every
// flow. At TCP's memory limit the kernel drops segments of established flows.
// Large resident memory and busy CPUs may be intended, so they have no default
// limit.
func DefaultLimits() Limits {
	const share = 0.9
	return Limits{Descriptors: Limit{Share: share}, CgroupMemory: Limit{Share: share}, TCPMemory: Limit{Share: share}}
}

// Bounds of the limits that are amounts.
const (
	minDescriptors = 64
	maxDescriptors = 1 << 30
	minResident    = 4 << 20 // the idle program uses half of it
)

func (d *decoder) limits(n *node, l *Limits) {
	d.mapping(n, "limits",
		into("descriptors", &l.Descriptors, d.limit("90% or 50000", true, func(n *node, key string) (int64, bool) {
			v, ok := d.integer(minDescriptors, maxDescriptors)(n, key)
			return int64(v), ok
		})),
		into("memory", &l.Memory, d.limit("512MiB", false, d.bytes(minResident))),
		into("cgroup_memory", &l.CgroupMemory, d.limit("90%", true, nil)),
		into("tcp_memory", &l.TCPMemory, d.limit("90% or 2GiB", true, d.bytes(minMemory))),
		into("cpu", &l.CPU, d.limit("95%", true, nil)),
	)
}

func (d *decoder) bytes(low units.Size) func(*node, string) (int64, bool) {
	return func(n *node, key string) (int64, bool) {
		v, ok := d.size(low, maxMemory)(n, key)
		return int64(v), ok
	}
}

// limit decodes off, a share if shares is set, or an amount if amount is not
// nil.
func (d *decoder) limit(example string, shares bool, amount func(*node, string) (int64, bool)) func(*node, string) (Limit, bool) {
	return func(n *node, key string) (Limit, bool) {
		s, ok := d.text(n, key)
		if !ok {
			return Limit{}, false
		}
		if s == Off {
			return Limit{}, true
		}
		number, percent := strings.CutSuffix(s, "%")
		switch {
		case percent && shares:
			v, err := strconv.ParseFloat(number, 64)
			switch {
			case err != nil || math.IsNaN(v) || strings.Trim(number, "0123456789.") != "":
				d.errorf(n, "write it like "+example+", or off", "%s cannot be %q", key, s)
			case v < 1 || v > 100:
				d.errorf(n, "use 1% to 100%, or off", "%s cannot be %s", key, s)
			default:
				return Limit{Share: v / 100}, true
			}
			return Limit{}, false
		case percent || amount == nil:
			d.errorf(n, "write it like "+example+", or off", "%s cannot be %q", key, s)
			return Limit{}, false
		}
		v, ok := amount(n, key)
		return Limit{Amount: v}, ok
	}
}

// httpListen decodes the addresses of the HTTP server.
func (d *decoder) httpListen(n *node, key string) ([]netip.AddrPort, bool) {
	if n.kind == scalar && n.text == Off {
		return nil, true
	}
	before := len(d.errs)
	var all []netip.AddrPort
	d.each(n, key, func(n *node, s string) {
		found, bad := d.listen(s)
		if bad == nil && found[0].Ports.Len() > 1 {
			bad = &mistake{fmt.Sprintf("%s takes one port, not %s", key, found[0].Ports), "write one, such as 127.0.0.1:9463"}
		}
		if bad != nil {
			d.mistake(n, bad)
			return
		}
		for _, l := range found {
			d.listens = append(d.listens, placedListen{l, n, nil, key})
			all = append(all, netip.AddrPortFrom(l.Addr, l.Ports.First))
		}
	})
	return all, len(d.errs) == before
}

// httpNames decodes host names.
func (d *decoder) httpNames(n *node, key string) ([]string, bool) {
	before := len(d.errs)
	var all []string
	d.each(n, key, func(n *node, s string) {
		name := hostName(s)
		if name == "" || strings.ContainsFunc(name, func(c rune) bool {
			return !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || strings.ContainsRune("-_.", c))
		}) {
			d.errorf(n, "write a host name without a port, such as relay-a.example.net", "%s cannot be %q", key, s)
			return
		}
		all = append(all, name)
	})
	return all, len(d.errs) == before
}

// namesOf returns the host names in a list of addresses.
func namesOf(n *node) (names []string) {
	items := n.items
	if n.kind == scalar {
		items = []*node{n}
	}
	for _, item := range items {
		host, _, err := net.SplitHostPort(item.text)
		if err != nil || host == "" {
			continue
		}
		if _, err := netip.ParseAddr(host); err != nil {
			names = append(names, hostName(host))
		}
	}
	return names
}

// hostName normalizes a name for comparison.
func hostName(s string) string { return strings.ToLower(strings.TrimSuffix(s, ".")) }

package intercept

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// rulePriority is the place of the routing rule: after the kernel's own addresses and
// before everything that routes elsewhere.
const rulePriority = 1812

// delivery is a routing rule with its table, which deliver marked packets to this host.
type delivery struct {
	Family int    `json:"family"` // AF_INET
	Mark   uint32 `json:"mark"`
	Table  uint32 `json:"table"`
}

// deliveries returns what o needs.
func deliveries(o Options) (all []delivery) {
	for _, f := range families {
		if o.has(f) {
			all = append(all, delivery{f.rtnl, o.mark(), o.table()})
		}
	}
	return all
}

// commands returns the arguments of ip that make the delivery.
func (d delivery) commands() []string {
	flag := "-4"
	if d.Family == unix.AF_INET6 {
		flag = "-6"
	}
	return []string{
		fmt.Sprintf("%s route add local default dev lo table %d", flag, d.Table),
		fmt.Sprintf("%s rule add pref %d fwmark %#x/%#x lookup %d", flag, rulePriority, d.Mark, d.Mark, d.Table),
	}
}

// add makes the delivery. The route comes first: a rule without one would pass packets on
// to the next rule.
func (d delivery) add() error {
	route, err := d.route()
	if err != nil {
		return err
	}
	if err := netlink.RouteAdd(route); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add the local route of table %d: %w", d.Table, err)
	}
	if err := netlink.RuleAdd(d.rule()); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add the routing rule for mark %#x: %w", d.Mark, err)
	}
	return nil
}

// remove takes the delivery away, also one that is not complete.
func (d delivery) remove() error {
	if err := netlink.RuleDel(d.rule()); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("delete the routing rule for mark %#x: %w", d.Mark, err)
	}
	route, err := d.route()
	if err != nil {
		return err
	}
	if err := netlink.RouteDel(route); err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete the local route of table %d: %w", d.Table, err)
	}
	return nil
}

func (d delivery) rule() *netlink.Rule {
	mask := d.Mark
	r := netlink.NewRule()
	r.Family, r.Priority, r.Table = d.Family, rulePriority, int(d.Table)
	r.Mark, r.Mask = d.Mark, &mask
	return r
}

func (d delivery) route() (*netlink.Route, error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, fmt.Errorf("find the loopback device: %w", err)
	}
	everywhere := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	if d.Family == unix.AF_INET6 {
		everywhere = &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	return &netlink.Route{
		LinkIndex: lo.Attrs().Index, Dst: everywhere, Table: int(d.Table), Type: unix.RTN_LOCAL,
		Scope: unix.RT_SCOPE_HOST, Protocol: unix.RTPROT_BOOT,
	}, nil
}

// stands reports whether the rule and the route are there.
func (d delivery) stands() (rule, route bool, err error) {
	rules, err := netlink.RuleList(d.Family)
	if err != nil {
		return false, false, fmt.Errorf("list routing rules: %w", err)
	}
	routes, err := d.routes()
	return slices.ContainsFunc(rules, d.isRule), slices.ContainsFunc(routes, isDelivery), err
}

func (d delivery) isRule(r netlink.Rule) bool {
	return r.Table == int(d.Table) && r.Priority == rulePriority && r.Mark == d.Mark && r.Mask != nil && *r.Mask == d.Mark
}

// routes returns all routes of the table.
func (d delivery) routes() ([]netlink.Route, error) {
	routes, err := netlink.RouteListFiltered(d.Family, &netlink.Route{Table: int(d.Table)}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list the routes of table %d: %w", d.Table, err)
	}
	return routes, nil
}

func isDelivery(r netlink.Route) bool {
	everything := r.Dst == nil
	if !everything {
		ones, _ := r.Dst.Mask.Size()
		everything = ones == 0
	}
	return r.Type == unix.RTN_LOCAL && everything
}

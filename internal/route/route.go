// Package route sets TCP's settings per destination, as metrics of routes in the main
// routing table. It changes only metrics of a route. It records the previous ones, and
// restores them.
package route

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"longhaul/internal/kernel"
)

// protocol marks this package's routes: "ip route show proto 108".
const protocol = 108

// userPriorityIPv6 is the default metric of IPv6 routes.
const userPriorityIPv6 = 1024

// Table is the main routing table of the calling thread's network namespace.
// Its methods may be called from several processes at once.
type Table struct {
	Undo string // directory with the previous metrics
}

// Errors that callers distinguish. Each comes wrapped.
var (
	ErrNoRoute = errors.New("no route")
	// ErrExpires: others renew the route, and changes to it would be lost.
	ErrExpires = errors.New("the route comes from router advertisements and expires")
	ErrNotUsed = errors.New("longhaul has set nothing for it")
	// ErrOtherHop: the prefix's own route has another next hop.
	ErrOtherHop = errors.New("the route has another next hop")
)

// Change is a change of a prefix's route.
type Change struct {
	Prefix  netip.Prefix
	Metrics map[Metric]Value
	// Via and Device choose the next hop of a new route. If they are zero it is the
	// next hop of the route that covers the prefix. An existing route must already
	// have them.
	Via    netip.Addr
	Device string
}

// Result is the result of [Table.Set].
type Result struct {
	Setting
	Changed bool // false: already so
	// Elsewhere are longer prefixes within, whose own routes keep other settings.
	Elsewhere []netip.Prefix
	// Effective: a packet to the prefix takes the route. Policy routing may decide
	// otherwise.
	Effective bool
}

// Set sets metrics of a prefix's own route. If there is none it adds one, with the next
// hop of the route that covers the prefix. Earlier settings of the prefix stay unless
// set again.
func (t *Table) Set(c Change) (Result, error) {
	prefix, err := check(c.Prefix)
	if err != nil {
		return Result{}, err
	}
	if len(c.Metrics) == 0 {
		return Result{}, errors.New("missing metric")
	}
	for _, name := range slices.Sorted(maps.Keys(c.Metrics)) {
		if err := CheckValue(name, c.Metrics[name], prefix); err != nil {
			return Result{}, err
		}
	}
	if err := needNetAdmin(); err != nil {
		return Result{}, err
	}
	r, err := t.open()
	if err != nil {
		return Result{}, err
	}
	defer r.close()
	routes, err := dump(familyOf(prefix))
	if err != nil {
		return Result{}, err
	}
	now, flags, err := plan(routes, c)
	if err != nil {
		return Result{}, err
	}
	if err := now.checkMTU(c.Metrics); err != nil {
		return Result{}, err
	}
	setting := Setting{Prefix: prefix, Priority: now.priority(), Made: now.header.Protocol == protocol}
	i := r.find(prefix)
	if i >= 0 && r.settings[i].Priority == setting.Priority && r.settings[i].Made == setting.Made {
		setting = r.settings[i].clone()
	}
	result := Result{Elsewhere: within(routes, c)}
	result.Changed = flags != unix.NLM_F_REPLACE
	for name, value := range c.Metrics {
		former := now.metric(name)
		setting.note(name, value, former)
		result.Changed = result.Changed || former != value
		if err := now.setMetric(name, value); err != nil {
			return Result{}, err
		}
	}
	if result.Changed || setting.Made {
		// First the record, so that every change has one.
		if i >= 0 {
			r.settings[i] = setting
		} else {
			r.settings = append(r.settings, setting)
		}
		if err := r.write(); err != nil {
			return Result{}, err
		}
	}
	if result.Changed {
		if err := change(unix.RTM_NEWROUTE, flags, now); err != nil {
			return Result{}, fmt.Errorf("set the route to %s: %w", prefix, err)
		}
	}
	result.Setting = setting
	result.Effective = effective(c)
	return result, nil
}

// plan finds the route to change, or makes the route to add, with the flags of the
// netlink request.
func plan(routes []message, c Change) (message, int, error) {
	prefix := c.Prefix
	var exact, cover *message
	for i := range routes {
		m := &routes[i]
		dst, _ := m.destination()
		switch {
		case dst == prefix:
			if exact == nil || m.priority() < exact.priority() {
				exact = m
			}
		case dst.Bits() < prefix.Bits() && dst.Contains(prefix.Addr()):
			if cover == nil || m.header.Dst_len > cover.header.Dst_len ||
				m.header.Dst_len == cover.header.Dst_len && m.priority() < cover.priority() {
				cover = m
			}
		}
	}
	hop, err := c.nextHop()
	if err != nil {
		return message{}, 0, err
	}
	switch {
	case exact != nil && exact.expires():
		return message{}, 0, fmt.Errorf("%s: %w", prefix, ErrExpires)
	case exact != nil && !hop.isOf(*exact):
		return message{}, 0, fmt.Errorf("%s: %w", prefix, ErrOtherHop)
	case exact != nil:
		return exact.clone(), unix.NLM_F_REPLACE, nil
	case cover == nil && !hop.given():
		return message{}, 0, fmt.Errorf("%w to %s in the main table", ErrNoRoute, prefix)
	}
	var made message
	if hop.given() {
		made = hop.route()
	} else {
		made = cover.clone()
	}
	made.setDestination(prefix)
	made.set(unix.RTA_PRIORITY, nil)
	if made.header.Family == unix.AF_INET6 {
		// The kernel's default, which undo looks for.
		made.set(unix.RTA_PRIORITY, binary.NativeEndian.AppendUint32(nil, userPriorityIPv6))
	}
	made.header.Protocol = protocol
	return made, unix.NLM_F_CREATE | unix.NLM_F_EXCL, nil
}

// nextHop is the next hop of a route.
type nextHop struct {
	via    netip.Addr
	device int // index; 0 if none
	is6    bool
}

func (c Change) nextHop() (nextHop, error) {
	hop := nextHop{via: c.Via, is6: c.Prefix.Addr().Is6()}
	if c.Via.IsValid() && c.Via.Is6() != hop.is6 {
		return hop, fmt.Errorf("the next hop %s and the prefix %s are of different IP versions", c.Via, c.Prefix)
	}
	if c.Device != "" {
		device, err := net.InterfaceByName(c.Device)
		if err != nil {
			return hop, fmt.Errorf("no such device: %s", c.Device)
		}
		hop.device = device.Index
	}
	return hop, nil
}

func (h nextHop) given() bool { return h.via.IsValid() || h.device != 0 }

// isOf reports whether a route has this next hop.
func (h nextHop) isOf(m message) bool {
	return (!h.via.IsValid() || slices.Equal(m.get(unix.RTA_GATEWAY), h.via.AsSlice())) &&
		(h.device == 0 || int(m.uint32(unix.RTA_OIF)) == h.device)
}

// route returns a route to everywhere over the next hop.
func (h nextHop) route() message {
	m := message{header: unix.RtMsg{Family: unix.AF_INET, Table: unix.RT_TABLE_MAIN, Type: unix.RTN_UNICAST}}
	if h.is6 {
		m.header.Family = unix.AF_INET6
	}
	if h.via.IsValid() {
		m.set(unix.RTA_GATEWAY, h.via.AsSlice())
	} else {
		m.header.Scope = unix.RT_SCOPE_LINK
	}
	if h.device != 0 {
		m.set(unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, uint32(h.device)))
	}
	return m
}

// checkMTU refuses an MTU above the device's: the kernel would make packets that it
// cannot send.
func (m message) checkMTU(metrics map[Metric]Value) error {
	want, ok := metrics[MTU]
	if !ok {
		return nil
	}
	device, err := net.InterfaceByIndex(int(m.uint32(unix.RTA_OIF)))
	if err == nil && int(want.Number) > device.MTU {
		return fmt.Errorf("mtu is %d, and %s carries %d: give the route at most that", want.Number, device.Name, device.MTU)
	}
	return nil
}

// Unset restores metrics of a prefix's route from before [Table.Set], all if none is
// named. Later changes of others stay.
func (t *Table) Unset(prefix netip.Prefix, names ...Metric) (Setting, error) {
	prefix, err := check(prefix)
	if err != nil {
		return Setting{}, err
	}
	if err := needNetAdmin(); err != nil {
		return Setting{}, err
	}
	r, err := t.open()
	if err != nil {
		return Setting{}, err
	}
	defer r.close()
	i := r.find(prefix)
	if i < 0 {
		return Setting{}, fmt.Errorf("%s: %w", prefix, ErrNotUsed)
	}
	undone, left := r.settings[i].split(names)
	if len(undone.Metrics) == 0 {
		return Setting{}, fmt.Errorf("%s: %w", prefix, ErrNotUsed)
	}
	if err := putBack(undone, len(left.Metrics) == 0); err != nil {
		return Setting{}, fmt.Errorf("restore the route to %s: %w", prefix, err)
	}
	if len(left.Metrics) > 0 {
		r.settings[i] = left
		undone.Made = false // the route stays
	} else {
		r.settings = slices.Delete(r.settings, i, i+1)
	}
	return undone, r.write()
}

// putBack restores a setting, and removes the route if it was added only for that.
func putBack(s Setting, last bool) error {
	routes, err := dump(familyOf(s.Prefix))
	if err != nil {
		return err
	}
	for _, m := range routes {
		dst, _ := m.destination()
		if dst != s.Prefix || m.priority() != s.Priority {
			continue
		}
		if s.Made && last && m.header.Protocol == protocol {
			return change(unix.RTM_DELROUTE, 0, m)
		}
		m = m.clone()
		changed := false
		for name, done := range s.Metrics {
			now := m.metric(name)
			// The kernel does not report the name of an unloaded
			// algorithm.
			gone := name == CongestionControl && now.Name == ""
			if now != done.Set && !gone && (done.Replaces == nil || now != *done.Replaces) && !now.sameButLock(done.Set) {
				continue // another owner has set another one
			}
			if now == done.Former && !gone {
				continue
			}
			changed = true
			if err := m.setMetric(name, done.Former); err != nil {
				return err
			}
		}
		if !changed {
			return nil
		}
		return change(unix.RTM_NEWROUTE, unix.NLM_F_REPLACE, m)
	}
	return nil // the route is deleted, with our change
}

func (v Value) sameButLock(other Value) bool {
	return v.Name == other.Name && v.Number == other.Number && v.isSet()
}

// Settings returns longhaul's settings in this network namespace.
func (t *Table) Settings() ([]Setting, error) {
	path, err := t.path()
	if err != nil {
		return nil, err
	}
	return readSettings(path)
}

func (r *records) find(prefix netip.Prefix) int {
	return slices.IndexFunc(r.settings, func(s Setting) bool { return s.Prefix == prefix })
}

// check converts a prefix to the form of routes.
func check(prefix netip.Prefix) (netip.Prefix, error) {
	if !prefix.IsValid() {
		return prefix, errors.New("missing prefix, such as 203.0.113.0/24")
	}
	if prefix.Addr().Is4In6() {
		return prefix, fmt.Errorf("%s is an IPv4 address in IPv6 form: write it as IPv4", prefix)
	}
	if prefix != prefix.Masked() {
		return prefix, fmt.Errorf("%s has bits beyond its length: did you mean %s?", prefix, prefix.Masked())
	}
	return prefix, nil
}

func needNetAdmin() error {
	missing, err := kernel.Missing(kernel.NetAdmin)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return &kernel.ErrUnsupported{Feature: "changing a route", Needs: kernel.List(missing) + ": run it as root, or grant it"}
	}
	return nil
}

// has reports whether a route has all metrics of a change.
func (m message) has(metrics map[Metric]Value) bool {
	for name, want := range metrics {
		if m.metric(name) != want {
			return false
		}
	}
	return true
}

// within returns the longer prefixes in the change's prefix whose routes lack its
// metrics.
func within(routes []message, c Change) (longer []netip.Prefix) {
	for _, m := range routes {
		if m.has(c.Metrics) {
			continue
		}
		dst, _ := m.destination()
		if dst.Bits() > c.Prefix.Bits() && c.Prefix.Contains(dst.Addr()) && !slices.Contains(longer, dst) {
			longer = append(longer, dst)
		}
	}
	return longer
}

// effective reports whether packets to the prefix take a route with the change's
// metrics. It tries some of the prefix's addresses that are not this host's.
func effective(c Change) bool {
	address := c.Prefix.Addr()
	for range 8 {
		taken, err := lookup(address)
		if err == nil && taken.header.Type == unix.RTN_UNICAST {
			return taken.has(c.Metrics)
		}
		if address = address.Next(); !c.Prefix.Contains(address) {
			break
		}
	}
	return false
}

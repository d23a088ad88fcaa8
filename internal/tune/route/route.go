// Package route sets TCP's settings per destination, as metrics of routes in the main
// routing table. It changes only metrics of a route. The [ledger] has the previous ones
// and the owners, and undo restores them.
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

	"longhaul/internal/sys/kernel"
	"longhaul/internal/sys/ledger"
	"longhaul/internal/words/ipprefix"
	"longhaul/internal/words/sorted"
)

// protocol marks this package's routes: "ip route show proto 108".
const protocol = 108

// userPriorityIPv6 is the default metric of IPv6 routes.
const userPriorityIPv6 = 1024

// Table is the main routing table of the calling thread's network namespace.
// Its methods may be called from several processes at once.
type Table struct {
	Ledger string // directory of the ledger
	By     ledger.By
	DryRun bool // only say what would change
}

// Errors that callers distinguish. Each comes wrapped.
var (
	ErrNoRoute = errors.New("no route")
	// ErrExpires: others renew the route, and changes to it would be lost.
	ErrExpires = errors.New("the route comes from router advertisements and expires")
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

// Set sets metrics of a prefix's own route, and claims them. Without such a route it adds
// one, with the next hop of the route that covers the prefix. Earlier settings of the
// prefix stay unless set again.
func (t *Table) Set(c Change) (Result, error) {
	if err := CheckPrivilege(); err != nil {
		return Result{}, err
	}
	book, err := ledger.Open(t.Ledger, t.DryRun)
	if err != nil {
		return Result{}, err
	}
	defer book.Close()
	return t.SetIn(book, c)
}

// Check returns the error of a change that is wrong on every host.
func (c Change) Check() error {
	prefix, err := check(c.Prefix)
	if err != nil {
		return err
	}
	if len(c.Metrics) == 0 {
		return errors.New("missing metric")
	}
	for _, name := range slices.Sorted(maps.Keys(c.Metrics)) {
		if err := CheckValue(name, c.Metrics[name], prefix); err != nil {
			return err
		}
	}
	return nil
}

// SetIn is [Table.Set] in an open ledger.
func (t *Table) SetIn(book *ledger.Book, c Change) (Result, error) {
	if err := c.Check(); err != nil {
		return Result{}, err
	}
	if err := CheckPrivilege(); err != nil {
		return Result{}, err
	}
	if err := t.Repair(book); err != nil {
		return Result{}, err
	}
	netns, err := ledger.Here()
	if err != nil {
		return Result{}, err
	}
	routes, err := dump(familyOf(c.Prefix))
	if err != nil {
		return Result{}, err
	}
	now, cover, flags, err := plan(routes, c)
	if err != nil {
		return Result{}, err
	}
	if err := now.checkMTU(c.Metrics); err != nil {
		return Result{}, err
	}
	restore := book.Snapshot()
	detail := routeDetail{Priority: now.priority(), Made: now.header.Protocol == protocol}
	if old := entriesOf(book, netns, c.Prefix); len(old) > 0 && (flags != unix.NLM_F_REPLACE || detailOf(old[0]) != detail) {
		dropPrefix(book, netns, c.Prefix) // another program has deleted or replaced the route
	}
	if cover != nil {
		inherit(book, netns, *cover, c.Prefix, detail)
	}
	result := Result{Elsewhere: within(routes, c), Changed: flags != unix.NLM_F_REPLACE}
	for _, name := range slices.Sorted(maps.Keys(c.Metrics)) {
		value := c.Metrics[name]
		former := now.metric(name)
		t.recordSet(book, key(netns, c.Prefix, name), detail, value, former)
		value.RateBps = 0
		result.Changed = result.Changed || former != value
		if err := now.setMetric(name, value); err != nil {
			restore()
			return Result{}, err
		}
	}
	// First the record, so that every change has one.
	if err := book.Save(); err != nil {
		return Result{}, err
	}
	if result.Changed && !book.DryRun() {
		if err := change(unix.RTM_NEWROUTE, flags, now); err != nil {
			restore()
			return Result{}, errors.Join(fmt.Errorf("set the route to %s: %w", c.Prefix, err), book.Save())
		}
	}
	result.Setting = Setting{c.Prefix, detail.Priority, detail.Made, map[Metric]*Done{}}
	for _, e := range entriesOf(book, netns, c.Prefix) {
		e.Pending = nil
		result.Metrics[Metric(e.Part)] = &Done{valueOf(e), ledger.Decode[Value](e.Former), e.Claims}
	}
	if err := book.Save(); err != nil {
		return Result{}, err
	}
	result.Effective = book.DryRun() || effective(c)
	return result, nil
}

// plan finds the route to change, or makes the route to add, with the flags of the
// netlink request. A new route is a copy of from, or of nothing if from is nil.
func plan(routes []message, c Change) (planned message, from *message, flags int, err error) {
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
		return message{}, nil, 0, err
	}
	switch {
	case exact != nil && exact.expires():
		return message{}, nil, 0, fmt.Errorf("%s: %w", prefix, ErrExpires)
	case exact != nil && !hop.isOf(*exact):
		return message{}, nil, 0, fmt.Errorf("%s: %w", prefix, ErrOtherHop)
	case exact != nil:
		return exact.clone(), nil, unix.NLM_F_REPLACE, nil
	case cover == nil && !hop.given():
		return message{}, nil, 0, fmt.Errorf("%w to %s in the main table", ErrNoRoute, prefix)
	}
	var made message
	if hop.given() {
		made = hop.route()
	} else {
		made, from = cover.clone(), cover
	}
	made.setDestination(prefix)
	made.set(unix.RTA_PRIORITY, nil)
	if made.header.Family == unix.AF_INET6 {
		// The kernel's default, which undo looks for.
		made.set(unix.RTA_PRIORITY, binary.NativeEndian.AppendUint32(nil, userPriorityIPv6))
	}
	made.header.Protocol = protocol
	return made, from, unix.NLM_F_CREATE | unix.NLM_F_EXCL, nil
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

// Undone is the outcome of [Table.UndoIn] for one prefix.
type Undone struct {
	Prefix  netip.Prefix
	Deleted bool // the route, which was made for the claims
	Missing bool // another program has deleted the route
	Metrics []UndoneMetric
}

// UndoneMetric is the outcome for one metric.
type UndoneMetric struct {
	Metric Metric
	Taken  []ledger.Claim
	Left   []ledger.Claim // of others, the one in force last
	Was    Value          // in force before
	Now    Value          // the route's value
	// Kept: another program has set another value since, which stays.
	Kept bool
}

// UndoIn takes back the chosen claims on routes of this network namespace. Later
// changes of others stay.
func (t *Table) UndoIn(book *ledger.Book, choose func(ledger.Key, ledger.Claim) bool) ([]Undone, error) {
	netns, err := ledger.Here()
	if err != nil {
		return nil, err
	}
	if len(book.Of(ledger.Route, netns)) == 0 {
		return nil, nil
	}
	if err := CheckPrivilege(); err != nil {
		return nil, err
	}
	if err := t.Repair(book); err != nil {
		return nil, err
	}
	choose = withInherited(choose)
	var names []string
	for _, e := range book.Of(ledger.Route, netns) {
		chosen := slices.ContainsFunc(e.Claims, func(c ledger.Claim) bool { return choose(e.Key, c) })
		if chosen && !slices.Contains(names, e.Name) {
			names = append(names, e.Name)
		}
	}
	var all []Undone
	for _, name := range names {
		prefix, err := netip.ParsePrefix(name)
		if err != nil {
			return all, err
		}
		undone, err := t.undoPrefix(book, netns, prefix, choose)
		if err != nil {
			return all, fmt.Errorf("restore the route to %s: %w", prefix, err)
		}
		all = append(all, undone)
	}
	return all, nil
}

func (t *Table) undoPrefix(book *ledger.Book, netns uint64, prefix netip.Prefix, choose func(ledger.Key, ledger.Claim) bool) (Undone, error) {
	entries := entriesOf(book, netns, prefix)
	m, found, err := findRoute(prefix, detailOf(entries[0]).Priority)
	if err != nil {
		return Undone{}, err
	}
	restore := book.Snapshot()
	undone := Undone{Prefix: prefix, Missing: !found}
	for _, e := range entries {
		name, was := Metric(e.Part), valueOf(e)
		taken, inForce := e.Take(choose)
		if len(taken) == 0 {
			continue
		}
		now := m.metric(name)
		u := UndoneMetric{Metric: name, Taken: taken, Left: e.Claims, Was: was, Now: now}
		u.Kept = found && inForce && !was.isNow(name, now)
		switch {
		case u.Kept && len(e.Claims) == 0:
			// The kernel's value is the former one for whoever sets it next.
			e.Former = ledger.Encode(now)
			fallthrough
		case inForce && !u.Kept:
			e.Pending = ledger.Encode(now)
			if was.isGone(name, now) {
				e.Pending = ledger.Encode(was)
			}
			u.Now = valueOf(e)
		}
		undone.Metrics = append(undone.Metrics, u)
	}
	sorted.By(undone.Metrics, func(a, b UndoneMetric) int {
		return slices.Index(Metrics(), a.Metric) - slices.Index(Metrics(), b.Metric)
	})
	if err := book.Save(); err != nil {
		restore()
		return Undone{}, err
	}
	undone.Deleted, err = t.apply(book, netns, prefix)
	if err != nil {
		restore()
		return Undone{}, errors.Join(err, book.Save())
	}
	return undone, nil
}

// check converts a prefix to the form of routes.
func check(prefix netip.Prefix) (netip.Prefix, error) {
	if !prefix.IsValid() {
		return prefix, errors.New("missing prefix, such as 203.0.113.0/24")
	}
	return prefix, ipprefix.Check(prefix)
}

// CheckPrivilege returns an error if the process may not change routes.
func CheckPrivilege() error {
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
		want.RateBps = 0
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

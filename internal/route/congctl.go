// Package route sets TCP's settings per destination, as metrics of routes in
// the main routing table. It changes one metric of a route and leaves all else
// as it is, remembers what was there, and puts it back.
package route

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"longhaul/internal/kernel"
)

// protocol marks routes that this package made: "ip route show proto 108".
const protocol = 108

// userPriorityIPv6 is the metric of IPv6 routes that are added without one.
const userPriorityIPv6 = 1024

// Table is the main routing table of the calling thread's network namespace.
// Its methods may be called from several processes at once.
type Table struct {
	Undo string // the directory that remembers what to put back
}

// Errors that callers tell apart. Each comes wrapped in a sentence.
var (
	ErrNoRoute = errors.New("no route")
	// ErrExpires: the route is renewed by others, and changes to it would be
	// lost.
	ErrExpires = errors.New("the route comes from router advertisements and expires")
	ErrNotUsed = errors.New("no congestion control was given to it")
)

// UseResult is what came of [Table.UseCongestionControl].
type UseResult struct {
	Use
	Changed bool // false: it was so already
	// Elsewhere are longer prefixes within, whose own routes keep their
	// settings, which are others.
	Elsewhere []netip.Prefix
	// Effective: a packet to the prefix takes the route. It does not where
	// policy routing decides otherwise.
	Effective bool
}

// UseCongestionControl gives a registered algorithm to every new connection to
// a prefix, locked: an application that asks for another one is refused with
// EPERM. The prefix's own route is changed if there is one; else one is made,
// with the next hop of the route that covers it. A second use of the same
// prefix replaces the first.
func (t *Table) UseCongestionControl(prefix netip.Prefix, algorithm string) (UseResult, error) {
	prefix, err := check(prefix)
	if err != nil {
		return UseResult{}, err
	}
	if err := needNetAdmin(); err != nil {
		return UseResult{}, err
	}
	r, err := t.open()
	if err != nil {
		return UseResult{}, err
	}
	defer r.close()
	routes, err := dump(familyOf(prefix))
	if err != nil {
		return UseResult{}, err
	}
	now, flags, err := plan(routes, prefix)
	if err != nil {
		return UseResult{}, err
	}
	former, formerLocked := now.congctl()
	use := Use{Prefix: prefix, Algorithm: algorithm, Priority: now.priority(), Made: now.header.Protocol == protocol}
	i := r.find(prefix)
	switch {
	case use.Made:
	case i >= 0 && r.uses[i].Priority == use.Priority && !r.uses[i].Made:
		// What to go back to is what was there before the first use.
		use.FormerAlgorithm, use.FormerLocked = r.uses[i].FormerAlgorithm, r.uses[i].FormerLocked
		use.Replaces = r.uses[i].Algorithm
	default:
		use.FormerAlgorithm, use.FormerLocked = former, formerLocked
	}
	result := UseResult{Use: use, Elsewhere: within(routes, prefix, algorithm)}
	result.Changed = former != algorithm || !formerLocked || flags != unix.NLM_F_REPLACE
	if result.Changed || use.Made {
		// First the record, so that no change is ever without one.
		if i >= 0 {
			r.uses[i] = use
		} else {
			r.uses = append(r.uses, use)
		}
		if err := r.write(); err != nil {
			return UseResult{}, err
		}
	}
	if result.Changed {
		if err := now.setCongctl(algorithm, true); err != nil {
			return UseResult{}, err
		}
		if err := change(unix.RTM_NEWROUTE, flags, now); err != nil {
			return UseResult{}, fmt.Errorf("cannot set the route to %s: %w", prefix, err)
		}
	}
	result.Effective = effective(prefix, algorithm)
	return result, nil
}

// plan finds the route to change, or makes the one to add, with the flags of
// the netlink request.
func plan(routes []message, prefix netip.Prefix) (message, int, error) {
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
	switch {
	case exact != nil && exact.expires():
		return message{}, 0, fmt.Errorf("%s: %w", prefix, ErrExpires)
	case exact != nil:
		return exact.clone(), unix.NLM_F_REPLACE, nil
	case cover == nil:
		return message{}, 0, fmt.Errorf("%w to %s in the main table", ErrNoRoute, prefix)
	}
	made := cover.clone()
	made.setDestination(prefix)
	made.set(unix.RTA_PRIORITY, nil)
	if made.header.Family == unix.AF_INET6 {
		// What the kernel would choose, and what undo looks for.
		made.set(unix.RTA_PRIORITY, binary.NativeEndian.AppendUint32(nil, userPriorityIPv6))
	}
	made.header.Protocol = protocol
	return made, unix.NLM_F_CREATE | unix.NLM_F_EXCL, nil
}

// UndoCongestionControl puts back what a prefix's route was before
// [Table.UseCongestionControl]. Of a route that somebody else has changed
// since, it changes the congestion control only.
func (t *Table) UndoCongestionControl(prefix netip.Prefix) (Use, error) {
	prefix, err := check(prefix)
	if err != nil {
		return Use{}, err
	}
	if err := needNetAdmin(); err != nil {
		return Use{}, err
	}
	r, err := t.open()
	if err != nil {
		return Use{}, err
	}
	defer r.close()
	i := r.find(prefix)
	if i < 0 {
		return Use{}, fmt.Errorf("%s: %w", prefix, ErrNotUsed)
	}
	use := r.uses[i]
	if err := undo(use); err != nil {
		return Use{}, fmt.Errorf("cannot put the route to %s back: %w", prefix, err)
	}
	r.uses = slices.Delete(r.uses, i, i+1)
	return use, r.write()
}

func undo(use Use) error {
	routes, err := dump(familyOf(use.Prefix))
	if err != nil {
		return err
	}
	for _, m := range routes {
		dst, _ := m.destination()
		if dst != use.Prefix || m.priority() != use.Priority {
			continue
		}
		if use.Made && m.header.Protocol == protocol {
			return change(unix.RTM_DELROUTE, 0, m)
		}
		// The kernel does not tell the name of one that is unloaded by now.
		if name, _ := m.congctl(); name != "" && name != use.Algorithm && name != use.Replaces {
			return nil // somebody else has chosen another one
		}
		m = m.clone()
		if err := m.setCongctl(use.FormerAlgorithm, use.FormerLocked); err != nil {
			return err
		}
		return change(unix.RTM_NEWROUTE, unix.NLM_F_REPLACE, m)
	}
	return nil // the route is gone, and our change with it
}

// CongestionControlUses are the prefixes of this network namespace that
// longhaul gave an algorithm to.
func (t *Table) CongestionControlUses() ([]Use, error) {
	r, err := t.path()
	if err != nil {
		return nil, err
	}
	return readUses(r)
}

func (r *records) find(prefix netip.Prefix) int {
	return slices.IndexFunc(r.uses, func(u Use) bool { return u.Prefix == prefix })
}

// check brings a prefix into the form in which routes have it.
func check(prefix netip.Prefix) (netip.Prefix, error) {
	if !prefix.IsValid() {
		return prefix, errors.New("a route needs a prefix, such as 203.0.113.0/24")
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

// within are the longer prefixes that lie in prefix and have routes without the
// algorithm.
func within(routes []message, prefix netip.Prefix, algorithm string) (longer []netip.Prefix) {
	for _, m := range routes {
		if name, locked := m.congctl(); name == algorithm && locked {
			continue
		}
		dst, _ := m.destination()
		if dst.Bits() > prefix.Bits() && prefix.Contains(dst.Addr()) && !slices.Contains(longer, dst) {
			longer = append(longer, dst)
		}
	}
	return longer
}

// effective says whether packets to the prefix take a route with the algorithm,
// by trying some of its addresses that are not this host's own.
func effective(prefix netip.Prefix, algorithm string) bool {
	address := prefix.Addr()
	for range 8 {
		taken, err := lookup(address)
		if err == nil && taken.header.Type == unix.RTN_UNICAST {
			name, locked := taken.congctl()
			return name == algorithm && locked
		}
		if address = address.Next(); !prefix.Contains(address) {
			break
		}
	}
	return false
}

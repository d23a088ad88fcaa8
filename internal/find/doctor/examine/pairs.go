package examine

import (
	"context"
	"net/netip"
	"slices"

	"longhaul/internal/find/doctor"
)

// PairedTunnel is a paired tunnel of a relay on this host.
type PairedTunnel struct {
	doctor.Pair
	Near   bool             // the relay has the clients, and makes the lanes
	Remote End              // the other relay, as lanes reach it; any: unknown
	Listen []netip.AddrPort // of clients at the near end, of lanes at the far one
}

// listensAt reports whether connections to the end are the tunnel's.
func (t *PairedTunnel) listensAt(local netip.AddrPort) bool {
	return slices.ContainsFunc(t.Listen, func(l netip.AddrPort) bool { return EndOf(l).matches(local) })
}

// hasLane reports whether a connection of this host carries the pair's flows.
func (t *PairedTunnel) hasLane(local, remote netip.AddrPort) bool {
	if t.Near {
		return !t.Remote.isAny() && t.Remote.matches(remote)
	}
	return t.listensAt(local)
}

// leadsTo reports whether connections between two ends, as a user gives them, would
// be the pair's: lanes, or clients of its near end.
func (t *PairedTunnel) leadsTo(local, remote End) bool {
	if !t.Near {
		return false // the other end opens lanes, and knows why it cannot
	}
	if !remote.isAny() && !t.Remote.isAny() && remote.overlaps(t.Remote) {
		return true
	}
	return !local.isAny() && slices.ContainsFunc(t.Listen, func(l netip.AddrPort) bool { return local.overlaps(EndOf(l)) })
}

// overlaps reports whether an address can be of both ends.
func (e End) overlaps(other End) bool {
	return (e.Port == 0 || other.Port == 0 || e.Port == other.Port) &&
		(len(e.Addresses) == 0 || len(other.Addresses) == 0 ||
			slices.ContainsFunc(e.Addresses, func(a netip.Addr) bool { return slices.Contains(other.Addresses, a) }))
}

// paired returns the paired tunnels of this host's relays.
func (e *Examiner) paired(ctx context.Context) []PairedTunnel {
	if e.Pairs == nil {
		return nil
	}
	return e.Pairs(ctx)
}

// pairOf returns the pair that has an observed connection: as a lane, or as the
// client of a near end that has no session. Nil: none.
func (e *Examiner) pairOf(ctx context.Context, local, remote netip.AddrPort) (found *doctor.Pair) {
	for _, t := range e.paired(ctx) {
		t.Lane = t.hasLane(local, remote)
		if !t.Lane && !(t.Near && !t.Up && t.listensAt(local)) {
			continue
		}
		if found == nil || t.Up && !found.Up { // of several sessions one that stands
			found = &t.Pair
		}
	}
	return found
}

// pairDown returns the pair without a session because of which there may be no
// connection between two ends; nil: none.
func (e *Examiner) pairDown(ctx context.Context, local, remote End) (found *doctor.Pair) {
	up := map[string]bool{}
	all := e.paired(ctx)
	for _, t := range all {
		up[t.Tunnel] = up[t.Tunnel] || t.Up
	}
	for _, t := range all {
		if found == nil && !up[t.Tunnel] && t.Problem != "" && t.leadsTo(local, remote) {
			found = &t.Pair
		}
	}
	return found
}

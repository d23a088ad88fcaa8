package relay

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/words/remedy"
)

// A listener whose address this host does not have waits for it, and keeps no other from
// serving. Its socket is bound all the same (IP_FREEBIND), so the first connection to the
// address finds it. Only an address of an interface (fe80::1%lan0) is bound to the index of
// that interface: its socket is made anew when the interface is.

// waits reports whether this host may lack the address.
func (k listenKey) waits() bool { return k.tunnel == "" && mayBeAbsent(k.addr.Addr()) }

func mayBeAbsent(a netip.Addr) bool { return !a.IsUnspecified() && !a.Unmap().IsLoopback() }

// absence says why this host does not have the address; nil if it has. known: it could be looked
// at, which takes a socket.
func (k listenKey) absence() (why *string, known bool) {
	if k.tunnel != "" {
		return nil, true
	}
	return Absence(k.addr.Addr())
}

// Scope is the index of the interface that an address names; 0: it names none, or none that is there.
func Scope(a netip.Addr) uint32 { return scopeOf(a.Zone()) }

// AbsenceFix is what to do about an address that this host does not have.
const AbsenceFix = "give this host the address (ip addr shows what it has), or listen on another"

// Absence says why this host does not have an address to listen on; nil if it has. known: it could be
// looked at, which takes a socket.
func Absence(a netip.Addr) (why *string, known bool) {
	if !mayBeAbsent(a) {
		return nil, true
	}
	text := "this host does not have the address"
	if zone := a.Zone(); zone != "" {
		index, known := lookUpScope(zone)
		if index == 0 && known {
			text = noInterface(zone)
			return &text, true
		}
		if !known {
			return nil, false
		}
	}
	// What the kernel would bind, it has: also a prefix of a local route, and each address
	// with net.ipv4.ip_nonlocal_bind.
	as := family(a)
	fd, errno := newSocket(as)
	if errno != 0 {
		return nil, false
	}
	defer closeFD(fd)
	sa := toSockaddr(netip.AddrPortFrom(a, 0), as)
	switch bind(fd, &sa) {
	case unix.EADDRNOTAVAIL, unix.ENODEV:
		return &text, true
	}
	return nil, true
}

func noInterface(zone string) string { return "this host has no interface " + zone }

// waits lists the listening addresses that this host does not have. all: it has none of the
// tunnel's.
func (in *installed) waits(all bool) (problems []report.HostProblem) {
	for _, l := range in.listeners {
		if why := l.absent.Load(); why != nil {
			problems = append(problems, report.HostProblem{
				Part: report.HostAddress, Problem: fmt.Sprintf("waiting for address %s: %s", l.bound, *why),
				Fix: AbsenceFix, Since: l.absentSince(), Blocks: all,
			})
		}
	}
	return problems
}

func (l *listener) absentSince() time.Time {
	if at := l.since.Load(); at != nil {
		return *at
	}
	return time.Now()
}

// ListenerChange says that this host has lost a listening address, or has got it.
type ListenerChange struct {
	Tunnel string
	Listen netip.AddrPort
	Absent string // why the host does not have it; empty: it has
	Err    error  // it has it, and the relay cannot listen there
}

// LookAtListeners looks which listening addresses this host has, and makes the listeners of
// interfaces anew that were made anew. It returns what has changed since the last call. again:
// some could not be looked at, or not be made.
func (r *Relay) LookAtListeners() (changes []ListenerChange, again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.started || r.closed || r.draining.Load() {
		return nil, false
	}
	if r.change != nil { // it has listeners that may not change
		return nil, true
	}
	type absence struct {
		why   *string
		known bool
	}
	looked := map[netip.Addr]absence{} // many listeners may have one address
	for _, in := range r.table.Load().tunnels {
		for _, l := range in.listeners {
			if !l.key.waits() && !l.lost {
				continue
			}
			found, ok := looked[l.key.addr.Addr()]
			if !ok {
				found.why, found.known = l.key.absence()
				looked[l.key.addr.Addr()] = found
			}
			if !found.known {
				again = true
				continue
			}
			why, err := found.why, error(nil)
			if why == nil {
				if l, err = r.renew(in, l); err == nil && l.lost {
					err = r.find(in, l)
				}
				if err != nil {
					text := remedy.Line(err)
					why, again = &text, true
				}
			}
			l.setAbsent(why)
			now := ""
			if why != nil {
				now = *why
			}
			// While it waits, another reason is no news.
			if now != l.told && (now == "" || l.told == "" || err != nil) {
				changes = append(changes, ListenerChange{in.tunnel.Name, l.bound, now, err})
			}
			if err != nil || now == "" || l.told == "" {
				l.told = now
			}
		}
	}
	return changes, again
}

func (l *listener) setAbsent(why *string) {
	if l.absent.Swap(why) == nil && why != nil || l.since.Load() == nil {
		now := time.Now()
		l.since.Store(&now)
	}
}

// renew makes a listener anew whose interface has another index than it is bound to.
func (r *Relay) renew(in *installed, l *listener) (*listener, error) {
	zone := l.key.addr.Addr().Zone()
	if zone == "" || !l.unbound && scopeOf(zone) == l.scope {
		return l, nil
	}
	fresh, err := openListener(l.key, false, in.tunnel.Transport)
	if err != nil {
		return l, err
	}
	if fresh.unbound { // the interface has gone meanwhile
		closeFD(fresh.fd)
		return l, errors.New(*fresh.absent.Load())
	}
	r.nextID++
	fresh.id, fresh.told = r.nextID, l.told
	fresh.since.Store(l.since.Load())
	fresh.route.Store(l.route.Load())
	if in.state.drained.Load() && !in.tunnel.listensDrained() {
		fresh.silent = true
		fresh.shut()
	} else if err := r.attach(fresh); err != nil {
		for _, w := range r.workers {
			w.do(func() { w.dropListener(fresh, false) })
		}
		closeFD(fresh.fd)
		return l, err
	}
	r.replace(l, fresh)
	r.closeListener(l)
	return fresh, nil
}

// find has a listener listen again that a change which failed has lost.
func (r *Relay) find(in *installed, l *listener) error {
	if !in.state.drained.Load() || in.tunnel.listensDrained() {
		if err := r.wake(l); err != nil {
			return err
		}
	}
	l.lost = false
	return nil
}

// replace has the table name another listener.
func (r *Relay) replace(old, fresh *listener) {
	before := r.table.Load()
	next := &table{listeners: maps.Clone(before.listeners)}
	next.listeners[fresh.key] = fresh
	for _, in := range before.tunnels {
		in := *in
		in.listeners = slices.Clone(in.listeners)
		for n, l := range in.listeners {
			if l == old {
				in.listeners[n] = fresh
			}
		}
		next.tunnels = append(next.tunnels, &in)
	}
	r.table.Store(next)
}

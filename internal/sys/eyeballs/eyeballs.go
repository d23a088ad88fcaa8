// Package eyeballs chooses among the addresses of a host for connection attempts, as Happy Eyeballs
// does (RFC 8305): families take turns, an attempt that has no answer after a while gets another
// one beside it, and the first that connects is used.
//
// A [Host] remembers which addresses do not answer, and has them tried last. A check in the
// background finds out when one answers again: no connection waits for that. So a family that
// is dead costs the first connection [AttemptDelay] and those behind it nothing.
//
// Who dials decides how: an event loop asks for [Host.Order] and [Host.Next] and reports what
// became of each attempt; a goroutine calls [Dial].
package eyeballs

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"longhaul/internal/sys/halfopen"
	"longhaul/internal/words/sorted"
)

// The time that an attempt has before the next begins beside it (RFC 8305, section 8).
const (
	AttemptDelay = 250 * time.Millisecond // to an address that was never connected to
	minDelay     = 10 * time.Millisecond
	maxDelay     = 2 * time.Second
)

// MaxBeside bounds the attempts of one connection at the same time. With more addresses the next
// attempt replaces the oldest.
const MaxBeside = 4

const (
	checkTimeout = 2 * time.Second
	firstWait    = 10 * time.Second // between two checks of an address, doubled each time
	maxWait      = 5 * time.Minute
	maxKnown     = 64 // addresses of a host
)

// Host is what is known of the addresses of one host and port. Its methods may be called from
// any goroutine. A nil Host knows nothing.
type Host struct {
	o Options

	mu    sync.Mutex
	known map[netip.AddrPort]*address
	count [2]int  // of the addresses by family
	dead  [2]bool // by family: the report says so
}

// Options are optional.
type Options struct {
	// Background runs a check in a goroutine; its context ends with the caller. Without it, an
	// address that does not answer is tried first again only if the others do not, either.
	Background func(check func(context.Context))
	// Ask asks whether an address accepts connections, in place of [halfopen.Ask].
	Ask func(context.Context, netip.AddrPort) error
	// Changed gets the family that does not answer while the other does, and later that it
	// answers. It must not call the host.
	Changed func(Family)
}

// Family is the state of one family of a host's addresses.
type Family struct {
	Name string         // IPv4 or IPv6
	Dead bool           // no address of it answers, and one of the other family does
	To   netip.AddrPort // an address that answers
	Err  error          // why the last one does not; nil if it answers
}

// address is what is known of one address.
type address struct {
	rtt    time.Duration // of a handshake; 0: unknown
	lost   bool          // the last attempt failed or lost the race: tried last
	within time.Duration // a check must be answered within it
	err    error         // of the last check; nil: none has failed
	asking bool
	next   time.Time     // for a check
	wait   time.Duration // from a check to the next; 0: a connection has stood since
}

// New makes a host of which nothing is known.
func New(o Options) *Host {
	if o.Ask == nil {
		o.Ask = func(ctx context.Context, a netip.AddrPort) error {
			_, err := halfopen.Ask(ctx, a.String(), halfopen.Options{})
			return err
		}
	}
	return &Host{o: o, known: map[netip.AddrPort]*address{}}
}

// Order appends the addresses of a host in the order in which they are tried. The resolver has
// sorted them (RFC 6724): the family of the first one begins, and families alternate. Within a
// family the turn chooses which one begins, so that several share the load. Addresses that do not
// answer come last.
func (h *Host) Order(into, addrs []netip.AddrPort, turn uint) []netip.AddrPort {
	begin := len(into)
	into = interleave(into, addrs, turn)
	if h == nil || len(addrs) < 2 {
		return into
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.adopt(addrs)
	sorted.By(into[begin:], func(a, b netip.AddrPort) int { return h.rank(a) - h.rank(b) })
	if h.rank(into[begin]) == 0 {
		h.check(into[begin:])
	}
	return into
}

// interleave appends the addresses with their families alternating.
func interleave(into, addrs []netip.AddrPort, turn uint) []netip.AddrPort {
	var n [2]uint
	for _, a := range addrs {
		n[family(a)]++
	}
	var taken [2]uint
	for f := family(first(addrs)); taken[0]+taken[1] < uint(len(addrs)); f = 1 - f {
		if taken[f] < n[f] {
			into = append(into, nth(addrs, f, (taken[f]+turn)%n[f]))
			taken[f]++
		}
	}
	return into
}

func first(addrs []netip.AddrPort) (a netip.AddrPort) {
	if len(addrs) > 0 {
		a = addrs[0]
	}
	return a
}

// nth returns the address of a number within its family.
func nth(addrs []netip.AddrPort, f int, n uint) netip.AddrPort {
	i := slices.IndexFunc(addrs, func(a netip.AddrPort) bool {
		if family(a) != f {
			return false
		}
		n--
		return n+1 == 0
	})
	return addrs[i]
}

// family numbers the families: 0 for IPv4 and 1 for IPv6.
func family(a netip.AddrPort) int {
	if a.Addr().Unmap().Is4() {
		return 0
	}
	return 1
}

func (h *Host) rank(a netip.AddrPort) int {
	if k := h.known[a]; k != nil && k.lost {
		return 1
	}
	return 0
}

// adopt counts the addresses, and drops those that the host has no more. The caller holds the lock.
func (h *Host) adopt(addrs []netip.AddrPort) {
	h.count = [2]int{}
	for _, a := range addrs {
		h.count[family(a)]++
	}
	for a := range h.known {
		if !slices.Contains(addrs, a) {
			delete(h.known, a)
		}
	}
}

// check begins the checks that are due: of lost addresses, and of the first one of the family that
// no connection uses, so that its death is known before it is needed. The caller holds the lock.
func (h *Host) check(addrs []netip.AddrPort) {
	other := slices.IndexFunc(addrs, func(a netip.AddrPort) bool { return family(a) != family(addrs[0]) })
	for i, a := range addrs {
		k := h.known[a]
		if i == other && k == nil {
			if k = h.know(a); k != nil {
				k.within = checkTimeout
			}
		}
		unused := i == other && k != nil && k.rtt == 0
		if k == nil || !k.lost && !unused || k.asking || h.o.Background == nil || time.Now().Before(k.next) {
			continue
		}
		k.asking = true
		within := k.within
		h.o.Background(func(ctx context.Context) {
			asking, cancel := context.WithTimeout(ctx, within)
			defer cancel()
			err := h.o.Ask(asking, a)
			h.checked(a, k, err, ctx.Err() != nil)
		})
	}
}

// checked takes the result of a check.
func (h *Host) checked(a netip.AddrPort, k *address, err error, cancelled bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k.asking = false
	if cancelled || h.known[a] != k || k.rtt > 0 {
		return
	}
	k.postpone()
	k.lost, k.err = err != nil, err
	h.tell(family(a))
}

// postpone puts the next check off, each time by more.
func (k *address) postpone() {
	k.wait = min(max(firstWait, 2*k.wait), maxWait)
	k.next = time.Now().Add(k.wait)
}

// Delay is the time that an attempt has before the next begins beside it.
func (h *Host) Delay(a netip.AddrPort) time.Duration {
	if h == nil {
		return AttemptDelay
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if k := h.known[a]; k != nil && k.rtt > 0 {
		return min(max(2*k.rtt, minDelay), maxDelay)
	}
	return AttemptDelay
}

// Next is the time until the attempt behind that at an address, with inFlight attempts that have no
// answer and rest addresses that were not tried. At MaxBeside the next one replaces the oldest: then
// these addresses share the time that is left.
func (h *Host) Next(a netip.AddrPort, inFlight, rest int, left time.Duration) time.Duration {
	delay := h.Delay(a)
	switch {
	case inFlight < MaxBeside:
		return delay
	case left <= 0: // without a deadline
		return maxDelay
	}
	return max(delay, left/time.Duration(1+rest))
}

// Connected takes the news that an attempt has connected, how long it took, and in the time
// of which others were given up (see [Host.Outrun]).
func (h *Host) Connected(a netip.AddrPort, took time.Duration) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	k := h.know(a)
	if k == nil {
		return
	}
	if k.rtt == 0 || took < k.rtt {
		k.rtt = max(took, 1)
	} else {
		k.rtt += (took - k.rtt) / 8
	}
	k.lost, k.wait, k.err = false, 0, nil
	h.tell(0)
	h.tell(1)
}

// Outrun takes the news that an attempt had no answer for a time after which another one, begun
// later, connected.
func (h *Host) Outrun(a netip.AddrPort, waited time.Duration) {
	h.lose(a, max(waited, AttemptDelay))
}

// Failed takes the news that an attempt has failed, by the fault of the address or the way to it.
func (h *Host) Failed(a netip.AddrPort) { h.lose(a, checkTimeout) }

func (h *Host) lose(a netip.AddrPort, within time.Duration) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	k := h.know(a)
	if k == nil || k.lost {
		return
	}
	k.lost, k.within, k.rtt = true, min(within, checkTimeout), 0
	if k.wait == 0 {
		k.next = time.Now()
		return
	}
	k.postpone() // it has answered a check, and no connection since
}

// know returns the state of an address; nil if the host has too many. The caller holds the lock.
func (h *Host) know(a netip.AddrPort) *address {
	k := h.known[a]
	if k == nil && len(h.known) < maxKnown {
		k = &address{}
		h.known[a] = k
	}
	return k
}

// tell reports a change of a family. The caller holds the lock.
func (h *Host) tell(f int) {
	now := h.state(f)
	if now.Dead == h.dead[f] {
		return
	}
	h.dead[f] = now.Dead
	if h.o.Changed != nil {
		h.o.Changed(now)
	}
}

// state is that of a family: dead once checks of all its addresses have failed. The caller holds
// the lock.
func (h *Host) state(f int) Family {
	s := Family{Name: [2]string{"IPv4", "IPv6"}[f]}
	failed := 0
	for a, k := range h.known {
		switch {
		case family(a) == f && k.lost && k.err != nil && !errors.Is(k.err, syscall.ENETUNREACH): // this host lacks the family
			s.Err = k.err
			failed++
		case family(a) != f && !k.lost && k.rtt > 0:
			s.To = a
		}
	}
	s.Dead = failed > 0 && failed == h.count[f] && s.To.IsValid()
	if !s.Dead {
		s.Err = nil
	}
	return s
}

// Dead lists the families that do not answer while the other one does.
func (h *Host) Dead() (dead []Family) {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for f, told := range h.dead {
		if s := h.state(f); told && s.Dead {
			dead = append(dead, s)
		}
	}
	return dead
}

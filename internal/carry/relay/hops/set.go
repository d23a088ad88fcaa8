// Package hops chooses the next hop of a flow: by priority and balance, by the
// flows' connects and by probes. What it knows of hops that are out survives a
// reload, and goes on to the process that succeeds this one.
package hops

import (
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"longhaul/internal/carry/flow"
)

// Target is a next hop: another relay, or the final target.
type Target struct {
	// Original stands for the address that a flow's client dialed, in place of Host
	// and Port. One hop holds the state of all such addresses.
	Original bool
	Host     string // literal address, or name; with a final dot it is complete, and has no search domain
	Port     uint16
	Ports    int // from Port on; 0 means 1
	Weight   int // of its share among hops of the same priority; 0 means 1
	Priority int // the least is chosen first; 0 means 1
	// Carrier makes the hop a far relay: it carries the flows there. Either all hops of a tunnel
	// have one, or none.
	Carrier flow.Carrier
}

// String is the target in the form host:port or host:low-high, as configured but for a
// final dot of the host, or "original".
func (t Target) String() string {
	if t.Original {
		return "original"
	}
	ports := strconv.Itoa(int(t.Port))
	if t.Ports > 1 {
		ports += "-" + strconv.Itoa(int(t.Port)+t.Ports-1)
	}
	return net.JoinHostPort(strings.TrimSuffix(t.Host, "."), ports)
}

// Set is the hops of one tunnel with their configuration. It never changes, but
// for the state of its hops: a reload makes another set.
type Set struct {
	forward []Target
	balance Balance
	health  Health
	hops    []*Hop      // of forward
	turns   *sync.Mutex // of weighted round robin; shared with the sets before and after
	absent  []*Hop      // drained hops of sets before; nil unless KeepDrained
}

// maxAbsent bounds the drained hops that a set keeps beside its own.
const maxAbsent = 64

// New makes the hops of a tunnel. Hops that were in the set before keep their
// state; nil means that there was none. The configuration has its defaults
// filled in.
func New(forward []Target, balance Balance, health Health, was *Set) *Set {
	s := &Set{forward: forward, balance: balance, health: health, turns: new(sync.Mutex)}
	if was != nil {
		s.turns = was.turns
	}
	for _, t := range forward {
		h := was.known(t.String())
		if h == nil {
			h = &Hop{name: t.String()}
		}
		s.hops = append(s.hops, h)
	}
	return s
}

// kept reports whether a hop gets flows while it returns. That is the configuration's, not the hop's: a set
// that is prepared leaves the hops of the one in force as they are.
func (s *Set) kept(i int) bool {
	return s.health.EjectAfter < 0 || s.health.Blind || s.forward[i].Carrier != nil // a session that stands has shown that it works
}

// Usable reports whether new flows should go to the hop of an index that Order has returned.
func (s *Set) Usable(i uint16, now time.Duration) bool {
	return usable(s.hops[i].state(now), s.kept(int(i)))
}

// Hop returns the hop of an index that Order has returned.
func (s *Set) Hop(i uint16) *Hop { return s.hops[i] }

// All lists the hops in the order of the configuration. The caller must not
// change the slice.
func (s *Set) All() []*Hop { return s.hops }

// Find returns the hop of a name, or nil. It accepts a nil set.
func (s *Set) Find(name string) *Hop {
	if s == nil {
		return nil
	}
	if i := slices.IndexFunc(s.hops, func(h *Hop) bool { return h.name == name }); i >= 0 {
		return s.hops[i]
	}
	return nil
}

// known is Find among the set's own hops and the drained ones of sets before.
func (s *Set) known(name string) *Hop {
	h := s.Find(name)
	if s == nil || h != nil {
		return h
	}
	if i := slices.IndexFunc(s.absent, func(h *Hop) bool { return h.name == name }); i >= 0 {
		return s.absent[i]
	}
	return nil
}

// KeepDrained has the set remember the drained hops of the one before that it lacks. What a service answers
// is not the operator's word: a hop that it leaves out for a while is as drained after it as before.
func (s *Set) KeepDrained(was *Set) {
	if was == nil {
		return
	}
	for _, h := range slices.Concat(was.hops, was.absent) {
		if h.Drained() && s.Find(h.name) == nil && len(s.absent) < maxAbsent {
			s.absent = append(s.absent, h)
		}
	}
}

// ConnectFailed records that a flow could not connect to a port of a hop. It returns the
// duration of the ejection that follows, 0 for none.
func (s *Set) ConnectFailed(h *Hop, port uint16, now time.Duration, err error) time.Duration {
	if s.forward[0].Original { // an unreachable address says nothing of the others
		h.failed.Add(1)
		return 0
	}
	h.port.Store(uint32(port))
	return h.connectFailed(now, &s.health, err)
}

// Snapshot adds the hops as they are at now to all.
func (s *Set) Snapshot(all []flow.Hop, now time.Duration) []flow.Hop {
	first := len(all)
	for i, h := range s.hops {
		all = append(all, h.snapshot(&s.forward[i], s.kept(i), now))
	}
	if s.Paired() {
		s.addPairs(all[first:], now)
	}
	return all
}

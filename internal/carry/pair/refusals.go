package pair

import (
	"errors"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A far process is dead if its host says so: for a time each attempt to connect, at each address that is
// known of the host, is refused, and no connection that there was before has been acknowledged in that
// time. A firewall in between may refuse as well; what it lets through is acknowledged then.

// refusedLeast is the least number of attempts at each address: with fewer, one lost in a listener's
// restart could decide.
const refusedLeast = 3

// refusals are what attempts for a control connection in place of a lost one have met.
type refusals struct {
	mu     sync.Mutex
	wanted map[*wanPath][]netip.AddrPort // where the latest attempt goes
	by     map[attempted]refused
	acked  time.Time // the latest acknowledgement of any lane
	awake  map[*lane]keepalive
}

type attempted struct {
	path *wanPath
	to   netip.AddrPort
}

// refused are refusals, of all attempts since a time.
type refused struct {
	since, last time.Time
	n           int
}

// begin takes note of where an attempt goes.
func (r *refusals) begin(p *wanPath, to []netip.AddrPort) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.wanted == nil {
		r.wanted = map[*wanPath][]netip.AddrPort{}
	}
	r.wanted[p] = to
}

// note takes what has become of an attempt at one address.
func (r *refusals) note(p *wanPath, to netip.AddrPort, err error, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := attempted{p, to}
	if !errors.Is(err, unix.ECONNREFUSED) {
		delete(r.by, at)
		return
	}
	if r.by == nil {
		r.by = map[attempted]refused{}
	}
	one := r.by[at]
	if one.n == 0 {
		one.since = now
	}
	one.last, one.n = now, one.n+1
	r.by[at] = one
}

// some reports that an address refuses.
func (r *refusals) some() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.by) > 0
}

// all reports that on these paths each address has refused for so long, while no lane was acknowledged.
func (r *refusals) all(paths []*wanPath, acked, now time.Time, long time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if acked.After(r.acked) {
		r.acked = acked
	}
	for _, p := range paths {
		if len(r.wanted[p]) == 0 {
			return false
		}
		for _, to := range r.wanted[p] {
			one := r.by[attempted{p, to}]
			if one.n < refusedLeast || now.Sub(one.since) < long || now.Sub(one.last) > long {
				return false
			}
		}
	}
	return now.Sub(r.acked) >= long
}

// watch has the kernel ask each second on lanes that are silent, since else nothing is acknowledged.
func (r *refusals) watch(lanes []*lane) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.awake == nil {
		r.awake = map[*lane]keepalive{}
	}
	for _, l := range lanes {
		if _, has := r.awake[l]; !has {
			l.bulk.control(func(fd int) { r.awake[l] = hasten(fd) })
		}
	}
}

// clear forgets everything once there is a control connection, or none is wanted.
func (r *refusals) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l, was := range r.awake {
		l.bulk.control(was.set)
	}
	r.wanted, r.by, r.awake, r.acked = nil, nil, nil, time.Time{}
}

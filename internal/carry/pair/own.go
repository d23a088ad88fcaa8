package pair

import (
	"net/netip"
	"slices"
	"time"
)

// Several far hosts may share an address: each connection to it leads to one of them. So a far process
// tells its own address in HELLO, and once a session has its control connection, its lanes and its later
// control connections go there. That address is the far relay's word, and this host is not to connect to
// wherever a far relay likes: it must be one of the tunnel's addresses, or lie within LanesTo.

// ownRetry is the time between two looks at an own address at which nobody answers, and for which one that
// has answered before may be away while the control connection stands: a far relay that dies loses that
// sooner. Lanes go to the shared address meanwhile.
const ownRetry = 10 * time.Second

// ownAddress is that of the far process of a near session, beside the one to which its control connection
// leads. It is under the session's lock.
type ownAddress struct {
	at      netip.AddrPort // invalid: none was told, or that of the control connection
	listed  bool           // among the tunnel's addresses
	failing time.Time      // no attempt has succeeded since; zero: the latest has
	err     error          // of the latest
	tried   time.Time      // when one was last begun, while it fails
	astray  bool           // a lane has broken before HELLO, as one that leads to another process does
}

func (o *ownAddress) allowed(to []netip.Prefix) bool {
	return o.at.IsValid() && (o.listed || inAny(to, o.at.Addr()))
}

func inAny(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a.Unmap()) })
}

// take takes what HELLO tells on a connection to an address.
func (o *ownAddress) take(told, remote netip.AddrPort, listed bool) {
	if told == remote {
		told = netip.AddrPort{}
	}
	if o.at != told {
		*o = ownAddress{at: told, astray: o.astray}
	}
	o.listed = listed
}

// choose decides whether a lane goes there. met: the host has proved its key there.
func (o *ownAddress) choose(now time.Time, met bool) bool {
	if o.failing.IsZero() || met && now.Sub(o.failing) < ownRetry {
		return true
	}
	again := now.Sub(o.tried) >= ownRetry
	if again {
		o.tried = now
	}
	return again
}

// ended takes the news of an attempt.
func (o *ownAddress) ended(at netip.AddrPort, err error, now time.Time) {
	switch {
	case o.at != at:
	case err == nil:
		o.failing, o.err = time.Time{}, nil
	default:
		if o.failing.IsZero() {
			o.failing, o.tried = now, now
		}
		o.err = err
	}
}

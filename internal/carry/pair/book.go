package pair

import (
	"crypto/ed25519"
	"maps"
	"net/netip"
	"sync"
	"time"

	"longhaul/internal/carry/pair/identity"
)

// host is the other end of a connection: the peer whose key it has proved. The list of peers may give
// that key another name later, and the peer another key.
type host struct {
	key  ed25519.PublicKey
	name string // as the key was last known by
	// certified: it has proved a name by a certificate, and key stands for that.
	certified bool
}

// means reports whether a name in the configuration means a host.
func (h host) means(name string) bool { return h.name != "" && identity.IsOf(h.name, name) }

// Bounds of a book.
const (
	maxPlaces = 512 // of all hosts together: the one that was seen longest ago goes first
	// placeLasts is how long an address counts as a host's: lanes are renewed each hour, so that one which
	// is in use was seen since.
	placeLasts = 24 * time.Hour
)

// book knows at which addresses the hosts of a tunnel have proved their keys, and which processes were
// heard of late.
type book struct {
	mu     sync.Mutex
	places map[where]place
	heard  map[uint64]time.Time // by instance
}

// where is an address to which a tunnel connects. What one tunnel may use says nothing of another one,
// whose lanes may be in clear.
type where struct {
	tunnel string
	at     netip.AddrPort
}

type place struct {
	who  host // that was last there
	seen time.Time
}

// note takes the news that a host has proved its key at an address.
func (b *book) note(tunnel string, at netip.AddrPort, who host) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.places == nil {
		b.places = map[where]place{}
	}
	if b.places[where{tunnel, at}] = (place{who, time.Now()}); len(b.places) <= maxPlaces {
		return
	}
	var oldest where
	for w, p := range b.places {
		if oldest == (where{}) || p.seen.Before(b.places[oldest].seen) {
			oldest = w
		}
	}
	delete(b.places, oldest)
}

// last is the host that was last at an address.
func (b *book) last(tunnel string, at netip.AddrPort) (who host, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, known := b.places[where{tunnel, at}]
	return p.who, known && time.Since(p.seen) < placeLasts
}

// all are the places that count.
func (b *book) all() map[where]place {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := maps.Clone(b.places)
	maps.DeleteFunc(all, func(_ where, p place) bool { return time.Since(p.seen) > placeLasts })
	return all
}

// hear takes the news that a process was heard at a time. Another tunnel's session with it may be the one.
func (b *book) hear(instance uint64, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.heard == nil {
		b.heard = map[uint64]time.Time{}
	}
	if at.After(b.heard[instance]) {
		b.heard[instance] = at
	}
	if len(b.heard) > maxPlaces {
		for i, t := range b.heard {
			if time.Since(t) > time.Minute {
				delete(b.heard, i)
			}
		}
	}
}

// lastHeard is when a process was heard; the zero time: never, or long ago.
func (b *book) lastHeard(instance uint64) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.heard[instance]
}

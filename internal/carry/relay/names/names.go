// Package names resolves the host names of hops, finds the targets of services, and remembers the answers. The
// next process can go on with them: an upgrade while no name server answers must
// not lose a hop.
package names

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"longhaul/internal/carry/relay/monotime"
)

// Resolver resolves a host name to addresses, best first. It must return when
// the context ends. A *net.DNSError with IsNotFound, or no address without an
// error, means that the name has no address: cached addresses are dropped.
// Every other error means that no server answered.
type Resolver func(ctx context.Context, host string) (Answer, error)

// Answer is the result of resolving a name.
type Answer struct {
	Addrs   []netip.Addr
	TTL     time.Duration // 0: unknown
	Targets []Target      // in place of Addrs, of a service
}

const (
	defaultTTL       = 5 * time.Second // without a TTL, as from /etc/hosts
	minTTL           = time.Second
	maxTTL           = time.Hour
	failedTTL        = time.Second
	maxKnown         = 16384                   // names with answers; services may lead to ever other ones
	maxStale         = 24 * time.Hour          // how long an expired answer may serve while no server answers
	staleAnswerDelay = 1800 * time.Millisecond // until an expired answer serves (RFC 8767, section 5)
)

// Cache is a cache in front of a resolver. Its methods may be called from any
// goroutine. Concurrent lookups of a name share
// one query. Names in use are resolved again before they expire. An expired
// answer serves while no server answers, but not if the name is reported as
// missing (RFC 8767, section 4).
type Cache struct {
	resolve        Resolver
	resolveService Resolver
	ctx            context.Context
	cancel         context.CancelFunc
	running        sync.WaitGroup

	mu      sync.Mutex
	known   map[string]answer
	asking  map[string]bool
	waiting map[string][]func([]netip.Addr, error)

	services map[string]*followed // by name
}

// answer is a cached answer. Times are the monotonic clock's.
type answer struct {
	addrs   []netip.Addr
	err     error
	refresh time.Duration // when to resolve again, if the name is used
	until   time.Duration // when the answer expires
	stale   time.Duration // when the expired answer is too old to serve
}

// New makes an empty cache; without a resolver it is in front of the system's.
func New(resolve Resolver) *Cache {
	if resolve == nil {
		resolve = system
	}
	n := &Cache{
		resolve:        resolve,
		resolveService: systemServices,
		known:          map[string]answer{},
		asking:         map[string]bool{},
		waiting:        map[string][]func([]netip.Addr, error){},
		services:       map[string]*followed{},
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	return n
}

// Cached returns the answer for a name that has not expired at now, a time of
// [monotime.Now], if there is one. It does not wait for a query.
func (n *Cache) Cached(host string, now time.Duration) (addrs []netip.Addr, err error, known bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	a, ok := n.known[host]
	if !ok || now >= a.until {
		return nil, nil, false
	}
	if a.err == nil && now >= a.refresh {
		n.ask(host)
	}
	return a.addrs, a.err, true
}

// Lookup resolves a name and calls done from another goroutine, at the latest
// when the cache is closed. done must not call the cache.
func (n *Cache) Lookup(host string, done func([]netip.Addr, error)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.waiting[host] = append(n.waiting[host], done)
	n.ask(host)
}

// Wait returns the cached answer, or resolves the name if there is none. It
// returns an error when the context ends first.
func (n *Cache) Wait(ctx context.Context, host string) ([]netip.Addr, error) {
	if addrs, err, known := n.Cached(host, monotime.Now()); known {
		return addrs, err
	}
	type reply struct {
		addrs []netip.Addr
		err   error
	}
	replied := make(chan reply, 1)
	n.Lookup(host, func(addrs []netip.Addr, err error) { replied <- reply{addrs, err} })
	select {
	case r := <-replied:
		return r.addrs, r.err
	case <-ctx.Done():
		return nil, errors.New("no answer about " + host + " in time")
	}
}

// ask begins a query unless one is pending. The caller holds the lock.
func (n *Cache) ask(host string) {
	if n.asking[host] {
		return
	}
	n.asking[host] = true
	n.running.Go(func() {
		impatient := time.AfterFunc(staleAnswerDelay, func() { n.serveStale(host) })
		found, err := n.resolve(n.ctx, host)
		impatient.Stop()
		if err == nil && len(found.Addrs) == 0 {
			err = &net.DNSError{Err: "the name has no address", Name: host, IsNotFound: true}
		}
		n.mu.Lock()
		delete(n.asking, host)
		if err == nil {
			n.keep(host, fresh(found, monotime.Now()))
			n.reply(host)
		} else if isNotFound(err) || !n.useStale(host) {
			n.keep(host, answer{err: err, until: monotime.Now() + failedTTL})
			n.reply(host)
		}
		n.mu.Unlock()
	})
}

// keep keeps an answer. Of too many names the one whose answer expired first goes. The caller holds the lock.
func (n *Cache) keep(host string, a answer) {
	if _, known := n.known[host]; !known && len(n.known) >= maxKnown {
		oldest := host
		for name, one := range n.known {
			if oldest == host || one.until < n.known[oldest].until {
				oldest = name
			}
		}
		delete(n.known, oldest)
	}
	n.known[host] = a
}

// isNotFound reports whether an error means that a name has no address.
func isNotFound(err error) bool {
	var dns *net.DNSError
	return errors.As(err, &dns) && dns.IsNotFound
}

func fresh(found Answer, now time.Duration) answer {
	kept := kept(found.TTL)
	return answer{
		addrs:   found.Addrs,
		refresh: now + kept*4/5,
		until:   now + kept,
		stale:   now + kept + maxStale,
	}
}

// kept is the time for which an answer with a TTL is kept.
func kept(ttl time.Duration) time.Duration {
	if ttl <= 0 {
		return defaultTTL
	}
	return min(max(ttl, minTTL), maxTTL)
}

// serveStale answers the callers that wait for a name with its expired answer.
func (n *Cache) serveStale(host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.waiting[host]) > 0 {
		n.useStale(host)
	}
}

// useStale extends an expired answer a little and answers the callers that
// wait, unless it is too old. The caller holds the lock.
func (n *Cache) useStale(host string) bool {
	a, ok := n.known[host]
	now := monotime.Now()
	if !ok || a.err != nil || now >= a.stale {
		return false
	}
	if soon := now + failedTTL; a.until < soon {
		a.until, a.refresh = soon, soon
		n.known[host] = a
	}
	n.reply(host)
	return true
}

// reply answers the callers that wait for a name. The caller holds the lock;
// done posts a command or fills a channel, and does not call back here.
func (n *Cache) reply(host string) {
	a := n.known[host]
	for _, done := range n.waiting[host] {
		done(a.addrs, a.err)
	}
	delete(n.waiting, host)
}

// Close ends the queries and waits for them.
func (n *Cache) Close() {
	n.cancel()
	n.running.Wait()
}

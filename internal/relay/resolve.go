package relay

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Resolver turns a host name into addresses, best first. It must return when
// the context ends. An error that is a *net.DNSError with IsNotFound, or no
// address and no error, says for certain that the name has none: what it had
// before is not used any more. Every other error says that nobody answered.
type Resolver func(ctx context.Context, host string) (Answer, error)

// Answer is what a resolver found out about a name.
type Answer struct {
	Addrs []netip.Addr
	TTL   time.Duration // how long it may be used; 0: nobody said
}

const (
	nameKept       = 5 * time.Second // where nobody says how long, as of /etc/hosts
	nameKeptLeast  = time.Second
	nameKeptMost   = time.Hour
	nameFailedKept = time.Second
	nameStaleMost  = 24 * time.Hour          // how long a name may outlive its answer while no other can be had
	nameStaleAfter = 1800 * time.Millisecond // how long a new answer is waited for where an old one is at hand (RFC 8767, section 5)
)

// names is a cache in front of a resolver. Lookups of one name at one time
// share one question. What is in use is asked for again before it runs out,
// and what has run out serves when nothing newer can be had, but not when the
// answer is that there is no such name (RFC 8767, section 4).
type names struct {
	resolve Resolver
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	known   map[string]answer
	asking  map[string]bool
	waiting map[string][]func([]netip.Addr, error)
}

// answer is what is known of a name. All times are the monotonic clock's.
type answer struct {
	addrs   []netip.Addr
	err     error
	refresh int64 // when it is asked for again, if it is used
	until   int64 // when it has run out
	stale   int64 // when it is too old even where there is nothing else
}

func newNames(resolve Resolver) *names {
	if resolve == nil {
		resolve = systemResolver
	}
	n := &names{
		resolve: resolve,
		known:   map[string]answer{},
		asking:  map[string]bool{},
		waiting: map[string][]func([]netip.Addr, error){},
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	return n
}

// cached returns an answer that holds, if there is one.
func (n *names) cached(host string, now int64) (addrs []netip.Addr, err error, known bool) {
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

// lookup asks the resolver and calls done from another goroutine.
func (n *names) lookup(host string, done func([]netip.Addr, error)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.waiting[host] = append(n.waiting[host], done)
	n.ask(host)
}

// wait asks the resolver unless an answer holds.
func (n *names) wait(ctx context.Context, host string) ([]netip.Addr, error) {
	if addrs, err, known := n.cached(host, monotonic()); known {
		return addrs, err
	}
	type reply struct {
		addrs []netip.Addr
		err   error
	}
	replied := make(chan reply, 1)
	n.lookup(host, func(addrs []netip.Addr, err error) { replied <- reply{addrs, err} })
	select {
	case r := <-replied:
		return r.addrs, r.err
	case <-ctx.Done():
		return nil, errors.New("no answer about " + host + " in time")
	}
}

// ask begins a question unless one is under way. The caller holds the lock.
func (n *names) ask(host string) {
	if n.asking[host] {
		return
	}
	n.asking[host] = true
	n.running.Go(func() {
		impatient := time.AfterFunc(nameStaleAfter, func() { n.serveStale(host) })
		found, err := n.resolve(n.ctx, host)
		impatient.Stop()
		if err == nil && len(found.Addrs) == 0 {
			err = &net.DNSError{Err: "the name has no address", Name: host, IsNotFound: true}
		}
		n.mu.Lock()
		delete(n.asking, host)
		if err == nil {
			n.known[host] = fresh(found, monotonic())
			n.tell(host)
		} else if isNotFound(err) || !n.useStale(host) {
			n.known[host] = answer{err: err, until: monotonic() + int64(nameFailedKept)}
			n.tell(host)
		}
		n.mu.Unlock()
	})
}

// isNotFound says whether a resolver has answered that a name has no address.
func isNotFound(err error) bool {
	var dns *net.DNSError
	return errors.As(err, &dns) && dns.IsNotFound
}

func fresh(found Answer, now int64) answer {
	kept := nameKept
	if found.TTL > 0 {
		kept = min(max(found.TTL, nameKeptLeast), nameKeptMost)
	}
	return answer{
		addrs:   found.Addrs,
		refresh: now + int64(kept*4/5),
		until:   now + int64(kept),
		stale:   now + int64(kept+nameStaleMost),
	}
}

// serveStale helps those who wait for a name to what it was before.
func (n *names) serveStale(host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.waiting[host]) > 0 {
		n.useStale(host)
	}
}

// useStale has an answer that has run out hold a little longer, if it is not
// too old. The caller holds the lock.
func (n *names) useStale(host string) bool {
	a, ok := n.known[host]
	now := monotonic()
	if !ok || a.err != nil || now >= a.stale {
		return false
	}
	if soon := now + int64(nameFailedKept); a.until < soon {
		a.until, a.refresh = soon, soon
		n.known[host] = a
	}
	n.tell(host)
	return true
}

// tell answers those who wait. The caller holds the lock; what is told posts
// a letter or fills a channel, and does not come back here.
func (n *names) tell(host string) {
	a := n.known[host]
	for _, done := range n.waiting[host] {
		done(a.addrs, a.err)
	}
	delete(n.waiting, host)
}

func (n *names) close() {
	n.cancel()
	n.running.Wait()
}

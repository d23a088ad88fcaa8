package relay

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
)

// Resolver turns a host name into addresses, best first. It must return when
// the context ends.
type Resolver func(ctx context.Context, host string) ([]netip.Addr, error)

const (
	nameKept       = int64(5e9) // ns that an answer is used again
	nameFailedKept = int64(1e9) // the same for a failure
)

func systemResolver(ctx context.Context, host string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

// names is a small cache in front of a resolver. Lookups of one name at one
// time share one question.
type names struct {
	resolve Resolver
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	known   map[string]answer
	waiting map[string][]func([]netip.Addr, error)
}

type answer struct {
	addrs []netip.Addr
	err   error
	until int64
}

func newNames(resolve Resolver) *names {
	if resolve == nil {
		resolve = systemResolver
	}
	n := &names{resolve: resolve, known: map[string]answer{}, waiting: map[string][]func([]netip.Addr, error){}}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	return n
}

// cached returns a recent answer, if there is one.
func (n *names) cached(host string, now int64) (addrs []netip.Addr, err error, known bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	a, ok := n.known[host]
	if !ok || now >= a.until {
		return nil, nil, false
	}
	return a.addrs, a.err, true
}

// lookup asks the resolver and calls done from another goroutine.
func (n *names) lookup(host string, done func([]netip.Addr, error)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.waiting[host] = append(n.waiting[host], done)
	if len(n.waiting[host]) > 1 {
		return
	}
	n.running.Go(func() {
		addrs, err := n.resolve(n.ctx, host)
		kept := nameKept
		if err == nil && len(addrs) == 0 {
			err = errors.New("the name " + host + " has no address")
		}
		if err != nil {
			addrs, kept = nil, nameFailedKept
		}
		n.mu.Lock()
		n.known[host] = answer{addrs, err, monotonic() + kept}
		waiting := n.waiting[host]
		delete(n.waiting, host)
		n.mu.Unlock()
		for _, done := range waiting {
			done(addrs, err)
		}
	})
}

func (n *names) close() {
	n.cancel()
	n.running.Wait()
}

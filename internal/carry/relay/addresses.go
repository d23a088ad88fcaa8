package relay

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"longhaul/internal/sys/eyeballs"
)

const (
	maxAddressChecks = 8    // at the same time
	maxAddressHosts  = 1024 // names with a port
)

// addresses is what the relay knows of the addresses of its targets' names. It outlives reloads.
type addresses struct {
	log     *slog.Logger
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	places  chan struct{} // of checks that run

	mu    sync.Mutex
	hosts map[string]*eyeballs.Host // by name and port
}

func newAddresses(log *slog.Logger) *addresses {
	a := &addresses{log: log, places: make(chan struct{}, maxAddressChecks), hosts: map[string]*eyeballs.Host{}}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	return a
}

// of returns what is known of a name and port.
func (a *addresses) of(name string, port uint16) *eyeballs.Host {
	at := net.JoinHostPort(name, strconv.Itoa(int(port)))
	a.mu.Lock()
	defer a.mu.Unlock()
	h := a.hosts[at]
	if h == nil {
		h = eyeballs.New(eyeballs.Options{Background: a.check, Changed: func(f eyeballs.Family) { a.changed(name, f) }})
		for other := range a.hosts {
			if len(a.hosts) < maxAddressHosts {
				break
			}
			delete(a.hosts, other) // routes keep theirs
		}
		a.hosts[at] = h
	}
	return h
}

// check runs a check, when it has a place.
func (a *addresses) check(check func(context.Context)) {
	a.running.Go(func() {
		select {
		case a.places <- struct{}{}:
			defer func() { <-a.places }()
		case <-a.ctx.Done():
		}
		check(a.ctx)
	})
}

func (a *addresses) changed(name string, f eyeballs.Family) {
	if f.Dead {
		a.log.Warn(deadFamily(name, f), "error", f.Err)
		return
	}
	a.log.Info(f.Name + " of " + strings.TrimSuffix(name, ".") + " answers again")
}

func deadFamily(name string, f eyeballs.Family) string {
	return f.Name + " of " + strings.TrimSuffix(name, ".") + " does not answer; flows go to " + f.To.Addr().String()
}

// close ends the checks and waits for them. No event loop runs any more.
func (a *addresses) close() {
	a.cancel()
	a.running.Wait()
}

// deadFamilies says of each name of the tunnel's hops which family does not answer.
func (in *installed) deadFamilies() (said []string) {
	routes := slices.Clone(in.far)
	for _, l := range in.listeners {
		if rt := l.route.Load(); rt != nil {
			routes = append(routes, rt)
		}
	}
	for _, rt := range routes {
		for i := range rt.targets {
			for _, f := range rt.targets[i].addresses.Dead() {
				if s := deadFamily(rt.targets[i].host, f); !slices.Contains(said, s) {
					said = append(said, s)
				}
			}
		}
	}
	return said
}

// take adopts the addresses of a name in the order in which they are tried.
func (w *worker) take(f *flow, addrs []netip.Addr, err error) {
	o := f.opening
	if len(addrs) == 0 {
		o.unresolved(err)
		return
	}
	w.addrs = w.addrs[:0]
	for _, a := range addrs {
		w.addrs = append(w.addrs, netip.AddrPortFrom(a, o.port))
	}
	if len(addrs) > 1 {
		o.host = f.route.targets[o.order[o.next-1]].addresses
	}
	o.addrs = o.host.Order(o.few[:0], w.addrs, f.route.hops.Turn(f.hop, f.origin().Addr()))
}

package hops

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"longhaul/internal/halfopen"
	"longhaul/internal/relay/monotime"
)

// Prober asks a hop whether it can be used. Implementations are called from
// several goroutines at once, and compared with ==.
type Prober interface {
	// Probe returns why flows should not go to the address, nil if they
	// should, and how long the answer took. It returns when the context ends.
	Probe(ctx context.Context, to netip.AddrPort) (rtt time.Duration, err error)
}

// ConnectProbe is a Prober that asks whether the hop accepts connections. The hop's
// program sees none, and nothing stays in a queue or in TIME_WAIT.
type ConnectProbe struct{}

// Probe asks at the address.
func (ConnectProbe) Probe(ctx context.Context, to netip.AddrPort) (time.Duration, error) {
	rtt, err := halfopen.Ask(ctx, to.String(), halfopen.Options{})
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err
		}
		// The dialer may notice the deadline before ctx does.
		if ctx.Err() != nil || op != nil && op.Timeout() {
			err = errors.New("no answer in time")
		}
		return 0, fmt.Errorf("connect to %s: %w", to, err)
	}
	return rtt, nil
}

// Probes runs a goroutine for every probed hop.
type Probes struct {
	resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	changed func(tunnel string, h *Hop, err error)

	mu      sync.Mutex
	running map[*Hop]*probing
	ended   sync.WaitGroup
	closed  bool
}

// probing is the configuration of one hop's probes.
type probing struct {
	tunnel string
	target Target
	health Health
	cancel context.CancelFunc
}

// NewProbes makes probes of no hop. resolve returns the addresses of a name.
// changed is called when probes take a hop down, with the error of the last,
// and when they bring it back, without one.
func NewProbes(resolve func(ctx context.Context, host string) ([]netip.Addr, error), changed func(tunnel string, h *Hop, err error)) *Probes {
	return &Probes{resolve: resolve, changed: changed, running: map[*Hop]*probing{}}
}

// Follow starts and stops probes so that they match the hops of all tunnels, by
// the tunnel's name. Unchanged probes go on undisturbed.
func (p *Probes) Follow(tunnels map[string]*Set) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	wanted := map[*Hop]*probing{}
	for name, s := range tunnels {
		for i, h := range s.hops {
			if s.health.Probe != nil {
				wanted[h] = &probing{tunnel: name, target: s.forward[i], health: s.health}
			}
		}
	}
	for h, now := range p.running {
		next := wanted[h]
		if next != nil && next.health == now.health {
			delete(wanted, h)
			continue
		}
		now.cancel()
		delete(p.running, h)
		if next == nil {
			h.unprobed()
		}
	}
	for h, next := range wanted {
		ctx, cancel := context.WithCancel(context.Background())
		next.cancel = cancel
		p.running[h] = next
		p.ended.Go(func() { p.probe(ctx, h, next) })
	}
}

// Close ends all probes and waits for them.
func (p *Probes) Close() {
	p.mu.Lock()
	p.closed = true
	for _, one := range p.running {
		one.cancel()
	}
	p.mu.Unlock()
	p.ended.Wait()
}

// probe probes one hop repeatedly. The first probe comes within a tenth of the
// interval, so that relays which start together spread their probes.
func (p *Probes) probe(ctx context.Context, h *Hop, about *probing) {
	wait := time.Duration(rand.Float64() * float64(about.health.Interval) / 10)
	for {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		began := time.Now()
		rtt, err := p.probeOnce(ctx, about)
		if ctx.Err() != nil {
			return // a cancelled probe says nothing about the hop
		}
		if h.probedAs(monotime.Now(), &about.health, rtt, err) {
			p.changed(about.tunnel, h, err)
		}
		wait = max(0, about.health.Interval-time.Since(began))
	}
}

// probeOnce probes all addresses of a hop at once. One success suffices: a flow
// tries the next address by itself.
func (p *Probes) probeOnce(ctx context.Context, about *probing) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, about.health.Timeout)
	defer cancel()
	var addrs []netip.Addr
	if a, err := netip.ParseAddr(about.target.Host); err == nil {
		addrs = []netip.Addr{a.Unmap()}
	} else if addrs, err = p.resolve(ctx, about.target.Host); err != nil {
		return 0, err
	}
	type outcome struct {
		rtt time.Duration
		err error
	}
	outcomes := make(chan outcome, len(addrs))
	for _, a := range addrs {
		go func() {
			rtt, err := about.health.Probe.Probe(ctx, netip.AddrPortFrom(a, about.target.Port))
			outcomes <- outcome{rtt, err}
		}()
	}
	best := <-outcomes
	for range len(addrs) - 1 {
		if o := <-outcomes; best.err != nil || o.err == nil && o.rtt < best.rtt {
			best = o
		}
	}
	return best.rtt, best.err
}

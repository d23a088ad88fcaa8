package relay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"longhaul/internal/relay/monotime"
)

// ConnectProbe is a Prober that connects and then resets the connection:
// nothing stays in a queue or in TIME_WAIT.
type ConnectProbe struct{}

// Probe connects to the address.
func (ConnectProbe) Probe(ctx context.Context, to netip.AddrPort) (time.Duration, error) {
	began := time.Now()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", to.String())
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
	rtt := time.Since(began)
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.Close()
	return rtt, nil
}

// probes runs a goroutine for every probed hop.
type probes struct {
	relay *Relay

	mu      sync.Mutex
	running map[*hop]*probing
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

func newProbes(r *Relay) *probes {
	return &probes{relay: r, running: map[*hop]*probing{}}
}

// follow starts and stops probes so that they match a table. Unchanged probes
// go on undisturbed.
func (p *probes) follow(t *table) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	wanted := map[*hop]*probing{}
	for _, in := range t.tunnels {
		for i, h := range in.hops {
			if in.tunnel.Health.Probe != nil {
				wanted[h] = &probing{tunnel: in.tunnel.Name, target: in.tunnel.Forward[i], health: in.tunnel.Health}
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

func (p *probes) close() {
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
func (p *probes) probe(ctx context.Context, h *hop, about *probing) {
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
			if err != nil {
				p.relay.hopLeft(about.tunnel, h, "its checks fail", err)
			} else {
				p.relay.log.Info("hop is back", "tunnel", about.tunnel, "hop", h.name)
			}
		}
		wait = max(0, about.health.Interval-time.Since(began))
	}
}

// probeOnce probes all addresses of a hop at once. One success suffices: a flow
// tries the next address by itself.
func (p *probes) probeOnce(ctx context.Context, about *probing) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, about.health.Timeout)
	defer cancel()
	var addrs []netip.Addr
	if a, err := netip.ParseAddr(about.target.Host); err == nil {
		addrs = []netip.Addr{a.Unmap()}
	} else if addrs, err = p.relay.names.Wait(ctx, about.target.Host); err != nil {
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

// hopLeft logs that a hop gets no new flows, and moves the flows that are
// connecting to it to other hops.
func (r *Relay) hopLeft(tunnel string, h *hop, why string, err error, more ...any) {
	r.log.Warn("hop left the choice: "+why, append([]any{"tunnel", tunnel, "hop", h.name, "error", err}, more...)...)
	for _, w := range r.workers {
		w.post(func() {
			w.eachFlow(func(f *flow) { w.moveOn(f, h) })
		})
	}
}

// DrainHop drains or restores a hop of a tunnel; an empty tunnel means every
// tunnel with the hop. Connected flows go on. It returns the names of the
// tunnels that have the hop, and an UnknownHopError if there is none.
func (r *Relay) DrainHop(tunnel, name string, drained bool) ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found, known []string
	for _, in := range r.table.Load().tunnels {
		if tunnel != "" && in.tunnel.Name != tunnel {
			continue
		}
		for _, h := range in.hops {
			known = append(known, h.name)
			if h.name == name {
				h.drain(drained)
				found = append(found, in.tunnel.Name)
			}
		}
	}
	if len(found) == 0 {
		return nil, &UnknownHopError{Hop: name, Tunnel: tunnel, Known: known}
	}
	return found, nil
}

// UnknownHopError reports a hop that no tunnel, or not the named one, has.
type UnknownHopError struct {
	Hop, Tunnel string
	Known       []string
}

func (e *UnknownHopError) Error() string {
	if e.Tunnel == "" {
		return fmt.Sprintf("no tunnel has a hop %s", e.Hop)
	}
	return fmt.Sprintf("tunnel %s has no hop %s", e.Tunnel, e.Hop)
}

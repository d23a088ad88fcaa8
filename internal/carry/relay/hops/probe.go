package hops

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"longhaul/internal/carry/relay/monotime"
	"longhaul/internal/sys/halfopen"
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
		var call *os.SyscallError
		if errors.As(err, &op) {
			err = op.Err
		}
		if errors.As(err, &call) {
			err = call.Err
		}
		// The dialer may notice the deadline before ctx does.
		if ctx.Err() != nil || op != nil && op.Timeout() {
			err = errors.New("no answer in time")
		}
		return 0, fmt.Errorf("connect to %s: %w", to, err)
	}
	return rtt, nil
}

// Probes asks hops at intervals. Between two questions a hop costs a timer.
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
	timer  *time.Timer // until the next probe
	// until the hop answers; without it: as long as the tunnel is configured so
	until bool
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
			if next := s.probing(name, i); next != nil && (!next.until || h.failures.Load() > 0) {
				wanted[h] = next
			}
		}
	}
	for h, now := range p.running {
		next := wanted[h]
		if next != nil && next.health == now.health && next.until == now.until {
			delete(wanted, h)
			continue
		}
		p.stop(now)
		delete(p.running, h)
		h.watched.Store(false)
		if !now.until && next == nil {
			h.unprobed()
		}
	}
	for h, next := range wanted {
		p.start(h, next)
	}
}

// probing is what probes of a hop are to be like; nil: it has none.
func (s *Set) probing(tunnel string, i int) *probing {
	one := &probing{tunnel: tunnel, target: s.forward[i], health: s.health}
	if one.health.Probe == nil {
		if one.target.Original || one.health.Blind || one.target.Carrier != nil {
			return nil
		}
		one.until, one.health.Probe = true, ConnectProbe{}
	}
	return one
}

// start begins to probe a hop. The caller holds mu.
func (p *Probes) start(h *Hop, next *probing) {
	ctx, cancel := context.WithCancel(context.Background())
	next.cancel = cancel
	p.running[h] = next
	h.watched.Store(next.until)
	// The first probe comes within a tenth of the interval, so that relays which start together
	// spread their probes.
	wait := time.Duration(rand.Float64() * float64(next.health.Interval) / 10)
	if next.until {
		wait = next.health.Interval // a flow may succeed before
	}
	p.after(ctx, wait, h, next)
}

// after probes a hop in some time. The caller holds mu.
func (p *Probes) after(ctx context.Context, wait time.Duration, h *Hop, about *probing) {
	p.ended.Add(1)
	about.timer = time.AfterFunc(wait, func() {
		defer p.ended.Done()
		wait, again := p.probe(ctx, h, about)
		p.mu.Lock()
		defer p.mu.Unlock()
		if again && ctx.Err() == nil {
			p.after(ctx, wait, h, about)
		}
	})
}

// stop ends the probes of a hop. The caller holds mu.
func (p *Probes) stop(one *probing) {
	one.cancel()
	if one.timer.Stop() {
		p.ended.Done()
	}
}

// Retry has a hop to which a flow could not connect probed until it answers: no client has
// to find out.
func (p *Probes) Retry(tunnel string, s *Set, h *Hop) {
	if s.health.Probe != nil || h.watched.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(s.hops, h)
	if p.closed || p.running[h] != nil || i < 0 {
		return
	}
	if next := s.probing(tunnel, i); next != nil {
		p.start(h, next)
	}
}

// retries reports whether a hop has still not answered. It ends its probes if it has.
func (p *Probes) retries(h *Hop, about *probing) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h.failures.Load() > 0 {
		return true
	}
	if p.running[h] == about {
		p.stop(about)
		delete(p.running, h)
		h.watched.Store(false)
	}
	return false
}

// Close ends all probes and waits for them.
func (p *Probes) Close() {
	p.mu.Lock()
	p.closed = true
	for _, one := range p.running {
		p.stop(one)
	}
	p.mu.Unlock()
	p.ended.Wait()
}

// probe probes one hop once. It returns when to do so again, and whether.
func (p *Probes) probe(ctx context.Context, h *Hop, about *probing) (wait time.Duration, again bool) {
	began := time.Now()
	record := h.probedAs
	if about.until {
		record = h.retriedAs
		if !p.retries(h, about) {
			return 0, false
		}
	}
	rtt, err := p.probeOnce(ctx, h, about)
	if ctx.Err() != nil {
		return 0, false // a cancelled probe says nothing about the hop
	}
	if isOfThisHost(err) {
		return about.health.Interval, true
	}
	if record(monotime.Now(), &about.health, rtt, err) {
		p.changed(about.tunnel, h, err)
	}
	return max(0, about.health.Interval-time.Since(began)), true
}

// isOfThisHost reports whether a probe failed since this host lacks something, which says
// nothing about the hop.
func isOfThisHost(err error) bool {
	for _, lack := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL, syscall.EAGAIN} {
		if errors.Is(err, lack) {
			return true
		}
	}
	return false
}

// probePort is the port where the last flow failed, or else the first.
func (h *Hop) probePort(about *probing) uint16 {
	if port := h.port.Load(); port != 0 && h.failures.Load() > 0 {
		return uint16(port)
	}
	return about.target.Port
}

// probeOnce probes all addresses of a hop at once. One success suffices: a flow
// tries the next address by itself.
func (p *Probes) probeOnce(ctx context.Context, h *Hop, about *probing) (time.Duration, error) {
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
			rtt, err := about.health.Probe.Probe(ctx, netip.AddrPortFrom(a, h.probePort(about)))
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

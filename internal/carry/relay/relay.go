package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay/hops"
	"longhaul/internal/carry/relay/names"
	"longhaul/internal/sys/selfconn"
)

// Defaults of Options and Tunnel.
const (
	DefaultConnectTimeout    = 10 * time.Second
	DefaultHalfCloseTimeout  = time.Hour
	DefaultResetDrainTimeout = 30 * time.Second
	DefaultStallTimeout      = 30 * time.Second
)

// ErrClosed is returned by calls on a relay that was closed or drained.
var ErrClosed = errors.New("the relay is closed")

// Relay forwards the flows of its tunnels. Its methods may be called from any
// goroutine.
type Relay struct {
	opts      Options
	log       *slog.Logger
	names     *names.Cache
	addresses *addresses
	probes    *hops.Probes
	workers   []*worker

	live       atomic.Int64 // flows
	pipeBudget atomic.Int64 // pipes that may still be opened
	pipesMost  int64
	idle       chan struct{} // told when the last flow has ended

	localPorts portRange // that the kernel gives out to sockets that connect

	pausedWorkers atomic.Int32
	starved       atomic.Int32 // flows that wait for a descriptor
	pauseLogged   atomic.Bool
	memory        memoryGuard
	sources       sources
	held          heldFlows
	flowIDs       atomic.Uint64 // the last one given out
	flowNames     flowNames
	acceptErrors  errnoCounts
	sampling      sampling
	shed          atomic.Pointer[shedding]
	keepsEnds     atomic.Bool
	joints        *selfconn.Connector // of flows that go from one pair to another
	pairLegs      report.LegOptions   // of all other flows of pairs
	integrity     sync.WaitGroup      // integrity checks that are being answered

	loops atomic.Pointer[[]*worker] // workers, for those who must not wait for mu

	mu       sync.Mutex // holds changes, drain and close apart
	started  bool
	change   *Change // prepared, and neither committed nor aborted
	closed   bool
	draining atomic.Bool

	relinquished atomic.Bool // another process accepts
	table        atomic.Pointer[table]
	lives        int64 // of tunnels, numbered
	nextID       int32
}

// New makes a relay without tunnels, which does nothing. The first change that is
// committed starts it.
func New(opts Options) *Relay {
	if opts.Workers <= 0 {
		opts.Workers = runtime.GOMAXPROCS(0)
	}
	if opts.HalfCloseTimeout == 0 {
		opts.HalfCloseTimeout = DefaultHalfCloseTimeout
	}
	if opts.StallTimeout == 0 {
		opts.StallTimeout = DefaultStallTimeout
	}
	if opts.ResetDrainTimeout <= 0 {
		opts.ResetDrainTimeout = DefaultResetDrainTimeout
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	opts.Listeners = slices.Clone(opts.Listeners)
	r := &Relay{opts: opts, log: opts.Log, names: names.New(opts.Resolve), addresses: newAddresses(opts.Log), idle: make(chan struct{}, 1)}
	r.joints = selfconn.New()
	r.pairLegs.ResetDrain = opts.ResetDrainTimeout
	r.probes = hops.NewProbes(r.names.Wait, r.hopProbed)
	r.names.Remember(opts.Names)
	r.memory.limit.Store(max(0, opts.MemoryLimitBytes))
	r.table.Store(&table{})
	return r
}

// Start makes a relay that has tunnels, and serves them.
func Start(opts Options, tunnels []Tunnel) (*Relay, error) {
	r := New(opts)
	c, err := r.Prepare(tunnels)
	if err == nil {
		err = c.Commit()
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// start begins the event loops. The caller holds mu.
func (r *Relay) start() error {
	r.localPorts = localPortRange()
	r.pipesMost = pipeLimit()
	r.pipeBudget.Store(r.pipesMost)
	for range r.opts.Workers {
		w, err := newWorker(r)
		if err != nil {
			for _, w := range r.workers {
				w.closeDescriptors()
			}
			r.workers = nil
			return err
		}
		r.workers = append(r.workers, w)
	}
	for _, w := range r.workers {
		go w.loop()
	}
	workers := r.workers
	r.loops.Store(&workers)
	r.started = true
	return nil
}

// stop takes start back. The caller holds mu.
func (r *Relay) stop() {
	r.started = false
	r.loops.Store(nil)
	r.stopWorkers(report.EndDrain)
	r.workers = nil
}

// pipeLimit leaves most of the process's descriptors to flows: pipes make
// bulk transfer cheap, but a flow works without.
func pipeLimit() int64 {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return 64
	}
	return int64(max(4, min(lim.Cur/8, 8192)))
}

// Drain stops accepting and waits until the last flow has ended. When the
// context ends first it ends the flows that are left, and returns them along
// with the context's error. They are reset, but for legs whose peers only have
// to acknowledge the rest: the kernel goes on with these.
func (r *Relay) Drain(ctx context.Context) (left []Leftover, err error) {
	r.mu.Lock()
	if !r.started || r.closed {
		r.mu.Unlock()
		return nil, ErrClosed
	}
	r.giveUpChange()
	r.draining.Store(true)
	r.releaseHeld("", phaseDialing)
	r.closeListeners(r.emptyTable((*installed).needsLanes))
	r.releaseHeld("", phaseHeld) // who has not connected by now cannot
	workers := r.workers
	r.mu.Unlock()

	for r.live.Load() > 0 {
		select {
		case <-r.idle:
			continue
		case <-ctx.Done():
		}
		for _, w := range workers {
			w.do(func() {
				w.eachFlow(func(f *flow) {
					left = append(left, w.leftover(f))
					w.leave(f, report.EndDrain)
				})
			})
		}
		if len(left) > 0 {
			return left, ctx.Err()
		}
	}
	return nil, nil
}

// Close stops accepting, resets every flow and returns when nothing of the
// relay is left. It aborts a change that is prepared.
func (r *Relay) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.giveUpChange()
	r.closed = true
	r.draining.Store(true)
	r.closeListeners(r.emptyTable(nil))
	r.stopWorkers(report.EndDrain)
	r.probes.Close()
	r.addresses.close()
	r.integrity.Wait()
	r.joints.Close()
	r.names.Close()
}

func (r *Relay) stopWorkers(reason report.EndReason) {
	for _, w := range r.workers {
		w.post(func() { w.stop(reason) })
	}
	for _, w := range r.workers {
		<-w.done
	}
}

func (r *Relay) flowGone(f *flow) {
	f.leaveHop()
	f.route.state.flows.Add(-1)
	f.source.flows.Add(-1)
	if f.paired != nil && f.paired.client != nil {
		f.paired.client.flows.Add(-1)
	}
	if f.chain != nil && f.chain.limit != nil {
		f.chain.limit.flows.Add(-1)
	}
	if r.live.Add(-1) == 0 {
		select {
		case r.idle <- struct{}{}:
		default:
		}
	}
}

func (r *Relay) acceptPaused(cause error) {
	r.pausedWorkers.Add(1)
	if !r.pauseLogged.CompareAndSwap(false, true) {
		return
	}
	r.log.Warn("accepting is paused: there is no room for more connections",
		"error", cause, "flows", r.live.Load(),
		"remedy", "raise the limit of open files (LimitNOFILE= in the unit) or lower max_flows")
}

func (r *Relay) acceptRetried() { r.pausedWorkers.Add(-1) }

func (r *Relay) acceptRecovered() {
	if r.pausedWorkers.Load() == 0 && r.pauseLogged.CompareAndSwap(true, false) {
		r.log.Info("accepting goes on", "flows", r.live.Load())
	}
}

// validateTunnels returns the tunnels with their defaults filled in, as copies
// that nobody else changes.
func validateTunnels(tunnels []Tunnel) ([]Tunnel, error) {
	known := map[string]bool{}
	out := make([]Tunnel, 0, len(tunnels))
	for _, t := range tunnels {
		if known[t.Name] {
			return nil, fmt.Errorf("two tunnels are named %q; give each its own name", t.Name)
		}
		known[t.Name] = true
		if len(t.Listen) == 0 && len(t.Inherited) == 0 {
			return nil, fmt.Errorf("tunnel %q has no listening address; add one", t.Name)
		}
		if len(t.Forward) == 0 && t.Service == "" {
			return nil, fmt.Errorf("tunnel %q leads nowhere; add a target", t.Name)
		}
		if t.ProxyOut > ProxyV2 {
			return nil, fmt.Errorf("tunnel %q asks for PROXY protocol version %d; use 1 or 2", t.Name, t.ProxyOut)
		}
		if t.ConnectTimeout <= 0 {
			t.ConnectTimeout = DefaultConnectTimeout
		}
		t.Allow = unmapped(t.Allow)
		t.ProxyIn.Trusted = unmapped(t.ProxyIn.Trusted)
		t.Forward = slices.Clone(t.Forward)
		for i := range t.Forward {
			f := &t.Forward[i]
			f.Weight, f.Priority = max(1, f.Weight), max(1, f.Priority)
			for _, other := range t.Forward[:i] {
				if other.String() == f.String() {
					return nil, fmt.Errorf("tunnel %q has the hop %s twice; give it a weight instead", t.Name, f)
				}
			}
		}
		switch t.Balance {
		case "":
			t.Balance = hops.Ordered
		case hops.Ordered, hops.LeastFlows, hops.RoundRobin, hops.Source:
		default:
			return nil, fmt.Errorf("tunnel %q balances by %q; use ordered, least-flows, round-robin or source", t.Name, t.Balance)
		}
		t.Health = t.Health.WithDefaults()
		out = append(out, t)
	}
	return out, nil
}

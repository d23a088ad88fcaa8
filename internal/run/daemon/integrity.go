package daemon

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/integrity"
	"longhaul/internal/carry/relay"
	"longhaul/internal/carry/relay/hops"
	"longhaul/internal/run/config"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/sorted"
)

const (
	maxIntegrityTime   = time.Minute      // for the check of one chain
	strangerPause      = 10 * time.Second // between two lines about checks that are not answered
	integrityInstances = 1 << 62
)

// integrityChecks is the part of the integrity checks: those that the tunnels make and those that they
// answer.
type integrityChecks struct {
	log          *slog.Logger
	self         integrity.Identity
	memory       *integrity.Memory
	readablePath func(path string) string // of a configured key file

	mu      sync.Mutex
	current map[string]*tunnelIntegrity // by tunnel
	closed  bool
	running sync.WaitGroup
}

// integritySettings is the configuration of a tunnel's integrity checks, as a
// comparable value.
type integritySettings struct {
	tunnel    string
	forward   string
	check     config.Check
	keys      integrity.Keys
	proxyOut  relay.ProxyVersion
	transport relay.Transport
}

// tunnelIntegrity makes and answers the integrity checks of one tunnel.
type tunnelIntegrity struct {
	integritySettings
	self   integrity.Identity
	log    *slog.Logger
	memory *integrity.Memory
	hops   []hops.Target
	server *integrityServer // nil: without a key nobody may ask
	turn   chan struct{}    // one check at a time
	cancel context.CancelFunc

	mu   sync.Mutex
	last *integrity.Report // nil: none yet
}

func newIntegrityChecks(log *slog.Logger, version string, readablePath func(string) string) *integrityChecks {
	host, err := os.Hostname()
	if err != nil {
		host = "unnamed host"
	}
	return &integrityChecks{log: log, readablePath: readablePath, memory: integrity.NewMemory(), self: integrity.Identity{
		Version: version, Host: host, Instance: strconv.FormatInt(rand.Int64N(integrityInstances), 36),
	}}
}

// Prepare gives tunnels what they need to answer checks. Tunnels that are as they
// were keep it.
func (c *integrityChecks) Prepare(_ context.Context, p *plan) (Change, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := map[string]*tunnelIntegrity{}
	for i := range p.tunnels {
		t, configured := &p.tunnels[i], &p.Tunnels[i]
		settings := integritySettings{tunnel: t.Name, check: configured.Check, proxyOut: t.ProxyOut, transport: t.Transport}
		for _, f := range t.Forward {
			settings.forward += f.String() + " "
		}
		if now := c.current[t.Name]; p.onlyHops && now != nil {
			settings.keys = now.keys
		} else if settings.check.Enabled && settings.check.KeyFile != "" {
			var err error
			if settings.keys, err = integrity.LoadKeys(c.readablePath(settings.check.KeyFile)); err != nil {
				return nil, fmt.Errorf("tunnel %s: %w", t.Name, err)
			}
		}
		one := c.current[t.Name]
		if one == nil || one.integritySettings != settings {
			one = c.make(settings, t.Forward)
		}
		if one.server != nil {
			t.Integrity = one.server
		}
		if configured.Health.Check == config.HealthEndToEnd {
			t.Health.Probe = integrity.Health{Key: settings.keys.First, Preamble: string(integrityPreamble(t.ProxyOut)), Memory: c.memory}
		}
		next[t.Name] = one
	}
	return setting(func() { c.commit(next) }), nil
}

func (c *integrityChecks) make(settings integritySettings, forward []hops.Target) *tunnelIntegrity {
	t := &tunnelIntegrity{integritySettings: settings, self: c.self, log: c.log, memory: c.memory, hops: slices.Clone(forward), turn: make(chan struct{}, 1)}
	t.self.Tunnel = settings.tunnel
	if !settings.keys.First.IsZero() {
		t.server = t.newServer()
	}
	return t
}

// commit puts the checks of tunnels into force, and begins the periodic ones.
func (c *integrityChecks) commit(next map[string]*tunnelIntegrity) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	for name, t := range c.current {
		if next[name] != t && t.cancel != nil {
			t.cancel()
		}
	}
	c.current = next
	for _, t := range c.current {
		if t.check.Enabled && t.check.Interval > 0 && t.cancel == nil {
			var ctx context.Context
			ctx, t.cancel = context.WithCancel(context.Background())
			c.running.Go(func() { t.repeat(ctx) })
		}
	}
}

// close ends the periodic checks.
func (c *integrityChecks) close() {
	c.mu.Lock()
	c.closed = true
	for _, t := range c.current {
		if t.cancel != nil {
			t.cancel()
		}
	}
	c.mu.Unlock()
	c.running.Wait()
}

// reports are the last ones, by tunnel.
func (c *integrityChecks) reports() []integrity.Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := []integrity.Report{}
	for _, t := range c.current {
		if last := t.report(); last != nil {
			all = append(all, *last)
		}
	}
	sorted.By(all, func(a, b integrity.Report) int { return cmp.Compare(a.Tunnel, b.Tunnel) })
	return all
}

func (c *integrityChecks) find(tunnel string) (*tunnelIntegrity, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.current[tunnel]; t != nil {
		return t, nil
	}
	var names []string
	for name := range c.current {
		names = append(names, name)
	}
	slices.Sort(names)
	return nil, remedy.New(fmt.Errorf("there is no tunnel %q", tunnel), "choose from "+strings.Join(names, ", "))
}

// check checks a tunnel at once.
func (d *daemon) check(ctx context.Context, arguments url.Values) (any, error) {
	t, err := d.integrity.find(arguments.Get("tunnel"))
	if err != nil {
		return nil, err
	}
	if isNear(d.life.inForce(), t.tunnel) {
		r, err := d.pairs.check(ctx, t.tunnel)
		return d.withClients(r), err
	}
	bytes := int64(0)
	if text := arguments.Get("bytes"); text != "" {
		bytes, err = strconv.ParseInt(text, 10, 64)
		if err != nil || bytes < integrity.MinBytes || bytes > integrity.MaxBytes {
			return nil, remedy.New(fmt.Errorf("a check cannot send %s bytes", text), fmt.Sprintf("choose %d to %d", integrity.MinBytes, integrity.MaxBytes))
		}
	}
	r, err := t.run(ctx, bytes)
	return d.withClients(r), err
}

// withClients adds to what a check found behind the relay why the relay takes no clients, which the
// check does not meet.
func (d *daemon) withClients(r *integrity.Report) *integrity.Report {
	if r == nil {
		return nil
	}
	all := d.states.overview().Tunnels
	i := slices.IndexFunc(all, func(t flow.Tunnel) bool { return t.Name == r.Tunnel })
	if i < 0 {
		return r
	}
	said := *r
	for _, p := range all[i].Usability.Problems {
		switch p.Reason {
		case flow.ReasonPairDown, flow.ReasonHopsDown, flow.ReasonHopsDrained:
		default:
			said.Summary += "; but this tunnel " + p.Detail
		}
	}
	return &said
}

func (t *tunnelIntegrity) report() *integrity.Report {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

// repeat checks the tunnel at its interval. The first time comes within a tenth
// of that, so that relays which start together do not ask together.
func (t *tunnelIntegrity) repeat(ctx context.Context) {
	wait := time.Duration(rand.Float64() * float64(t.check.Interval) / 10)
	for {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		began := time.Now()
		_, _ = t.run(ctx, 0)
		wait = max(0, t.check.Interval-time.Since(began))
	}
}

// run checks the tunnel through each of its hops; 0 bytes stand for what is
// configured.
func (t *tunnelIntegrity) run(ctx context.Context, bytes int64) (*integrity.Report, error) {
	select {
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if bytes == 0 {
		bytes = int64(t.check.Bytes)
	}
	begin := time.Now()
	chains := make([]integrity.Chain, len(t.hops))
	for i, hop := range t.hops {
		within, cancel := context.WithTimeout(ctx, maxIntegrityTime)
		chains[i] = integrity.Walk{
			Self: t.self, Forward: hop.String(), Next: integrity.Next(t.check.Next), Key: t.keys.First, Bytes: bytes, Memory: t.memory,
			Dial: func(ctx context.Context) (integrity.Conn, netip.AddrPort, error) { return t.dial(ctx, hop) },
		}.Run(within)
		cancel()
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("the check was broken off: %w", context.Cause(ctx))
	}
	r := integrity.NewReport(t.tunnel, begin, chains)
	t.mu.Lock()
	before := t.last
	t.last = &r
	t.mu.Unlock()
	t.tell(before, &r)
	return &r, nil
}

// tell logs what has changed since the check before.
func (t *tunnelIntegrity) tell(before, now *integrity.Report) {
	if before != nil && before.State == now.State && verdict(before) == verdict(now) {
		return
	}
	attrs := []any{"tunnel", t.tunnel, "state", string(now.State), "found", now.Summary}
	switch now.State {
	case integrity.Whole:
		t.log.Info("check: the tunnel is whole", attrs...)
		return
	case integrity.Accepts:
		t.log.Info("check: the target accepts", attrs...)
		return
	}
	t.log.Warn("check: the tunnel is "+string(now.State), append(attrs, "hint", now.Hint)...)
}

// verdict is what of a report has to change to be worth telling.
func verdict(r *integrity.Report) (v string) {
	for _, c := range r.Chains {
		if c.Fault != nil {
			v += fmt.Sprintf("%s %s %d %s|", c.Forward, c.Fault.Reason, c.Fault.Hop, c.Fault.Direction)
		}
	}
	return v
}

// integrityServer answers the integrity checks of a tunnel.
type integrityServer struct {
	integrity *integrity.Server
	log       *slog.Logger
	tunnel    string
	strangers pause
}

func (t *tunnelIntegrity) newServer() *integrityServer {
	server := &integrity.Server{Identity: t.self, Keys: t.keys, Next: integrity.Next(t.check.Next),
		Dial: t.dialOne}
	var refused pause
	server.Guard = integrity.NewGuard(t.memory, func(what string, peer netip.AddrPort) {
		if refused.over() {
			t.log.Warn(what, "tunnel", t.tunnel, "from", peer)
		}
	})
	return &integrityServer{integrity: server, log: t.log, tunnel: t.tunnel}
}

// Recognize implements relay.IntegrityServer.
func (s *integrityServer) Recognize(first []byte) relay.Recognition {
	switch s.integrity.Keys.Recognize(first) {
	case integrity.IsHello:
		return relay.IsHello
	case integrity.MaybeHello:
		return relay.MaybeHello
	}
	if integrity.Resembles(first) && s.strangers.over() {
		s.log.Warn("what looks like a check was forwarded: it has another key, or was altered on the way", "tunnel", s.tunnel)
	}
	return relay.NoHello
}

// Serve implements relay.IntegrityServer.
func (s *integrityServer) Serve(ctx context.Context, c relay.IntegrityCheck) bool {
	flow := integrity.Flow{
		Client: c.Client, Local: c.Listen, Peer: c.From, Source: c.Source, Forward: c.Forward, Dialed: c.Dialed, Since: time.Now(),
		Before: c.Sent, ToClient: c.ToClient, ToTarget: c.ToTarget,
	}
	if c.Target != nil {
		flow.Target = c.Target
	} else {
		flow.Reason = integrityReason(c.End, c.Err)
		if flow.Reason == integrity.Failed && c.Err != nil {
			flow.Detail = c.Err.Error()
		}
	}
	return s.integrity.Serve(ctx, flow)
}

// pause bounds how often the log tells of something.
type pause struct{ last atomic.Pointer[time.Time] }

func (p *pause) over() bool {
	last, now := p.last.Load(), time.Now()
	return (last == nil || now.Sub(*last) > strangerPause) && p.last.CompareAndSwap(last, &now)
}

// integrityReason maps the cause that a flow has no target to the reason that an
// integrity check reports.
func integrityReason(end flow.EndReason, err error) integrity.Reason {
	switch end {
	case flow.EndTargetRefused:
		return integrity.Refused
	case flow.EndTargetUnknown:
		return integrity.Unresolved
	case flow.EndTargetReset:
		return integrity.Reset
	case flow.EndTargetTimeout:
		return integrity.TimedOut
	case flow.EndLoop:
		return integrity.Loop
	case flow.EndNoLocalPort:
		return integrity.NoLocalPort
	case flow.EndNoResources:
		return integrity.NoResources
	}
	if err != nil {
		return integrity.ReasonOf(err)
	}
	return integrity.Failed
}

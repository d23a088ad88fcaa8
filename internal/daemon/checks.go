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

	"longhaul/internal/flow"

	"longhaul/internal/check"
	"longhaul/internal/config"
	"longhaul/internal/relay"
	"longhaul/internal/remedy"
)

const (
	maxCheckTime   = time.Minute      // what a check of one chain may take
	strangerPause  = 10 * time.Second // between two lines about checks that are not answered
	checkInstances = 1 << 62
)

// checks are the integrity checks of the daemon's tunnels: those that it makes
// and those that it answers.
type checks struct {
	log    *slog.Logger
	self   check.Identity
	memory *check.Memory

	mu      sync.Mutex
	current map[string]*tunnelCheck // by tunnel
	next    map[string]*tunnelCheck // of the last equip
	closed  bool
	running sync.WaitGroup
}

// checkSettings are what a tunnel's checks depend on, as a value that compares.
type checkSettings struct {
	tunnel    string
	forward   string
	check     config.Check
	keys      check.Keys
	proxyOut  relay.ProxyVersion
	transport relay.Transport
}

// tunnelCheck checks one tunnel.
type tunnelCheck struct {
	checkSettings
	self    check.Identity
	log     *slog.Logger
	memory  *check.Memory
	hops    []relay.Target
	checker *relayChecker // nil: without a key nobody may ask
	turn    chan struct{} // one check at a time
	cancel  context.CancelFunc

	mu   sync.Mutex
	last *check.Report // nil: none yet
}

func newChecks(log *slog.Logger, version string) *checks {
	host, err := os.Hostname()
	if err != nil {
		host = "unnamed host"
	}
	return &checks{log: log, memory: check.NewMemory(), self: check.Identity{
		Version: version, Host: host, Instance: strconv.FormatInt(rand.Int64N(checkInstances), 36),
	}}
}

// equip gives tunnels what they need to answer checks. Tunnels that are as they
// were keep it.
func (c *checks) equip(from *config.Config, tunnels []relay.Tunnel) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next = map[string]*tunnelCheck{}
	for i := range tunnels {
		t := &tunnels[i]
		settings := checkSettings{tunnel: t.Name, check: from.Tunnels[i].Check, proxyOut: t.ProxyOut, transport: t.Transport}
		for _, f := range t.Forward {
			settings.forward += f.String() + " "
		}
		if settings.check.Enabled && settings.check.KeyFile != "" {
			var err error
			if settings.keys, err = check.LoadKeys(settings.check.KeyFile); err != nil {
				return fmt.Errorf("tunnel %s: %w", t.Name, err)
			}
		}
		one := c.current[t.Name]
		if one == nil || one.checkSettings != settings {
			one = c.make(settings, t.Forward)
		}
		if one.checker != nil {
			t.Checker = one.checker
		}
		if from.Tunnels[i].Health.Check == config.HealthEndToEnd {
			t.Health.Probe = check.Health{Key: settings.keys.First, Preamble: string(checkPreamble(t.ProxyOut)), Memory: c.memory}
		}
		c.next[t.Name] = one
	}
	return nil
}

func (c *checks) make(settings checkSettings, hops []relay.Target) *tunnelCheck {
	t := &tunnelCheck{checkSettings: settings, self: c.self, log: c.log, memory: c.memory, hops: slices.Clone(hops), turn: make(chan struct{}, 1)}
	t.self.Tunnel = settings.tunnel
	if !settings.keys.First.IsZero() {
		t.checker = t.newChecker()
	}
	return t
}

// keep puts the last equip into force, and begins its periodic checks.
func (c *checks) keep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	for name, t := range c.current {
		if c.next[name] != t && t.cancel != nil {
			t.cancel()
		}
	}
	c.current, c.next = c.next, nil
	for _, t := range c.current {
		if t.check.Enabled && t.check.Interval > 0 && t.cancel == nil {
			var ctx context.Context
			ctx, t.cancel = context.WithCancel(context.Background())
			c.running.Go(func() { t.repeat(ctx) })
		}
	}
}

// close ends the periodic checks.
func (c *checks) close() {
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
func (c *checks) reports() []check.Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := []check.Report{}
	for _, t := range c.current {
		if last := t.report(); last != nil {
			all = append(all, *last)
		}
	}
	slices.SortFunc(all, func(a, b check.Report) int { return cmp.Compare(a.Tunnel, b.Tunnel) })
	return all
}

func (c *checks) find(tunnel string) (*tunnelCheck, error) {
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

// checkVerb checks a tunnel at once.
func (d *daemon) checkVerb(ctx context.Context, arguments url.Values) (any, error) {
	t, err := d.checks.find(arguments.Get("tunnel"))
	if err != nil {
		return nil, err
	}
	bytes := int64(0)
	if text := arguments.Get("bytes"); text != "" {
		bytes, err = strconv.ParseInt(text, 10, 64)
		if err != nil || bytes < check.MinBytes || bytes > check.MaxBytes {
			return nil, remedy.New(fmt.Errorf("a check cannot send %s bytes", text), fmt.Sprintf("choose %d to %d", check.MinBytes, check.MaxBytes))
		}
	}
	return t.run(ctx, bytes)
}

func (t *tunnelCheck) report() *check.Report {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

// repeat checks the tunnel at its interval. The first time comes within a tenth
// of that, so that relays which start together do not ask together.
func (t *tunnelCheck) repeat(ctx context.Context) {
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
func (t *tunnelCheck) run(ctx context.Context, bytes int64) (*check.Report, error) {
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
	chains := make([]check.Chain, len(t.hops))
	for i, hop := range t.hops {
		within, cancel := context.WithTimeout(ctx, maxCheckTime)
		chains[i] = check.Walk{
			Self: t.self, Forward: hop.String(), Next: check.Next(t.check.Next), Key: t.keys.First, Bytes: bytes, Memory: t.memory,
			Dial: func(ctx context.Context) (check.Conn, netip.AddrPort, error) { return t.dial(ctx, hop) },
		}.Run(within)
		cancel()
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("the check was broken off: %w", context.Cause(ctx))
	}
	r := check.NewReport(t.tunnel, begin, chains)
	t.mu.Lock()
	before := t.last
	t.last = &r
	t.mu.Unlock()
	t.tell(before, &r)
	return &r, nil
}

// tell logs what has changed since the check before.
func (t *tunnelCheck) tell(before, now *check.Report) {
	if before != nil && before.State == now.State && verdict(before) == verdict(now) {
		return
	}
	attrs := []any{"tunnel", t.tunnel, "state", string(now.State), "found", now.Summary}
	if now.State == check.Whole {
		t.log.Info("check: the tunnel is whole", attrs...)
		return
	}
	t.log.Warn("check: the tunnel is "+string(now.State), append(attrs, "hint", now.Hint)...)
}

// verdict is what of a report has to change to be worth telling.
func verdict(r *check.Report) (v string) {
	for _, c := range r.Chains {
		if c.Fault != nil {
			v += fmt.Sprintf("%s %s %d %s|", c.Forward, c.Fault.Reason, c.Fault.Hop, c.Fault.Direction)
		}
	}
	return v
}

// relayChecker answers checks. It has functions in place of what they use,
// because relay compares tunnels deeply when it reloads.
type relayChecker struct {
	recognize func(first []byte) relay.Recognition
	serve     func(ctx context.Context, c relay.Checked) bool
}

func (c *relayChecker) Recognize(first []byte) relay.Recognition { return c.recognize(first) }

func (c *relayChecker) Serve(ctx context.Context, flow relay.Checked) bool {
	return c.serve(ctx, flow)
}

func (t *tunnelCheck) newChecker() *relayChecker {
	server := &check.Server{Identity: t.self, Keys: t.keys, Next: check.Next(t.check.Next),
		Dial: func(ctx context.Context, to netip.AddrPort) (check.Conn, error) { return t.dialAddress(ctx, to) }}
	var strangers, refused pause
	server.Guard = check.NewGuard(t.memory, func(what string, peer netip.AddrPort) {
		if refused.over() {
			t.log.Warn(what, "tunnel", t.tunnel, "from", peer)
		}
	})
	return &relayChecker{
		recognize: func(first []byte) relay.Recognition {
			switch server.Keys.Recognize(first) {
			case check.IsHello:
				return relay.IsCheck
			case check.MaybeHello:
				return relay.MaybeCheck
			}
			if check.Resembles(first) && strangers.over() {
				t.log.Warn("what looks like a check was forwarded: it has another key, or was altered on the way", "tunnel", t.tunnel)
			}
			return relay.NotCheck
		},
		serve: func(ctx context.Context, c relay.Checked) bool {
			flow := check.Flow{
				Client: c.Client, Local: c.Listen, Peer: c.From, Source: c.Source, Forward: c.Forward, Dialed: c.Dialed, Since: time.Now(),
				Before: c.Sent, ToClient: c.ToClient, ToTarget: c.ToTarget,
			}
			if c.Target != nil {
				flow.Target = c.Target
			} else {
				flow.Reason = checkReason(c.End, c.Err)
				if flow.Reason == check.Failed && c.Err != nil {
					flow.Detail = c.Err.Error()
				}
			}
			return server.Serve(ctx, flow)
		},
	}
}

// pause bounds how often the log tells of something.
type pause struct{ last atomic.Pointer[time.Time] }

func (p *pause) over() bool {
	last, now := p.last.Load(), time.Now()
	return (last == nil || now.Sub(*last) > strangerPause) && p.last.CompareAndSwap(last, &now)
}

// checkReason says in a check's terms why a flow has no target.
func checkReason(end flow.EndReason, err error) check.Reason {
	switch end {
	case flow.EndTargetRefused:
		return check.Refused
	case flow.EndTargetUnknown:
		return check.Unresolved
	case flow.EndTargetReset:
		return check.Reset
	case flow.EndTargetTimeout:
		return check.TimedOut
	case flow.EndLoop:
		return check.Loop
	case flow.EndNoLocalPort:
		return check.NoLocalPort
	case flow.EndNoResources:
		return check.NoResources
	}
	if err != nil {
		return check.ReasonOf(err)
	}
	return check.Failed
}

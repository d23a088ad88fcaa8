package daemon

import (
	"slices"
	"time"

	"longhaul/internal/config"
	"longhaul/internal/flow"
	"longhaul/internal/relay"
)

// bypass says when new connections are to pass a tunnel with when_down. The methods of nil
// are those of a tunnel without it.
type bypass struct {
	paired bool
	// refuses: never because the pair or every hop is down, or a limit is reached.
	// Connections that pass are not encrypted.
	refuses bool
	now     flow.Bypass
	wasUp   bool
	down    time.Time // since when the pair or every hop is down; zero: it is up
}

const (
	// downSettles is how long a pair or every hop is down until new connections pass: a
	// control connection that breaks is replaced in less time.
	downSettles = 500 * time.Millisecond
	// firstSettles is the same for a pair that has not stood yet, as after an upgrade: a
	// handshake over a long path.
	firstSettles = 2 * time.Second
)

// bypasses are those of a configuration. One that was there goes on.
func bypasses(tunnels []config.Tunnel, before map[string]*bypass) map[string]*bypass {
	all := map[string]*bypass{}
	for _, t := range tunnels {
		if t.WhenDown == "" {
			continue
		}
		one := &bypass{}
		if was := before[t.Name]; was != nil {
			*one = *was
		}
		one.paired, one.refuses = t.Pair.Paired(), t.WhenDown == config.WhenDownRefuse
		all[t.Name] = one
	}
	return all
}

// update reports whether new connections are to pass the relay.
func (b *bypass) update(t flow.Tunnel, pairUp func(tunnel string) bool, now time.Time) bool {
	if b == nil || b.refuses {
		return false
	}
	up, reason := false, flow.BypassHopsDown
	if b.paired {
		up, reason = pairUp(t.Name), flow.BypassPairDown
	} else {
		up = slices.ContainsFunc(t.Hops, func(h flow.Hop) bool { return h.State.Usable() })
	}
	settles := downSettles
	if !b.wasUp {
		settles = firstSettles
	}
	switch {
	case up:
		b.wasUp, b.down, b.now.Reason, b.now.Since = true, time.Time{}, "", time.Time{}
	case b.down.IsZero():
		b.down = now
	case b.now.Reason == "" && now.Sub(b.down) >= settles:
		b.now.Reason, b.now.Since = reason, now
		b.now.Total++
	}
	return b.now.Reason != ""
}

// atLimits reports whether new connections pass a tunnel that takes no more of them.
func (b *bypass) atLimits() bool { return b == nil || !b.refuses }

func (b *bypass) state() *flow.Bypass {
	if b == nil || b.refuses {
		return nil
	}
	now := b.now
	return &now
}

// addBypasses fills in what only the rules of interception know of tunnels.
func (i *interception) addBypasses(s relay.Snapshot) relay.Snapshot {
	i.mu.Lock()
	defer i.mu.Unlock()
	for n := range s.Tunnels {
		t := &s.Tunnels[n]
		t.Bypass = i.bypass[t.Name].state()
		t.Host = append(t.Host, i.problems(t.Name)...)
	}
	return i.forward.add(s)
}

// takesFlows reports whether the pair of a near tunnel takes new flows.
func (p *pairs) takesFlows(tunnel string) bool {
	p.mu.Lock()
	node := p.node
	p.mu.Unlock()
	return node != nil && node.TakesFlows(tunnel)
}

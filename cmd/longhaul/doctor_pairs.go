//go:build linux

package main

import (
	"cmp"
	"context"
	"encoding/json"

	"longhaul/internal/carry/flow"
	"longhaul/internal/find/doctor"
	"longhaul/internal/find/doctor/examine"
	"longhaul/internal/run/control"
	"longhaul/internal/run/daemon"
)

// pairedTunnels asks the running relays of this user for their paired tunnels. A
// relay that does not answer has none: doctor works without.
func pairedTunnels(ctx context.Context, env *env) (all []examine.PairedTunnel) {
	dir := control.Directory(env.getenv)
	names, _ := control.Running(ctx, dir) // an unreadable directory is another user's
	for _, name := range names {
		body, err := control.Status(ctx, control.PathIn(dir, name))
		if err != nil {
			continue
		}
		var s daemon.Status
		if json.Unmarshal(body, &s) != nil || s.Pairs == nil {
			continue
		}
		for i := range s.Pairs.Sessions {
			all = append(all, toPairedTunnel(ctx, &s.Pairs.Sessions[i], s.Tunnels))
		}
	}
	return all
}

func toPairedTunnel(ctx context.Context, s *flow.Session, tunnels []flow.Tunnel) examine.PairedTunnel {
	p := examine.PairedTunnel{Near: s.End == flow.NearEnd, Pair: doctor.Pair{Tunnel: s.Tunnel, Peer: s.Peer, Up: s.Up}}
	if s.FlowsMemoryLimited > 0 {
		p.MemoryLimited, p.MemoryRemedy = s.FlowsMemoryLimited, flow.MemoryRemedy
	}
	if !s.Up && s.Problem != "" {
		p.Problem, p.Error, p.Flows = string(s.Problem), s.Error, s.WaitingFlows()
		p.Text, p.Remedy = flow.PairProblemText(s.Problem, s.Peer), s.Remedy()
	}
	if s.Remote.IsValid() {
		p.Remote = examine.EndOf(s.Remote.AddrPort)
	}
	for i := range tunnels {
		t := &tunnels[i]
		if t.Name != s.Tunnel {
			continue
		}
		p.Listen = t.Listen
		if p.Near && !s.Remote.IsValid() && len(t.Forward) > 0 { // it never had a session
			p.Remote, _ = examine.ParseEnd(ctx, cmp.Or(s.Hop, t.Forward[0])) // a name without an address is that of no connection
		}
	}
	return p
}

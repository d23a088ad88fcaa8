//go:build linux

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"longhaul/bench/kit"
	"longhaul/lab"
	"longhaul/lab/relays"
)

// interceptModes are the intercepting relays that Options.Through can name.
var interceptModes = map[string]interceptMode{
	"intercept":                     {sameAddress: true},
	"intercept-source-relay":        {settings: ", source: relay"},
	"intercept-mirror":              {settings: ", refuse: mirror", sameAddress: true, mirrors: true},
	"intercept-mirror-source-relay": {settings: ", refuse: mirror, source: relay", mirrors: true},
}

// interceptMode is how a relay takes connections out of the routed path.
type interceptMode struct {
	settings    string // of its tunnels
	sameAddress bool   // the target sees the client's address and port
	mirrors     bool   // a refusal is that of direct TCP
}

// interceptor is a router with an intercepting relay, between a client's host and a
// target's, which know nothing of it: see lab.OneRouter. It has a tunnel for every lane, for all families and for what refuses there.
type interceptor struct {
	name string
	interceptMode
	world    *kit.World
	relay    *relays.Process
	targets  []*lane // on the target's host
	observer observer
	came     atomic.Int64 // scripts whose target does not refuse
}

func startInterceptor(ctx context.Context, name string, o Options, lanes int) (p *interceptor, err error) {
	p = &interceptor{name: name, interceptMode: interceptModes[name]}
	defer func() {
		if err != nil {
			p.close()
			err = fmt.Errorf("%s: %w", name, err)
		}
	}()
	router := lab.OneRouter(lab.Sysctl{Name: "net.ipv4.tcp_fastopen", Value: fastOpenBoth})
	if p.world, err = kit.NewWorld(router, o.Program, nil); err != nil {
		return p, err
	}
	used := map[uint16]bool{} // by lanes before: a tunnel's ports are those of all families
	for len(p.targets) < lanes {
		var l *lane
		err := p.world.Host("target").Do(func() (err error) {
			l, err = newLane(placeOf(lab.RoutedTarget[0].Addr(), lab.RoutedTarget[1].Addr()))
			return err
		})
		if err != nil {
			return p, err
		}
		ports := l.ports()
		if slices.ContainsFunc(ports, func(port uint16) bool { return used[port] }) {
			defer l.close() // not at once: the kernel would give the port again
			continue
		}
		for _, port := range ports {
			used[port] = true
		}
		p.targets = append(p.targets, l)
	}
	p.relay = p.world.Relay("intercepting", "router")
	p.observer.listen(p.world.Relays)
	return p, p.relay.Start(ctx, p.config())
}

func laneTunnel(i int) string { return fmt.Sprintf("lane-%d", i) }

func (p *interceptor) config() string {
	var b strings.Builder
	fmt.Fprintf(&b, "control_socket: %s\nreset_drain_timeout: %s\ntunnels:\n", p.relay.Socket(), resetDrain)
	for i, l := range p.targets {
		ports := strings.Join(strings.Fields(fmt.Sprint(l.ports())), ", ")
		fmt.Fprintf(&b, "  - {name: %s, intercept: {interface: %s, to: [%s, %q], ports: %s}%s}\n",
			laneTunnel(i), lab.ToClient, lab.RoutedTarget[0].Masked(), lab.RoutedTarget[1].Masked(), ports, p.settings)
	}
	return b.String()
}

func (p *interceptor) close() {
	if p.world != nil {
		p.world.Kill()
	}
	for _, l := range p.targets {
		l.close()
	}
	if p.world != nil {
		p.world.Close()
	}
}

// check returns an error if the relay has died, or if connections went past it.
func (p *interceptor) check() error {
	if !p.relay.Running() {
		return fmt.Errorf("the intercepting relay has ended:\n%s", p.relay.Log())
	}
	ctx, cancel := context.WithTimeout(context.Background(), relays.Patience)
	defer cancel()
	status, err := p.relay.Status(ctx)
	if err != nil {
		return err
	}
	var flows int64
	for _, t := range status.Tunnels {
		flows += t.FlowsTotal
	}
	if came := p.came.Load(); flows < came {
		return fmt.Errorf("%s: only %d of %d connections went through the relay:\n%s", p.name, flows, came, p.relay.Log())
	}
	return nil
}

func (p *interceptor) way() *way {
	return local(way{
		name: p.name, flag: "--through " + p.name, sameAddress: p.sameAddress, mirrors: p.mirrors, route: p.route,
		said: func(i int, _ *Script, since time.Time) string { return p.observer.said(laneTunnel(i), since) },
	})
}

func (p *interceptor) route(_ *lane, i int, s *Script) (route, func(), error) {
	if !s.Refused {
		p.came.Add(1)
	}
	l := p.targets[i]
	r := l.direct(s)
	r.socket = socketsOf(p.world.Host("client"))
	r.quiet = twice(func() bool { return p.observer.idle(laneTunnel(i)) })
	return r, l.empty, nil
}

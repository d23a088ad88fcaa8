package main

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"longhaul/bench/kit"
	"longhaul/internal/carry/flow"
	"longhaul/lab"
	"longhaul/lab/relays"
	"longhaul/test/nettest"
)

// TestLife takes one service through a relay's life: a start without an answer, more targets than hops, IPv6,
// a drained hop that vanishes and returns, the death of the name server, an upgrade and reloads meanwhile.
func TestLife(t *testing.T) {
	nettest.RequireSandbox(t)
	nettest.RequireProgram(t, "knotd", "knot")
	nettest.CheckLeaks(t)
	ctx := t.Context()
	w, err := newWorld(ctx, kit.Options{Program: nettest.Longhaul(t)}, wayKnot, 1)
	nettest.Must(t, err)
	defer w.Close()
	var said atomic.Int64 // lines about the first service without an answer
	w.near.Line = func(line string) {
		if strings.Contains(line, "a service has no targets") && strings.Contains(line, serviceName(0)+"."+zoneName) {
			said.Add(1)
		}
	}
	tunnel := func() *relays.TunnelStatus {
		t.Helper()
		s, err := w.near.Status(ctx)
		nettest.Must(t, err)
		return &s.Tunnels[0]
	}
	until := func(what string, cond func(*relays.TunnelStatus) bool) {
		t.Helper()
		nettest.Eventually(t, patience, func() bool { return cond(tunnel()) }, func() string { return fmt.Sprintf("%s: %+v, %+v", what, tunnel(), tunnel().Service) })
	}
	serves := func() error {
		c, err := w.dial(ctx, 0)
		if err != nil {
			return err
		}
		defer c.Close()
		return ask(c)
	}
	services := func(i int) string { return fmt.Sprintf("{srv: %s.%s}", serviceName(i), zoneName) }

	// Without an answer the relay listens, and resets clients.
	_, err = w.near.Stop(ctx)
	nettest.Must(t, err)
	w.server.End(w.server.daemon)
	nettest.Must(t, w.near.Start(ctx, w.config(services)))
	if s := tunnel(); s.State != "listening" || len(s.Hops) != 0 || s.Service == nil || s.Service.State != flow.ServiceNoAnswer {
		t.Errorf("without an answer: %+v, %+v", s, s.Service)
	}
	if serves() == nil {
		t.Error("a flow is served without a hop")
	}
	nettest.Must(t, w.server.start(ctx))
	until("the answer does not come", func(s *relays.TunnelStatus) bool { return len(s.Hops) == 2 })
	nettest.Must(t, serves())

	// More targets than a tunnel has hops. The answer exceeds a datagram.
	var many []record
	for i := range uint16(70) {
		many = append(many, record{"t0", targetPort + i, i, 1})
	}
	set := func(records ...record) {
		t.Helper()
		w.now[0] = answer{records: records}
		_, err := w.server.set(ctx, w.records()+"six AAAA ::1\n")
		nettest.Must(t, err)
	}
	set(many...)
	until("70 targets", func(s *relays.TunnelStatus) bool {
		return len(s.Hops) == 64 && s.Service.Found == 70 && len(s.Service.LeftOut) == 6 && s.Service.LeftOut[0] == "t0.example.net:5064" && s.Hops[63].Priority == 64
	})
	nettest.Must(t, serves())

	// A target with an IPv6 address, on the relay's own host.
	var l net.Listener
	nettest.Must(t, w.Host("relay-a").Do(func() (err error) {
		l, err = net.Listen("tcp6", netip.AddrPortFrom(netip.IPv6Loopback(), targetPort).String())
		return err
	}))
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			defer c.Close()
			buf := make([]byte, 1)
			_, _ = c.Read(buf)
			_, _ = c.Write(buf)
		}
	}()
	set(record{"six", targetPort, 1, 1})
	until("IPv6", func(s *relays.TunnelStatus) bool { return len(s.Hops) == 1 && s.Hops[0].Name == "six.example.net:5000" })
	nettest.Must(t, serves())

	// A drained hop vanishes and returns.
	one, two := record{"t0", targetPort, 1, 1}, record{"t1", targetPort + 1, 1, 1}
	set(one, two)
	until("two targets", func(s *relays.TunnelStatus) bool { return len(s.Hops) == 2 && s.Hops[1].Name == two.name() })
	nettest.Must(t, w.near.Drain(ctx, "s0/"+two.name()))
	set(one)
	until("one target", func(s *relays.TunnelStatus) bool { return len(s.Hops) == 1 })
	set(one, two)
	drained := func(s *relays.TunnelStatus) bool { return len(s.Hops) == 2 && s.Hops[1].State == flow.HopDrained }
	until("the drained hop is not drained", drained)

	// The name server dies. The next process goes on with the last answer.
	said.Store(0)
	w.server.End(w.server.daemon)
	until("nobody answers", func(s *relays.TunnelStatus) bool { return s.Service.State == flow.ServiceNoAnswer })
	if !drained(tunnel()) {
		t.Errorf("%+v", tunnel())
	}
	if _, err := w.near.Upgrade(ctx); err != nil {
		t.Fatal(err)
	}
	until("after an upgrade", func(s *relays.TunnelStatus) bool { return drained(s) && s.Service.State == flow.ServiceNoAnswer })
	nettest.Must(t, serves())

	// A reload without a change disturbs nothing; one with a new service that has no targets fails.
	nettest.Must(t, w.near.Reload(ctx, w.config(services)))
	if !drained(tunnel()) {
		t.Errorf("after a reload: %+v", tunnel())
	}
	nettest.Must(t, w.near.Reload(ctx, w.config(func(int) string { return netip.AddrPortFrom(lab.HostB, targetPort).String() })))
	if s := tunnel(); len(s.Hops) != 1 || s.Service != nil || s.Hops[0].Name != netip.AddrPortFrom(lab.HostB, targetPort).String() {
		t.Errorf("without a service: %+v, %+v", s, s.Service)
	}
	nettest.Must(t, w.near.Reload(ctx, w.config(services))) // by the answer of before
	if s := tunnel(); len(s.Hops) != 2 || s.Service.State == flow.ServiceAsking {
		t.Errorf("with the service again: %+v, %+v", s, s.Service)
	}
	err = w.near.Reload(ctx, w.config(func(int) string { return "{srv: _misspelt._tcp.example.net}" }))
	if err == nil || !strings.Contains(err.Error(), "the service _misspelt._tcp.example.net has no targets") {
		t.Errorf("a reload with a misspelt service: %v", err)
	}
	nettest.Must(t, serves())
	// One line of each process, and one of the service that came back, whatever the number of queries.
	if n := said.Load(); n < 1 || n > 3 {
		t.Errorf("%d lines say that a service has no targets", n)
	}
}

package relay

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	report "longhaul/internal/carry/flow"
	"longhaul/test/nettest"
)

func TestShed(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, nil)
	a, b := g.pair()
	g.relay.Shed("descriptors", 0, 0)
	for range 3 {
		if !refused(t, g.addr) {
			t.Error("a new flow was admitted")
		}
	}
	write(t, a, []byte("still there"))
	expect(t, b, []byte("still there"))
	s := g.relay.Snapshot()
	if tun := s.Tunnels[0]; tun.Shed != 3 || tun.State != "shedding" || tun.FlowsNow != 1 || tun.FlowsTotal != 1 || tun.Errors != 0 || tun.Limited != 0 {
		t.Errorf("want 3 connections shed and one flow, the tunnel is %+v", tun)
	}
	if by := s.Tunnels[0].ShedBy; len(by) != 1 || by["descriptors"] != 3 {
		t.Errorf("shed by reason: %v", by)
	}
	if s.Shedding != "descriptors" {
		t.Errorf("shedding %q", s.Shedding)
	}
	if r := g.expectReason(report.EndShed); r.Err == nil || r.Err.Error() != "descriptors" {
		t.Errorf("the record's reason is %v", r.Err)
	}
	g.relay.Shed("", 0, 0)
	// Refused connections never reached the target.
	c, d := g.pair()
	write(t, c, []byte("new"))
	expect(t, d, []byte("new"))
	if s := g.relay.Snapshot(); s.Tunnels[0].State != "listening" || s.Shedding != "" {
		t.Errorf("want the tunnel to listen again, the relay is %+v", s)
	}
}

func TestShedFromANumberOfFlows(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, nil)
	g.relay.Shed("descriptors", 2, 0)
	if s := g.relay.Overview(); s.Tunnels[0].State != "listening" || s.Shedding != "" {
		t.Errorf("before there are so many: %+v", s)
	}
	a, _ := g.pair()
	g.pair()
	if !refused(t, g.addr) {
		t.Error("a third flow was admitted")
	}
	if s := g.relay.Overview(); s.Tunnels[0].State != "shedding" || s.Shedding != "descriptors" {
		t.Errorf("want the tunnel to shed for want of descriptors, the relay is %+v", s)
	}
	reset(t, a)
	nettest.Eventually(t, patience, func() bool { return g.relay.FlowsNow() == 1 }, func() string { return "the flow that was reset still counts" })
	g.pair()
}

// A source that is not allowed counts as denied even while resources are short.
func TestShedComesAfterAllow(t *testing.T) {
	g := newRig(t, func(o *rigOptions) { o.Tunnels[0].Allow = prefixes("10.0.0.0/8") })
	g.relay.Shed("memory", 0, 0)
	if !refused(t, g.addr) {
		t.Error("admitted")
	}
	if tun := g.relay.Snapshot().Tunnels[0]; tun.Denied != 1 || tun.Shed != 0 {
		t.Errorf("want one connection denied and none shed, the tunnel is %+v", tun)
	}
}

func TestOverviewAsksNobody(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, nil)
	g.pair()
	release := stick(g.relay.workers[0])
	defer release()
	if s := g.relay.Overview(); s.FlowsNow != 1 || len(s.Flows) != 0 || s.Tunnels[0].State != "listening" || s.Tunnels[0].Listen[0] != g.addr || s.PipesLimit == 0 {
		t.Errorf("want one flow and no list of flows, the overview is %+v", s)
	}
}

// stick blocks an event loop until release is called.
func stick(w *worker) (release func()) {
	stuck, released := make(chan struct{}), make(chan struct{})
	w.post(func() {
		close(stuck)
		<-released
	})
	<-stuck
	return sync.OnceFunc(func() { close(released) })
}

func TestResponsive(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, nil)
	if took, err := g.relay.Responsive(t.Context()); err != nil || took <= 0 {
		t.Errorf("an idle relay answers after %v, %v", took, err)
	}
	w := g.relay.workers[1]
	release := stick(w)
	defer release()
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := g.relay.Responsive(ctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with a stuck loop: %v", err)
		}
	}
	w.mail.mu.Lock()
	if n := len(w.mail.commands); n != 1 {
		t.Errorf("%d questions wait in the stuck loop's mailbox", n)
	}
	w.mail.mu.Unlock()
	release()
	if _, err := g.relay.Responsive(t.Context()); err != nil {
		t.Error(err)
	}
	g.relay.Close()
	if _, err := g.relay.Responsive(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("of a closed relay: %v", err)
	}
	if _, err := New(Options{}).Responsive(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("of a relay that was not started: %v", err)
	}
}

// The kernel's view of a queue that is never accepted from: it fills up, and
// then the kernel drops connections.
func TestAcceptQueue(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, nil)
	queue := func() report.AcceptQueue {
		t.Helper()
		all := g.relay.AcceptQueues()
		if len(all) != 1 || all[0].Listen != g.addr {
			t.Fatalf("want the queue of one listener, got %+v", all)
		}
		return all[0]
	}
	if q := queue(); q.Waiting != 0 || q.Limit == 0 || q.Dropped != 0 {
		t.Errorf("at rest: %+v", q)
	}
	l := g.relay.table.Load().tunnels[0].listeners[0]
	const room = 3
	if err := unix.Listen(l.fd, room); err != nil {
		t.Fatal(err)
	}
	release := stick(g.relay.workers[0])
	defer release()
	other := stick(g.relay.workers[1])
	defer other()
	for range room + 1 {
		dial(t, g.addr)
	}
	nettest.Eventually(t, patience, func() bool { return queue().Waiting == room+1 }, func() string { return "nobody waits" })
	var d net.Dialer
	d.SetMultipathTCP(false)
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	late := make(chan error, 1)
	go func() {
		c, err := d.DialContext(ctx, "tcp", g.addr.String())
		if err == nil {
			c.Close()
		}
		late <- err
	}()
	nettest.Eventually(t, patience, func() bool { return queue().Dropped > 0 }, func() string { return "nothing was dropped" })
	release()
	other()
	if err := <-late; err != nil {
		t.Error("who was dropped tried in vain: ", err)
	}
	nettest.Eventually(t, patience, func() bool { return queue().Waiting == 0 }, func() string { return "somebody still waits" })
	if s := g.relay.Snapshot(); len(s.Tunnels[0].AcceptQueues) != 1 || s.Tunnels[0].AcceptQueues[0].Limit != room {
		t.Errorf("want one queue with a limit of 3, got %+v", s.Tunnels[0].AcceptQueues)
	}
}

// TestKeepEnds: a client that acknowledges no end leaves it to the kernel, or with KeepEnds to its flow.
func TestKeepEnds(t *testing.T) {
	for name, keep := range map[string]bool{"the kernel": false, "the flow": true} {
		t.Run(name, func(t *testing.T) {
			nettest.CheckLeaks(t)
			g := newRig(t, nil)
			g.relay.KeepEnds(keep)
			c, s := g.pair()
			c.CloseWrite()
			expectEnd(t, s)
			deafen(t, c)
			s.Close()
			if keep {
				g.flowIs("waits for its client", func(f *flow) bool { return f.end.shut[client] && f.end.awaits(client) })
				hear(t, c)
			}
			g.expectReason(report.EndClean)
			hear(t, c)
			expectEnd(t, c)
		})
	}
}

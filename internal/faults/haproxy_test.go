package faults

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"longhaul/internal/nettest"
)

// balanced are two relays behind HAProxy.
type balanced struct {
	*site
	relays  map[string]*daemon
	haproxy *peer
}

func newBalanced(t *testing.T) *balanced {
	t.Helper()
	haproxy := nettest.RequireProgram(t, "haproxy", "haproxy")
	b := &balanced{site: newSite(t, true), relays: map[string]*daemon{}}
	for _, name := range pairNames {
		b.relays[name] = b.relay(name, "longhaul-behind-haproxy.yaml")
	}
	file := filepath.Join(t.TempDir(), "haproxy.cfg")
	writeFile(t, file, example(t, "haproxy.cfg"))
	b.haproxy = b.start("balancer", haproxy, "-db", "-f", file)
	b.servedAfter(time.Now())
	return b
}

// total is how many flows a relay has had.
func (b *balanced) total(name string) int64 {
	return b.relays[name].status().tunnel("to-site-b").FlowsTotal
}

// serve opens some flows, one after the other, each of which must be served,
// and returns the longest time that it took.
func (b *balanced) serve(n int, when string) (slowest time.Duration) {
	b.t.Helper()
	for i := range n {
		begin := time.Now()
		h, err := tryHold(b.t.Context(), b.dial(patience), patience)
		if err != nil {
			b.t.Fatalf("%s: new flow %d: %v", when, i+1, err)
		}
		slowest = max(slowest, time.Since(begin))
		h.release(b.t)
	}
	return slowest
}

// through opens a flow and returns the relay that has it.
func (b *balanced) through() (held, string) {
	b.t.Helper()
	before := map[string]int64{}
	for _, name := range pairNames {
		before[name] = b.relays[name].status().tunnel("to-site-b").FlowsNow
	}
	h := hold(b.t, b.dial(patience))
	for _, name := range pairNames {
		if b.relays[name].status().tunnel("to-site-b").FlowsNow > before[name] {
			return h, name
		}
	}
	b.t.Fatal("no relay has the flow")
	return h, ""
}

// HAProxy spreads flows over two relays. One is killed: its flows end, every
// new one is served by the other, and when it is back it is used again.
func TestHAProxyRelayKilled(t *testing.T) {
	t.Parallel()
	b := newBalanced(t)
	b.serve(20, "with both relays")
	for _, name := range pairNames {
		if b.total(name) < 5 {
			t.Errorf("%s had %d flows of 20", name, b.total(name))
		}
	}
	first, killed := b.through()
	second, left := b.through()
	if left == killed {
		t.Fatalf("both flows go through %s", left)
	}
	// The relay knows the client, not the balancer.
	if s := b.relays[left].status(); len(s.Flows) == 0 || s.Flows[0].Client[:12] != "10.10.10.10:" {
		t.Errorf("the relay's flows: %+v", s.Flows)
	}
	b.relays[killed].signal(syscall.SIGKILL)
	<-b.relays[killed].exited // until then its kernel takes connections that nobody will serve
	slowest := b.serve(50, "after the kill")
	t.Logf("50 flows after the kill, each served, the slowest within %v", slowest.Round(time.Millisecond))
	if slowest > failoverBound {
		t.Errorf("a new flow waited %v", slowest)
	}
	second.alive(t, "through the relay that is left")
	if err := first.ping(patience); err == nil {
		t.Error("a flow through the relay that was killed lives")
	}
	b.haproxy.expectLog(t, "relays/"+killed+" is DOWN")
	b.relays[killed] = restartDaemon(t, b.hosts[killed], b.relays[killed])
	b.haproxy.expectLog(t, "relays/"+killed+" is UP")
	b.serve(20, "with both again")
	if b.total(killed) == 0 {
		t.Errorf("%s is not used again", killed)
	}
	second.alive(t, "at the end")
}

// The host of a relay dies: connections to it get no answer.
func TestHAProxyHostKilled(t *testing.T) {
	t.Parallel()
	nettest.Settles(t, func() error { return newBalanced(t).killHost() })
}

// killHost has a relay's host die. The error is that it took too long.
func (b *balanced) killHost() error {
	t := b.t
	t.Helper()
	h, killed := b.through()
	left := other(killed)
	h.release(t)
	standing, with := b.through()
	for with != left {
		standing, with = b.through()
	}
	begin := time.Now()
	if err := b.sw.Down(killed); err != nil {
		t.Fatal(err)
	}
	noticed := make(chan time.Duration, 1)
	go func() {
		for !strings.Contains(b.haproxy.log.String(), "relays/"+killed+" is DOWN") && time.Since(begin) < patience {
			time.Sleep(5 * time.Millisecond)
		}
		noticed <- time.Since(begin)
	}()
	slowest := b.serve(20, "after the host's death")
	known := <-noticed
	again := b.serve(20, "once that is known")
	t.Logf("20 flows after the host's death, each served, the slowest within %v; noticed after %v, and then the slowest within %v",
		slowest.Round(time.Millisecond), known.Round(time.Millisecond), again.Round(time.Millisecond))
	standing.alive(t, "through the relay that is left")
	if slowest > failoverBound || known > failoverBound {
		return fmt.Errorf("a new flow waited %v, and HAProxy noticed after %v", slowest, known)
	}
	return nil
}

// A relay is stopped while it has a flow: that goes on, new ones go to the
// other, and it ends with its last flow.
func TestHAProxyRelayDrains(t *testing.T) {
	t.Parallel()
	b := newBalanced(t)
	h, stopped := b.through()
	left := other(stopped)
	before := b.total(left)
	b.relays[stopped].signal(syscall.SIGTERM)
	nettest.Eventually(t, patience, func() bool {
		listening, err := b.hosts[stopped].Listening(service.Port())
		return err == nil && !listening
	}, func() string { return "the relay goes on listening" })
	slowest := b.serve(50, "while one relay drains")
	t.Logf("50 flows while one relay drains, each served, the slowest within %v", slowest.Round(time.Millisecond))
	if n := b.total(left) - before; n != 50 {
		t.Errorf("%s had %d of them", left, n)
	}
	b.haproxy.expectLog(t, "relays/"+stopped+" is DOWN")
	h.alive(t, "through the relay that drains")
	if ended(b.relays[stopped]) {
		t.Error("the relay did not wait for its flow")
	}
	h.release(t)
	b.relays[stopped].expectExit(0)
}

// A relay that comes near a limit gets no new flows from HAProxy before it
// sheds any; those it has go on, and it is used again when it has room.
func TestHAProxyRelayNearItsLimit(t *testing.T) {
	t.Parallel()
	b := newBalanced(t)
	h, short := b.through()
	left := other(short)
	const limit = 400
	b.relays[short].reload(fmt.Sprintf("control_socket: SOCKET\nlimits: {descriptors: %d}\n", limit) + example(t, "longhaul-behind-haproxy.yaml", "relay-b.example.net", "10.10.10.30"))
	down := "relays/" + short + " is DOWN"
	var flows []held
	for used := 0; !strings.Contains(b.haproxy.log.String(), down); used = b.relays[short].status().Process.Descriptors {
		if used > limit*92/100 {
			time.Sleep(200 * time.Millisecond) // in the time of a check come fewer flows than there is room for
		}
		flows = append(flows, hold(t, b.dial(patience)))
		if len(flows) > limit {
			t.Fatal("HAProxy does not notice that the relay is short of descriptors")
		}
	}
	t.Logf("HAProxy uses the other relay alone after %d flows", len(flows))
	before, total := b.total(left), b.total(short)
	b.serve(50, "while one relay is at its limit")
	if b.total(left)-before != 50 || b.total(short) != total {
		t.Errorf("%s had %d of 50 flows", left, b.total(left)-before)
	}
	if n := b.relays[short].status().tunnel("to-site-b").Shed; n != 0 {
		t.Errorf("%d flows were shed", n)
	}
	h.alive(t, "through the relay at its limit")
	for _, f := range flows {
		f.alive(t, "that began before")
		f.Close()
	}
	b.haproxy.expectLog(t, "relays/"+short+" is UP")
}

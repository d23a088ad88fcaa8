package faults

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/test/nettest"
)

// balanced are two relays behind HAProxy.
type balanced struct {
	*site
	relays  map[string]*daemon
	haproxy *peer
}

// patientChecks has HAProxy wait for the answers of relays on a busy machine, and for a
// SYN that was lost and is sent again after a second. It finds the dead all the same:
// they refuse, or do not even accept.
var patientChecks = []string{"timeout check 1s", "timeout check 30s", "inter 1s", "inter 2s"}

// newBalanced starts them, with other words in place of some of HAProxy's example.
func newBalanced(t *testing.T, otherWords ...string) *balanced {
	t.Helper()
	haproxy := nettest.RequireProgram(t, "haproxy", "haproxy")
	b := &balanced{site: newSite(t, true), relays: map[string]*daemon{}}
	for _, name := range pairNames {
		b.relays[name] = b.relay(name, "longhaul-behind-haproxy.yaml")
	}
	file := filepath.Join(t.TempDir(), "haproxy.cfg")
	writeFile(t, file, example(t, "haproxy.cfg", otherWords...))
	b.haproxy = b.start("balancer", haproxy, "-db", "-f", file)
	b.expectServed("at the beginning")
	return b
}

// total is how many flows a relay has had.
func (b *balanced) total(name string) int64 {
	return b.relays[name].status().tunnel("to-site-b").FlowsTotal
}

// serve opens some flows, one after the other, each of which must be served,
// and returns the longest time that it took, which the timed tests judge.
func (b *balanced) serve(n int, when string) (slowest time.Duration) {
	b.t.Helper()
	for i := range n {
		begin := time.Now()
		h, err := tryHold(b.t.Context(), b.dial(patience), patience)
		if err != nil {
			b.t.Fatalf("%s: new flow %d of %d is not served: %v", when, i+1, n, err)
		}
		slowest = max(slowest, time.Since(begin))
		h.release(b.t)
	}
	return slowest
}

// through opens a flow and returns the relay that has it.
func (b *balanced) through() (held, string) {
	b.t.Helper()
	h := hold(b.t, b.dial(patience))
	return h, relayOf(b.t, h, b.relays)
}

// throughBoth opens a flow through each relay.
func (b *balanced) throughBoth() map[string]held {
	b.t.Helper()
	flows := map[string]held{}
	const most = 10 // flows that have just ended may still count for HAProxy
	for range most {
		h, name := b.through()
		if flows[name] = h; len(flows) == len(pairNames) {
			return flows
		}
	}
	b.t.Fatalf("%d flows go through one relay, and none through the other", most)
	return nil
}

// HAProxy spreads flows over two relays. One is killed: its flows end, every
// new one is served by the other, and when it is back it is used again.
func TestHAProxyRelayKilled(t *testing.T) {
	t.Parallel()
	newBalanced(t, patientChecks...).killRelay()
}

// killRelay returns the longest time that a new flow took after the kill.
func (b *balanced) killRelay() (slowest time.Duration) {
	t := b.t
	t.Helper()
	b.serve(20, "with both relays")
	for _, name := range pairNames {
		if b.total(name) < 5 {
			t.Errorf("%s had %d flows of 20", name, b.total(name))
		}
	}
	flows := b.throughBoth()
	killed, left := pairNames[0], pairNames[1]
	// The relay knows the client, not the balancer.
	if s := b.relays[left].status(); !slices.ContainsFunc(s.Flows, func(f flowStatus) bool { return strings.HasPrefix(f.Client, "10.10.10.10:") }) {
		t.Errorf("the relay has no flow of the client 10.10.10.10: %+v", s.Flows)
	}
	b.relays[killed].signal(syscall.SIGKILL)
	<-b.relays[killed].exited // until then its kernel takes connections that nobody will serve
	slowest = b.serve(50, "after the kill")
	flows[left].alive(t, "through the relay that is left")
	if err := flows[killed].ping(patience); err == nil {
		t.Error("a flow through the relay that was killed lives")
	}
	b.haproxy.expectLog(t, "relays/"+killed+" is DOWN")
	b.relays[killed] = restartDaemon(t, b.hosts[killed], b.relays[killed])
	b.haproxy.expectLog(t, "relays/"+killed+" is UP")
	b.serve(20, "with both again")
	if b.total(killed) == 0 {
		t.Errorf("%s is not used again", killed)
	}
	flows[left].alive(t, "at the end")
	return slowest
}

// The host of a relay dies: connections to it get no answer. New flows are served
// by the other, and wait for the dead one only until HAProxy has noticed.
func TestHAProxyHostKilled(t *testing.T) {
	t.Parallel()
	newBalanced(t, patientChecks...).killHost(func(string) {})
}

// killHost calls died when a host has died. It returns the longest times that new flows
// took before HAProxy knew of that, and since.
func (b *balanced) killHost(died func(name string)) (before, since time.Duration) {
	t := b.t
	t.Helper()
	flows := b.throughBoth()
	killed, left := pairNames[0], pairNames[1]
	nettest.Must(t, b.sw.Down(killed))
	died(killed)
	before = b.serve(20, "after the host's death")
	b.haproxy.expectLog(t, "relays/"+killed+" is DOWN")
	total := b.total(left)
	since = b.serve(20, "once that is known")
	if n := b.total(left) - total; n != 20 {
		t.Errorf("once the death is known, %s has %d of 20 flows", left, n)
	}
	flows[left].alive(t, "through the relay that is left")
	return before, since
}

// A relay is stopped while it has a flow: that goes on, new ones go to the
// other, and it ends with its last flow.
func TestHAProxyRelayDrains(t *testing.T) {
	t.Parallel()
	newBalanced(t, patientChecks...).drainRelay()
}

// drainRelay returns the longest time that a new flow took meanwhile.
func (b *balanced) drainRelay() (slowest time.Duration) {
	t := b.t
	t.Helper()
	h, stopped := b.through()
	left := other(stopped)
	before := b.total(left)
	b.relays[stopped].signal(syscall.SIGTERM)
	nettest.Eventually(t, patience, func() bool {
		listening, err := b.hosts[stopped].Listening(service.Port())
		return err == nil && !listening
	}, func() string { return "the relay goes on listening" })
	slowest = b.serve(50, "while one relay drains")
	if n := b.total(left) - before; n != 50 {
		t.Errorf("while %s drains, %s had %d of 50 flows", stopped, left, n)
	}
	b.haproxy.expectLog(t, "relays/"+stopped+" is DOWN")
	h.alive(t, "through the relay that drains")
	if ended(b.relays[stopped]) {
		t.Error("the relay did not wait for its flow")
	}
	h.release(t)
	b.relays[stopped].expectExit(0)
	return slowest
}

// A relay that comes near a limit gets no new flows from HAProxy before it
// sheds any; those it has go on, and it is used again when it has room.
func TestHAProxyRelayNearItsLimit(t *testing.T) {
	t.Parallel()
	b := newBalanced(t, patientChecks...)
	b.nearLimit(200, func(short *daemon, down func() bool) {
		// The relay has said what HAProxy asks for: no more flows until it has asked.
		opened := time.Now()
		var s daemonStatus
		nettest.Eventually(t, patience, func() bool { s = short.status(); return s.Resources.At.After(opened) },
			func() string { return "the relay does not look at its descriptors" })
		if len(s.Resources.Tight) > 0 {
			nettest.Eventually(t, patience, down, func() string {
				return "HAProxy does not notice that the relay is short of descriptors"
			})
		}
	})
}

// nearLimit opens flows until HAProxy uses one relay alone, since the other is near its
// limit of descriptors. Near the limit it calls between before each further flow.
func (b *balanced) nearLimit(limit int, between func(short *daemon, down func() bool)) {
	t := b.t
	t.Helper()
	h, short := b.through()
	left := other(short)
	b.relays[short].reload(fmt.Sprintf("control_socket: SOCKET\nlimits: {descriptors: %d}\n", limit) + example(t, "longhaul-behind-haproxy.yaml", "relay-b.example.net", "10.10.10.30"))
	down := func() bool { return strings.Contains(b.haproxy.log.String(), "relays/"+short+" is DOWN") }
	var flows []held
	for !down() {
		if b.relays[short].status().Process.Descriptors > limit*92/100 {
			if between(b.relays[short], down); down() {
				break
			}
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
		t.Errorf("while %s is at its limit, %s had %d of 50 flows", short, left, b.total(left)-before)
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

// HAProxy names its flows, by UUIDs or by a text of its own, and the relay takes the names.
func TestHAProxyNamesFlows(t *testing.T) {
	t.Parallel()
	for form, format := range map[string]string{"UUIDs": "%[uuid()]", "a text": "%{+X}o\\ %ci:%cp_%fi:%fp_%Ts_%rt:%pid"} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			b := newBalanced(t, append(slices.Clone(patientChecks), "send-proxy-v2", "send-proxy-v2 proxy-v2-options unique-id",
				"local0 notice", "local0 info", "mode tcp", "mode tcp\n    unique-id-format "+format+"\n    log-format \"client %ci:%cp has %ID.\"")...)
			h, name := b.through()
			client := h.LocalAddr().String()
			got := b.relays[name].named(client).Name
			h.release(t)
			b.haproxy.expectLog(t, "client "+client+" has ") // once it has ended
			_, id, _ := strings.Cut(b.haproxy.log.String(), "client "+client+" has ")
			id, _, whole := strings.Cut(id, ".\n")
			if !whole || len(id) < 30 {
				t.Fatalf("HAProxy says %q", id)
			}
			if uuid, err := flow.ParseName(id); (err == nil) != (form == "UUIDs") || err == nil && uuid.String() != id {
				t.Errorf("HAProxy has the identifier %q: %v", id, err)
			}
			if got != flow.NameOf([]byte(id)) {
				t.Errorf("the relay has the name %v for HAProxy's %s, want %v", got, id, flow.NameOf([]byte(id)))
			}
			b.relays[name].expectLog(`msg=flow .*client=` + client + ` .*name=` + got.String() + ` .*end=end`)
		})
	}
}

package faults

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"longhaul/internal/nettest"
)

// farSource are the ways in which the far relay dials.
var farSources = []string{"client", "relay"}

// seen are the addresses of connections that the target has had.
func (s *routed) seen() (all []string) {
	s.peers.Range(func(peer, _ any) bool { all = append(all, peer.(string)); return true })
	return all
}

// Case 75: intercepted flows of a pair. The far relay dials what the client dialed, from
// the client's address or its own.
func TestCase75InterceptedPair(t *testing.T) {
	t.Parallel()
	for _, source := range farSources {
		t.Run(source, func(t *testing.T) {
			t.Parallel()
			p := newRoutedPair(t)
			p.serve()
			clean := p.onFar().run("nft", "nftables", "list", "ruleset")
			p.start("", "", "    pair_from: near\n    source: "+source)
			for i, address := range routedTargets {
				h := hold(t, p.dial(address))
				if source == "client" {
					p.expectSeen(h)
				} else if want := []string{"10.9.2.1", "fd09:2::1"}[i]; !containsHost(p.seen(), want) {
					t.Errorf("the target sees %v, want %s", p.seen(), want)
				}
				for _, d := range []*daemon{p.pairOf.near, p.pairOf.far} {
					if f := flowOf(d, h); f.Listen != h.RemoteAddr().String() || f.Target != h.RemoteAddr().String() {
						t.Errorf("status has %+v of the flow to %s", f, h.RemoteAddr())
					}
				}
				h.release(t)
				startBulk(t, p.dial(address), 4<<20).expectWhole(t, "a transfer to "+address)
			}
			show := p.onFar().run("ip", "iproute2", "rule")
			if got := strings.Contains(show, "fwmark"); got != (source == "client") {
				t.Errorf("source: %s: the far router's routing rules:\n%s", source, show)
			}
			p.pairOf.far.signal(syscall.SIGTERM)
			p.pairOf.far.expectExit(0)
			if left := p.onFar().run("nft", "nftables", "list", "ruleset"); left != clean {
				t.Errorf("a stop leaves rules:\n%s", left)
			}
		})
	}
}

// Case 76: the target of a pair's intercepted flow refuses, is unreachable, or is none that
// the far relay may dial: another network, another port, or another client.
func TestCase76InterceptedPairTargetFails(t *testing.T) {
	t.Parallel()
	p := newRoutedPair(t)
	p.start("", "    connect_timeout: 2s", "    pair_from: near")
	reset := func(address, reason string) {
		t.Helper()
		h, err := tryHold(t.Context(), p.dial(address), patience)
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a client of %s gets %v, want a reset", address, err)
			h.Close()
		}
		p.relay.expectLog(fmt.Sprintf(`msg=flow .*\btarget="?%s"? .*\bend=%s`, quoted(routedAddress(address)), reason))
	}
	denied := func(address, why string) {
		t.Helper()
		before := p.relay.log.count("reason=denied")
		if h, err := tryHold(t.Context(), p.dial(address), patience); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a client gets %v, want a reset", err)
			h.Close()
		}
		nettest.Eventually(t, patience, func() bool { return p.relay.log.count("reason=denied") > before }, func() string { return "not denied for " + why })
	}
	reset("10.9.2.9", "target-unreached")
	for _, address := range routedTargets {
		reset(address, "target-refused")
	}
	p.serve()
	for _, narrower := range []struct{ from, to string }{
		{"to: [10.9.2.0/24, ", "to: [10.9.3.0/24, "},
		{"from: [10.9.1.0/24, ", "from: [10.9.3.0/24, "},
		{fmt.Sprintf("ports: %d", routedPort), "ports: 1-4999"},
	} {
		config := p.farConfig("    pair_from: near")
		if !strings.Contains(config, narrower.from) {
			t.Fatal(narrower.from)
		}
		p.pairOf.far.reload(strings.Replace(config, narrower.from, narrower.to, 1))
		denied(routedTargets[0], narrower.to)
	}
	p.pairOf.far.reload(p.farConfig("    pair_from: near"))
	for _, address := range routedTargets {
		hold(t, p.dial(address)).release(t)
	}
}

// Case 77: an outage of the WAN under intercepted flows of a pair.
func TestCase77OutageUnderInterceptedPair(t *testing.T) {
	t.Parallel()
	p := newRoutedPair(t)
	p.serve()
	p.start("", "", "    pair_from: near")
	crowds := []*crowd{}
	for _, address := range routedTargets {
		crowds = append(crowds, p.pairOf.gather(p.dial(address), 16<<20))
	}
	for range 2 {
		p.cut()
		nettest.Eventually(t, patience, func() bool { return !p.relay.session().Up }, func() string { return "the near relay does not see the outage" })
		for _, c := range crowds {
			c.join()
		}
		p.mend()
		for _, c := range crowds {
			c.silent.alive(t, "after an outage")
		}
	}
	for _, c := range crowds {
		c.expectWhole()
	}
}

func quoted(address string) string {
	return strings.NewReplacer(".", `\.`, "[", `\[`, "]", `\]`).Replace(address)
}

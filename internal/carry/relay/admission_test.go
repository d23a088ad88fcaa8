package relay

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/carry/proxyproto"
	"longhaul/test/nettest"
)

func prefixes(s ...string) (ps []netip.Prefix) {
	for _, p := range s {
		ps = append(ps, netip.MustParsePrefix(p))
	}
	return ps
}

// refused reports whether a connection to addr is reset without a byte.
func refused(t *testing.T, addr netip.AddrPort) bool {
	t.Helper()
	c, err := tryDial(addr)
	if err == nil {
		defer c.Close()
		c.SetReadDeadline(time.Now().Add(patience))
		_, err = c.Read(make([]byte, 1))
	}
	return errors.Is(err, syscall.ECONNRESET)
}

func TestAllow(t *testing.T) {
	nettest.CheckLeaks(t)
	v6 := netip.MustParseAddrPort("[::]:0")
	for _, tt := range []struct {
		name   string
		listen netip.AddrPort
		allow  []netip.Prefix
		want   bool
	}{
		{"everybody", freePort, nil, true},
		{"by address", freePort, prefixes("127.0.0.1/32"), true},
		{"by the second prefix", freePort, prefixes("10.0.0.0/8", "127.0.0.0/8"), true},
		{"others", freePort, prefixes("10.0.0.0/8"), false},
		{"IPv6 does not mean IPv4", freePort, prefixes("::/0"), false},
		{"a mapped source counts as IPv4", v6, prefixes("127.0.0.0/8"), true},
		{"a mapped source is denied as IPv4", v6, prefixes("10.0.0.0/8", "::1/128"), false},
		{"a mapped prefix counts as IPv4", v6, prefixes("::ffff:127.0.0.0/104"), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newRig(t, func(o *rigOptions) {
				o.Tunnels[0].Listen[0] = tt.listen
				o.Tunnels[0].Allow = tt.allow
			})
			g.addr = netip.AddrPortFrom(loopback, g.addr.Port())
			if tt.want {
				g.pair()
				return
			}
			if !refused(t, g.addr) {
				t.Fatal("admitted")
			}
			r := g.expectReason(report.EndDenied)
			if r.Client.Addr() != loopback || r.Listen.AddrPort != g.addr {
				t.Errorf("the record names %v to %v", r.Client, r.Listen)
			}
			if n := g.relay.Snapshot().Tunnels[0].Denied; n != 1 {
				t.Errorf("%d denied, want 1", n)
			}
		})
	}
}

func TestMaxFlows(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, func(o *rigOptions) { o.Tunnels[0].MaxFlows = 2 })
	a, _ := g.pair()
	b, _ := g.pair()
	if !refused(t, g.addr) {
		t.Fatal("a third flow was admitted")
	}
	g.expectReason(report.EndFlowLimit)
	reset(t, a)
	nettest.Eventually(t, patience, func() bool { return g.relay.Snapshot().Tunnels[0].FlowsNow == 1 },
		func() string { return "the flow that was reset still counts" })
	g.accept0()
	g.pair()
	s := g.relay.Snapshot().Tunnels[0]
	if s.Limited != 1 || s.FlowsNow != 2 || s.FlowsPeak != 2 || s.FlowsTotal != 3 {
		t.Errorf("counters are wrong: %+v", s)
	}
	_ = b
}

// accept0 checks that the target gets no connection.
func (g *rig) accept0() {
	g.t.Helper()
	g.target.SetDeadline(time.Now().Add(20 * time.Millisecond))
	if c, err := g.target.Accept(); err == nil {
		c.Close()
		g.t.Error("the target was dialed for a connection that was refused")
	}
}

func TestNewFlowsPerSecond(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, func(o *rigOptions) { o.Tunnels[0].NewFlowsPerSecond = 0.001 })
	g.pair()
	if !refused(t, g.addr) {
		t.Fatal("a second flow was admitted")
	}
	g.expectReason(report.EndRateLimit)
	if s := g.relay.Snapshot().Tunnels[0]; s.FlowsNow != 1 || s.Limited != 1 {
		t.Errorf("counters are wrong: %+v", s)
	}
}

func TestBucket(t *testing.T) {
	var b bucket
	taken := func(now time.Duration, tries int) (n int) {
		for range tries {
			if b.take(10, 0, now) {
				n++
			}
		}
		return n
	}
	const second = time.Second
	for _, tt := range []struct {
		now  time.Duration
		want int
	}{
		{second, 10},            // a burst of one second's worth
		{second + second/10, 1}, // then at the rate
		{second, 0},             // a stopped or reversed clock adds no tokens
		{10 * second, 10},       // no more than one burst is kept
	} {
		if got := taken(tt.now, 100); got != tt.want {
			t.Errorf("at %v %d were taken, want %d", tt.now, got, tt.want)
		}
	}
	var slow bucket
	if !slow.take(0.5, 0, 1) || slow.take(0.5, 0, second) || !slow.take(0.5, 0, 2*second+1) {
		t.Error("a rate below one a second does not admit one every two seconds")
	}
}

// listenInARow listens on three ports in a row, of which it returns the first.
func listenInARow(t *testing.T) (base uint16, targets [3]*net.TCPListener) {
	for base == 0 {
		l := listen(t)
		p := addrOf(l).Port()
		targets[0] = l
		base = p
		for i := 1; i < 3; i++ {
			next, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(p) + i})
			if err != nil {
				base = 0
				break
			}
			t.Cleanup(func() { next.Close() })
			targets[i] = next
		}
	}
	return base, targets
}

// TestPortRange maps the ports of a listening range one to one.
func TestPortRange(t *testing.T) {
	nettest.CheckLeaks(t)
	base, targets := listenInARow(t)
	other := netip.MustParseAddr("127.0.0.2")
	g := newRig(t, func(o *rigOptions) {
		o.Tunnels[0].Forward[0].Port = base
		o.Tunnels[0].Listen = nil
		for _, i := range []uint16{2, 0, 1} { // in any order
			o.Tunnels[0].Listen = append(o.Tunnels[0].Listen, netip.AddrPortFrom(other, base+i))
		}
	})
	for i, l := range targets {
		c := dial(t, netip.AddrPortFrom(other, base+uint16(i)))
		g.target = l
		s := g.accept()
		write(t, c, []byte{byte(i)})
		expect(t, s, []byte{byte(i)})
	}
}

func TestProxyHeaderOut(t *testing.T) {
	nettest.CheckLeaks(t)
	for _, version := range []ProxyVersion{ProxyV1, ProxyV2} {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			g := newRig(t, func(o *rigOptions) {
				o.Tunnels[0].ProxyOut = version
				o.Tunnels[0].Listen[0] = netip.MustParseAddrPort("0.0.0.0:0")
			})
			g.addr = netip.AddrPortFrom(loopback, g.addr.Port())
			c, s := g.pair()
			source := c.LocalAddr().(*net.TCPAddr).AddrPort()
			h := proxyproto.Header{Source: source, Destination: g.addr}
			if version == ProxyV1 {
				expect(t, s, proxyproto.AppendHeader(nil, 1, h))
			} else if name := expectHeader(t, s, h); name != g.relay.Snapshot().Flows[0].Name {
				t.Errorf("the header has another name than the flow: %v", name)
			}
			write(t, c, []byte("payload"))
			expect(t, s, []byte("payload"))
			c.CloseWrite()
			expectEnd(t, s)
			s.Close()
			if r := g.expectReason(report.EndClean); r.BytesUp != int64(len("payload")) {
				t.Errorf("%d bytes up: the header was counted", r.BytesUp)
			}
		})
	}
}

func TestProxyHeaderIn(t *testing.T) {
	nettest.CheckLeaks(t)
	h := proxyproto.Header{
		Source:      netip.MustParseAddrPort("192.0.2.7:1234"),
		Destination: netip.MustParseAddrPort("192.0.2.1:443"),
	}
	required := func(o *rigOptions) { o.Tunnels[0].ProxyIn.Required = true }
	for _, version := range []int{1, 2} {
		header := proxyproto.AppendHeader(nil, version, h)
		for _, split := range []int{0, 1, len(header) - 1, len(header)} {
			t.Run(fmt.Sprintf("v%d in two parts at %d", version, split), func(t *testing.T) {
				g := newRig(t, func(o *rigOptions) {
					required(o)
					o.Tunnels[0].ProxyOut = ProxyV1
				})
				c := dial(t, g.addr)
				write(t, c, header[:split])
				if split > 0 && split < len(header) {
					nettest.Eventually(t, patience, func() bool {
						f := g.relay.Snapshot().Flows
						return len(f) == 1 && f[0].State == "header"
					}, func() string { return "the flow does not wait for the rest of its header" })
				}
				write(t, c, append(header[split:len(header):len(header)], "payload"...))
				s := g.accept()
				expect(t, s, proxyproto.AppendHeader(nil, 1, h)) // passed on
				expect(t, s, []byte("payload"))
				s.Close()
				c.Close()
				if r := g.expectReason(report.EndClean); r.Client.AddrPort != h.Source {
					t.Errorf("the record names the client %v, want %v", r.Client, h.Source)
				}
			})
		}
	}
	for _, tt := range []struct {
		name, send string
		end        bool
		change     func(*rigOptions)
	}{
		{"garbage", "GET / HTTP/1.1\r\n\r\n", false, required},
		{"oversized", "PROXY TCP4 " + strings.Repeat("1", 5000), false, required},
		{"partial", "PROXY TCP4 192.0.2.7", true, required},
		{"nothing", "", true, required},
		{"untrusted", "PROXY TCP4 192.0.2.7 192.0.2.1 1 2\r\n", false, func(o *rigOptions) {
			required(o)
			o.Tunnels[0].ProxyIn.Trusted = prefixes("10.0.0.0/8")
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newRig(t, tt.change)
			if c, err := tryDial(g.addr); err == nil {
				defer c.Close()
				_, err = io.WriteString(c, tt.send)
				if err == nil && tt.end {
					err = c.CloseWrite()
				}
				if err == nil {
					_, err = c.Read(make([]byte, 1))
				}
				if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
					t.Fatalf("got %v, want a reset", err)
				}
			}
			if r := g.expectReason(report.EndBadProxyHeader); r.Err == nil {
				t.Error("the record does not say why")
			}
			if n := g.relay.Snapshot().Tunnels[0].Denied; n != 1 {
				t.Errorf("%d denied, want 1", n)
			}
			g.accept0()
		})
	}
}

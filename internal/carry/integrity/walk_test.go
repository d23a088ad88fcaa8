package integrity

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestWholeChain(t *testing.T) {
	s := newStand(t)
	target := s.target()
	c := s.relay(server("c", NextTarget), target)
	b := s.relay(server("b", NextRelay), c)
	chain := s.walk(b, NextRelay, DefaultBytes)
	if chain.State != Whole || chain.Fault != nil {
		t.Fatalf("want a whole chain, got %+v, %+v", chain, chain.Fault)
	}
	if got := kinds(chain); !slices.Equal(got, []Kind{KindRelay, KindRelay, KindTarget}) {
		t.Fatalf("hops %v", got)
	}
	for i, h := range chain.Hops[:2] {
		if h.Host != []string{"b", "c"}[i] || h.RTT == nil || h.Answer == nil {
			t.Errorf("hop %d: %+v", i, h)
		}
		for _, d := range []*Direction{h.Up, h.Down} {
			if d == nil || d.Bytes != DefaultBytes || d.AlteredBytes != 0 || d.GoodputBps == nil || d.Segments == nil || d.LostSegments == nil {
				t.Errorf("hop %d: %+v", i, d)
			}
		}
	}
	if th := chain.Hops[1].Through; th == nil || th.Up.Bytes == 0 || th.Down.Bytes == 0 || chain.Hops[0].Through != nil {
		t.Errorf("through: %+v", th)
	}
	if h := chain.Hops[2]; h.Address != target || h.RTT == nil || h.Up != nil {
		t.Errorf("target: %+v", h)
	}
}

func TestBrokenChains(t *testing.T) {
	for _, tt := range []struct {
		name   string
		build  func(s *stand) (Chain, string, string) // and the ends of the faulty leg
		reason Reason
		hop    int
		text   string
	}{
		{"the first hop is down", func(s *stand) (Chain, string, string) {
			to := s.nobody()
			return s.walk(to, NextRelay, MinBytes), "here", to.String()
		}, Refused, 1, "refuses the connection of here"},
		{"the second hop is down", func(s *stand) (Chain, string, string) {
			to := s.nobody()
			b := s.relay(server("b", NextRelay), to)
			return s.walk(b, NextRelay, MinBytes), "b (" + b.String() + ")", to.String()
		}, Refused, 2, "refuses the connection of b"},
		{"the target is down", func(s *stand) (Chain, string, string) {
			to := s.nobody()
			c := s.relay(server("c", NextTarget), to)
			b := s.relay(server("b", NextRelay), c)
			return s.walk(b, NextRelay, MinBytes), "c (" + c.String() + ")", to.String()
		}, Refused, 3, "refuses"},
		{"the only target is down", func(s *stand) (Chain, string, string) {
			to := s.nobody()
			return s.walk(to, NextTarget, MinBytes), "here", to.String()
		}, Refused, 1, "refuses"},
		{"the target thinks better of it", func(s *stand) (Chain, string, string) {
			b, to := s.relayLosingTarget(server("b", NextTarget), func(*net.TCPConn) {})
			return s.walk(b, NextRelay, MinBytes), "b (" + b.String() + ")", to.String()
		}, Closed, 2, "accepted the connection of b"},
		{"the target resets", func(s *stand) (Chain, string, string) {
			b, to := s.relayLosingTarget(server("b", NextTarget), func(c *net.TCPConn) { c.SetLinger(0) })
			return s.walk(b, NextRelay, MinBytes), "b (" + b.String() + ")", to.String()
		}, Reset, 2, "and then reset it"},
		{"a relay with another key", func(s *stand) (Chain, string, string) {
			other := server("b", NextTarget)
			other.Keys.First = NewKey()
			to := s.relay(other, s.target())
			return s.walk(to, NextRelay, MinBytes), "here", to.String()
		}, Closed, 1, "and then ended it"}, // a real one would forward the hello
		{"a proxy that gives up", func(s *stand) (Chain, string, string) {
			to := s.listen(func(c *net.TCPConn) { _, _ = c.Read(make([]byte, 1)) })
			b := s.relay(server("b", NextRelay), to)
			return s.walk(b, NextRelay, MinBytes), "b (" + b.String() + ")", to.String()
		}, Reset, 2, "and then reset it"},
		{"a loop", func(s *stand) (Chain, string, string) {
			to := s.target()
			again := s.relay(server("b", NextTarget), to)
			b := s.relay(server("b", NextRelay), again)
			return s.walk(b, NextRelay, MinBytes), "b (" + b.String() + ")", "b (" + again.String() + ")"
		}, Loop, 2, "leads back into itself"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStand(t)
			chain, from, to := tt.build(s)
			f := chain.Fault
			if chain.State != Broken || f == nil {
				t.Fatalf("want a broken chain, got %+v", chain)
			}
			if f.Reason != tt.reason || f.Hop != tt.hop || f.From != from || f.To != to || !strings.Contains(f.Text, tt.text) || f.Hint == "" {
				t.Errorf("%+v, want %s at hop %d between %q and %q", f, tt.reason, tt.hop, from, to)
			}
			if len(chain.Hops) != tt.hop || chain.Hops[tt.hop-1].State != Broken {
				t.Errorf("hops: %+v", chain.Hops)
			}
			t.Logf("%s; %s", f.Text, f.Hint)
		})
	}
}

// A middlebox that is not a relay shows, and is not a fault.
func TestProxyBetweenRelays(t *testing.T) {
	s := newStand(t)
	c := s.relay(server("c", NextTarget), s.target())
	proxy := s.middle(c, nil)
	b := s.relay(server("b", NextRelay), proxy)
	chain := s.walk(b, NextRelay, DefaultBytes)
	if got := kinds(chain); chain.State != Whole || !slices.Equal(got, []Kind{KindRelay, KindOther, KindRelay, KindTarget}) {
		t.Fatalf("want a proxy between two relays, got %v %+v", got, chain.Fault)
	}
	if h := chain.Hops[1]; h.Address != proxy || h.RTT == nil || h.Up != nil {
		t.Errorf("proxy: %+v", h)
	}
	if h := chain.Hops[2]; h.Address != c || h.Host != "c" || h.Up == nil {
		t.Errorf("relay behind it: %+v", h)
	}
}

// The greeting of a target that speaks first arrives before the reply to a
// hello.
func TestGreetingTarget(t *testing.T) {
	s := newStand(t)
	target := s.listen(func(c *net.TCPConn) {
		_, _ = io.WriteString(c, "SSH-2.0-test\r\n")
		_, _ = io.Copy(io.Discard, c)
	})
	last := server("c", NextTarget)
	c := s.listen(func(client *net.TCPConn) {
		to, err := dialTCP(t.Context(), target)
		if err != nil {
			return
		}
		defer to.Close()
		greeting := make([]byte, 14)
		if _, err := io.ReadFull(to, greeting); err != nil {
			return
		}
		_, _ = client.Write(greeting[:5]) // forwarded before the hello came
		last.Serve(t.Context(), Flow{Client: client, Target: to, Dialed: target, Since: time.Now(), Before: 5, ToClient: greeting[5:]})
	})
	b := s.relay(server("b", NextRelay), c)
	if chain := s.walk(b, NextRelay, DefaultBytes); chain.State != Whole || chain.Hops[2].Address != target {
		t.Fatalf("want a whole chain, the fault is %+v", chain.Fault)
	}
}

// One byte is altered anywhere on the connection between two relays: in a
// hello, a frame, or the pattern.
func TestAlteredByte(t *testing.T) {
	for _, leg := range []string{"here-b", "b-c"} {
		for _, direction := range []string{upwards, downwards} {
			t.Run(leg+" "+direction, func(t *testing.T) {
				s := newStand(t)
				target := s.target()
				offsets, step := []int64{20000, 60000}, int64(1)
				if leg == "b-c" { // the same from b's view
					step = 11
				}
				for at := int64(0); at <= 1000; at += step {
					offsets = append(offsets, at)
				}
				for _, at := range offsets {
					c := s.relay(server("c", NextTarget), target)
					from, to, hop := "here", "b", 2 // the middlebox is also a hop
					var chain Chain
					if leg == "here-b" {
						b := s.relay(server("b", NextRelay), c)
						chain = s.walk(s.middle(b, flip(direction, at)), NextRelay, 64<<10)
					} else {
						b := s.relay(server("b", NextRelay), s.middle(c, flip(direction, at)))
						chain = s.walk(b, NextRelay, 64<<10)
						from, to, hop = "b", "c", 3
					}
					if err := altered(chain, direction, at, from, to, hop); err != nil {
						t.Errorf("byte %d: %v", at, err)
					}
				}
			})
		}
	}
}

// altered compares a verdict with the alteration.
func altered(c Chain, direction string, at int64, from, to string, hop int) error {
	f := c.Fault
	if f == nil {
		return fmt.Errorf("nothing was found: %+v", c)
	}
	if f.Reason != Altered || f.Direction != direction || f.OffsetBytes == nil {
		return fmt.Errorf("want bytes that are altered and where, the fault is %+v", f)
	}
	if at < *f.OffsetBytes || at >= *f.OffsetBytes+int64(f.WithinBytes) {
		return fmt.Errorf("found at %d, within %d", *f.OffsetBytes, f.WithinBytes)
	}
	if !strings.HasPrefix(f.From, from) || f.Hop > hop {
		return fmt.Errorf("between %s and %s, hop %d", f.From, f.To, f.Hop)
	}
	return nil
}

// Several altered bytes: every kind of damage is distinguished from a hang.
func TestAlteredMuch(t *testing.T) {
	every := func(direction string, n int64) meddle {
		return func(d string, offset int64, b []byte) []byte {
			for i := range b {
				if d == direction && (offset+int64(i))%n == n-1 {
					b[i]++
				}
			}
			return b
		}
	}
	cut := func(direction string, at int64, insert string) meddle {
		return func(d string, offset int64, b []byte) []byte {
			if i := at - offset; d == direction && i >= 0 && i < int64(len(b)) {
				return append(append(append([]byte{}, b[:i]...), insert...), b[i+1:]...)
			}
			return b
		}
	}
	for name, m := range map[string]meddle{
		"every 50th byte up":     every(upwards, 50),
		"every 60th byte down":   every(downwards, 60),
		"every 4099th byte up":   every(upwards, 4099),
		"every 4099th byte down": every(downwards, 4099),
		"a byte is left out":     cut(upwards, 30_000, ""),
		"bytes come in between":  cut(downwards, 30_000, "HTTP/1.1 403"),
	} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t)
			c := s.relay(server("c", NextTarget), s.target())
			b := s.relay(server("b", NextRelay), s.middle(c, m))
			chain := s.walk(b, NextRelay, 256<<10)
			f := chain.Fault
			if f == nil || f.Reason != Altered || !strings.HasPrefix(f.From, "b ") {
				t.Fatalf("want altered bytes behind b, the fault is %+v", f)
			}
			t.Log(f.Text)
		})
	}
}

// A relay that alters forwarded bytes is detected although its legs are fine.
func TestAlteredInside(t *testing.T) {
	s := newStand(t)
	c := s.relay(server("c", NextTarget), s.target())
	wrong := server("b", NextRelay)
	b := s.listen(func(client *net.TCPConn) {
		to, err := dialTCP(t.Context(), c)
		if err != nil {
			return
		}
		s.keep(to)
		defer to.Close()
		if wrong.Serve(t.Context(), Flow{Client: client, Target: to, Dialed: c, Since: time.Now(), Local: client.LocalAddr().(*net.TCPAddr).AddrPort()}) {
			_ = client.SetDeadline(time.Time{})
			_ = to.SetDeadline(time.Time{})
			s.copyBoth(client, to.(*net.TCPConn), flip(upwards, 1_000)) // behind the requests, within MinBytes
		}
	})
	chain := s.walk(b, NextRelay, DefaultBytes)
	f := chain.Fault
	if f == nil || f.Reason != Altered || !strings.Contains(f.Text, "through b (") || f.Direction != upwards {
		t.Fatalf("want bytes that b alters upwards, the fault is %+v", f)
	}
	if up := chain.Hops[1].Up; up == nil || up.AlteredBytes != 0 || chain.Hops[1].Through == nil || chain.Hops[1].Through.Up.AlteredBytes != 1 {
		t.Errorf("want one altered byte through b and none on its leg, the hop is %+v", chain.Hops[1])
	}
}

package integrity

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"longhaul/internal/proxyproto"
)

func TestHealth(t *testing.T) {
	s := newStand(t)
	target := s.target()
	h := Health{Key: testKey, Memory: NewMemory()}
	for _, tt := range []struct {
		name string
		to   netip.AddrPort
		want string // in the error; empty: no error
	}{
		{"a relay and its target are well", s.relay(server("b", NextTarget), target), ""},
		{"a relay and the next one are well", s.relay(server("b", NextRelay), s.relay(server("c", NextTarget), target)), ""},
		{"it reaches nobody", s.relay(server("b", NextTarget), s.nobody()), "refuses the connection of b"},
		{"nobody is there", s.nobody(), "refuses the connection of this relay"},
		{"it alters bytes", s.middle(s.relay(server("b", NextTarget), target), flip(downwards, 9000)), "1 byte is altered"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		rtt, err := h.Probe(ctx, tt.to)
		cancel()
		switch {
		case tt.want == "" && (err != nil || rtt <= 0):
			t.Errorf("%s: %v, %v", tt.name, rtt, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := h.Probe(ctx, target); err == nil || err.Error() != "no answer in time" {
		t.Errorf("a silent one: %v", err)
	}
	if (Health{Key: testKey, Memory: h.Memory}) != h || (Health{Key: NewKey(), Memory: h.Memory}) == h {
		t.Error("health checks do not compare")
	}
}

// The preamble comes first.
func TestHealthPreamble(t *testing.T) {
	s := newStand(t)
	header := string(proxyproto.AppendHeader(nil, 2, proxyproto.Header{}))
	last := server("b", NextTarget)
	to := s.listen(func(c *net.TCPConn) {
		got := make([]byte, len(header))
		if _, err := c.Read(got); err != nil || string(got) != header {
			t.Errorf("got %q, %v", got, err)
			return
		}
		last.Serve(t.Context(), Flow{Client: c, Reason: Refused})
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := (Health{testKey, header, NewMemory()}).Probe(ctx, to); err == nil || !strings.Contains(err.Error(), "refuses") {
		t.Error(err)
	}
}

package integrity

import (
	"context"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"longhaul/internal/carry/proxyproto"
	"longhaul/internal/sys/halfopen"
	"longhaul/test/nettest"
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

// TestTargetIsAskedHalfOpen: the program of a target whose relay has not yet completed the handshake
// sees no health check, and a single connection of a walk, by which alone a chain is whole or not.
func TestTargetIsAskedHalfOpen(t *testing.T) {
	for greeting, want := range map[string]State{"220 ready\r\n": Whole, "": Accepts} {
		t.Run(string(want), func(t *testing.T) {
			before := wait
			t.Cleanup(func() { wait = before })
			if greeting != "" {
				wait.settled = time.Hour
			}
			s := newStand(t)
			var accepted atomic.Int32
			target := s.listen(func(c *net.TCPConn) {
				accepted.Add(1)
				_, _ = io.WriteString(c, greeting)
				_, _ = io.Copy(io.Discard, c)
			})
			last := server("b", NextTarget)
			last.Dial = dialTCP
			relay := s.listen(func(client *net.TCPConn) {
				d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
					return c.Control(func(fd uintptr) { _ = halfopen.Hold(int(fd)) })
				}}
				d.SetMultipathTCP(false)
				conn, err := d.Dial("tcp", target.String())
				if err != nil {
					t.Error(err)
					return
				}
				last.Serve(t.Context(), Flow{Client: client, Target: conn.(*net.TCPConn), Dialed: target, Since: time.Now(), Source: target.Addr()})
			})
			h := Health{Key: testKey, Memory: NewMemory()}
			const checks = 20
			for range checks {
				if rtt, err := h.Probe(t.Context(), relay); err != nil || rtt <= 0 {
					t.Fatal(rtt, err)
				}
			}
			if seen := accepted.Load(); seen > checks/2 { // a process without a processor for 200 ms sends the ACK
				t.Errorf("the target has seen %d of %d health checks", seen, checks)
			}
			seen := accepted.Load()
			report := NewReport("t", time.Now(), []Chain{s.walk(relay, NextRelay, MinBytes)})
			if report.State != want {
				t.Errorf("a target that says %q: %s: %s", greeting, report.State, report.Summary)
			}
			nettest.Eventually(t, patience, func() bool { return accepted.Load() > seen },
				func() string { return "the target has seen no connection of a walk" })
		})
	}
}

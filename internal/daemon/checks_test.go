package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"longhaul/internal/flow"

	"longhaul/internal/check"
	"longhaul/internal/config"
	"longhaul/internal/relay"
)

// A hello of another key is forwarded like any bytes; the log says so, and not
// for each of them.
func TestStrangersChecksAreForwarded(t *testing.T) {
	var log strings.Builder
	c := newChecks(slog.New(slog.NewTextHandler(&log, nil)), "test")
	mine := c.make(checkSettings{tunnel: "t", keys: check.Keys{First: check.NewKey()}}, nil).checker
	var hello []byte
	stranger := check.Walk{Next: check.NextRelay, Key: check.NewKey(), Bytes: check.MinBytes, Memory: check.NewMemory(),
		Dial: func(context.Context) (check.Conn, netip.AddrPort, error) {
			here, there := net.Pipe()
			go func() {
				hello = make([]byte, check.HelloBytes)
				_, _ = there.Read(hello)
				there.Close()
			}()
			return here, netip.AddrPort{}, nil
		}}
	if chain := stranger.Run(t.Context()); chain.State != check.Broken {
		t.Errorf("a chain whose end closes the connection is %s, want %s", chain.State, check.Broken)
	}
	for range 3 {
		if got := mine.Recognize(hello); got != relay.NotCheck {
			t.Errorf("a stranger's hello is %v", got)
		}
	}
	if got := mine.Recognize(hello[:8]); got != relay.MaybeCheck {
		t.Errorf("its beginning is %v", got)
	}
	if got := mine.Recognize([]byte("SSH-2.0-x\r\n")); got != relay.NotCheck {
		t.Errorf("a greeting is %v", got)
	}
	if n := strings.Count(log.String(), "what looks like a check was forwarded"); n != 1 {
		t.Errorf("%d lines: %s", n, log.String())
	}
}

func TestCheckReasons(t *testing.T) {
	for _, tt := range []struct {
		end  flow.EndReason
		err  error
		want check.Reason
	}{
		{flow.EndTargetRefused, syscall.ECONNREFUSED, check.Refused},
		{flow.EndTargetUnreached, fmt.Errorf("connect: %w", syscall.ETIMEDOUT), check.TimedOut},
		{flow.EndTargetUnreached, syscall.EHOSTUNREACH, check.Unreachable},
		{flow.EndTargetUnknown, errors.New("no such host"), check.Unresolved},
		{flow.EndTargetReset, syscall.ECONNRESET, check.Reset},
		{flow.EndTargetTimeout, syscall.ETIMEDOUT, check.TimedOut},
		{flow.EndNoLocalPort, syscall.EADDRNOTAVAIL, check.NoLocalPort},
		{flow.EndNoResources, syscall.EMFILE, check.NoResources},
		{flow.EndIdle, nil, check.Failed},
	} {
		if got := checkReason(tt.end, tt.err); got != tt.want {
			t.Errorf("%s, %v: %s, want %s", tt.end, tt.err, got, tt.want)
		}
	}
}

// What did not change keeps its checker, so that relay leaves the tunnel alone,
// and its last report; a new key is a change.
func TestChecksOutliveAReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := check.NewKey().Create(path); err != nil {
		t.Fatal(err)
	}
	settings := config.DefaultSettings()
	settings.Check = config.Check{Enabled: true, KeyFile: path, Next: config.CheckNextTarget, Bytes: 1 << 20}
	from := &config.Config{Tunnels: []config.Tunnel{{Name: "t", Settings: settings}, {Name: "plain", Settings: config.DefaultSettings()}}}
	c := newChecks(slog.New(slog.DiscardHandler), "test")
	defer c.close()
	equip := func() []relay.Tunnel {
		t.Helper()
		tunnels := []relay.Tunnel{{Name: "t", Forward: []relay.Target{{Host: "127.0.0.1", Port: 1}}}, {Name: "plain"}}
		if err := c.equip(from, tunnels); err != nil {
			t.Fatal(err)
		}
		c.keep()
		return tunnels
	}
	first := equip()
	if first[0].Checker == nil || first[1].Checker != nil {
		t.Fatalf("one tunnel of two has a checker; the tunnels are %+v", first)
	}
	one, err := c.find("t")
	if err != nil {
		t.Fatal(err)
	}
	if r, err := one.run(t.Context(), 0); err != nil || r.State != check.Broken || r.Chains[0].Fault.Reason != check.Refused {
		t.Errorf("%+v, %v", r, err)
	}
	if second := equip(); second[0].Checker != first[0].Checker || len(c.reports()) != 1 {
		t.Error("what did not change is changed")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := c.equip(from, []relay.Tunnel{{Name: "t"}, {Name: "plain"}}); err == nil {
		t.Error("a missing key is no error")
	}
	if err := check.NewKey().Create(path); err != nil {
		t.Fatal(err)
	}
	if third := equip(); third[0].Checker == first[0].Checker || len(c.reports()) != 0 {
		t.Error("a new key changes nothing")
	}
}

// One line tells of a change, and none of its staying so.
func TestOnlyChangesAreLogged(t *testing.T) {
	var log strings.Builder
	one := &tunnelCheck{checkSettings: checkSettings{tunnel: "t"}, log: slog.New(slog.NewTextHandler(&log, nil))}
	report := func(state check.State, f *check.Fault) *check.Report {
		r := check.NewReport("t", time.Now(), []check.Chain{{State: state, Fault: f, Hops: []check.Hop{{Kind: check.KindTarget}}}})
		return &r
	}
	whole, down := report(check.Whole, nil), report(check.Broken, &check.Fault{Reason: check.Refused, Hop: 1, Text: "refused"})
	elsewhere := report(check.Broken, &check.Fault{Reason: check.TimedOut, Hop: 2, Text: "late"})
	var before *check.Report
	for _, now := range []*check.Report{whole, whole, down, down, elsewhere, whole} {
		one.tell(before, now)
		before = now
	}
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 4 {
		t.Fatalf("%d lines:\n%s", len(lines), log.String())
	}
	for i, want := range []string{"level=INFO.*is whole", "level=WARN.*refused", "level=WARN.*late", "level=INFO.*is whole"} {
		level, text, _ := strings.Cut(want, ".*")
		if !strings.Contains(lines[i], level) || !strings.Contains(lines[i], text) {
			t.Errorf("line %d: %s", i, lines[i])
		}
	}
}

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

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/integrity"
	"longhaul/internal/carry/relay"
	"longhaul/internal/carry/relay/hops"
	"longhaul/internal/run/config"
	"longhaul/test/nettest"
)

// A hello of another key is forwarded like any bytes; the log says so, and not
// for each of them.
func TestStrangersChecksAreForwarded(t *testing.T) {
	var log strings.Builder
	c := newIntegrityChecks(slog.New(slog.NewTextHandler(&log, nil)), "test", func(path string) string { return path })
	mine := c.make(integritySettings{tunnel: "t", keys: integrity.Keys{First: integrity.NewKey()}}, nil).server
	var hello []byte
	stranger := integrity.Walk{Next: integrity.NextRelay, Key: integrity.NewKey(), Bytes: integrity.MinBytes, Memory: integrity.NewMemory(),
		Dial: func(context.Context) (integrity.Conn, netip.AddrPort, error) {
			here, there := net.Pipe()
			go func() {
				hello = make([]byte, integrity.HelloBytes)
				_, _ = there.Read(hello)
				there.Close()
			}()
			return here, netip.AddrPort{}, nil
		}}
	if chain := stranger.Run(t.Context()); chain.State != integrity.Broken {
		t.Errorf("a chain whose end closes the connection is %s, want %s", chain.State, integrity.Broken)
	}
	for range 3 {
		if got := mine.Recognize(hello); got != relay.NoHello {
			t.Errorf("a stranger's hello is %v", got)
		}
	}
	if got := mine.Recognize(hello[:8]); got != relay.MaybeHello {
		t.Errorf("its beginning is %v", got)
	}
	if got := mine.Recognize([]byte("SSH-2.0-x\r\n")); got != relay.NoHello {
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
		want integrity.Reason
	}{
		{flow.EndTargetRefused, syscall.ECONNREFUSED, integrity.Refused},
		{flow.EndTargetUnreached, fmt.Errorf("connect: %w", syscall.ETIMEDOUT), integrity.TimedOut},
		{flow.EndTargetUnreached, syscall.EHOSTUNREACH, integrity.Unreachable},
		{flow.EndTargetUnknown, errors.New("no such host"), integrity.Unresolved},
		{flow.EndTargetReset, syscall.ECONNRESET, integrity.Reset},
		{flow.EndTargetTimeout, syscall.ETIMEDOUT, integrity.TimedOut},
		{flow.EndNoLocalPort, syscall.EADDRNOTAVAIL, integrity.NoLocalPort},
		{flow.EndNoResources, syscall.EMFILE, integrity.NoResources},
		{flow.EndIdle, nil, integrity.Failed},
	} {
		if got := integrityReason(tt.end, tt.err); got != tt.want {
			t.Errorf("%s, %v: %s, want %s", tt.end, tt.err, got, tt.want)
		}
	}
}

// What did not change keeps its integrity server, so that relay leaves the
// tunnel alone, and its last report; a new key is a change.
func TestChecksOutliveAReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := integrity.NewKey().Create(path); err != nil {
		t.Fatal(err)
	}
	settings := config.DefaultSettings()
	settings.Check = config.Check{Enabled: true, KeyFile: path, Next: config.CheckNextTarget, Bytes: 1 << 20}
	from := &config.Config{Tunnels: []config.Tunnel{{Name: "t", Settings: settings}, {Name: "plain", Settings: config.DefaultSettings()}}}
	c := newIntegrityChecks(slog.New(slog.DiscardHandler), "test", func(path string) string { return path })
	defer c.close()
	equip := func() []relay.Tunnel {
		t.Helper()
		tunnels := []relay.Tunnel{{Name: "t", Forward: []hops.Target{{Host: "127.0.0.1", Port: 1}}}, {Name: "plain"}}
		change, err := c.Prepare(t.Context(), &plan{Config: from, tunnels: tunnels})
		nettest.Must(t, err)
		change.Commit()
		return tunnels
	}
	first := equip()
	if first[0].Integrity == nil || first[1].Integrity != nil {
		t.Fatalf("one tunnel of two has an integrity server; the tunnels are %+v", first)
	}
	one, err := c.find("t")
	if err != nil {
		t.Fatal(err)
	}
	if r, err := one.run(t.Context(), 0); err != nil || r.State != integrity.Broken || r.Chains[0].Fault.Reason != integrity.Refused {
		t.Errorf("%+v, %v", r, err)
	}
	if second := equip(); second[0].Integrity != first[0].Integrity || len(c.reports()) != 1 {
		t.Error("what did not change is changed")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Prepare(t.Context(), &plan{Config: from, tunnels: []relay.Tunnel{{Name: "t"}, {Name: "plain"}}}); err == nil {
		t.Error("a missing key is no error")
	}
	if err := integrity.NewKey().Create(path); err != nil {
		t.Fatal(err)
	}
	if third := equip(); third[0].Integrity == first[0].Integrity || len(c.reports()) != 0 {
		t.Error("a new key changes nothing")
	}
}

// One line tells of a change, and none of its staying so.
func TestOnlyChangesAreLogged(t *testing.T) {
	var log strings.Builder
	one := &tunnelIntegrity{integritySettings: integritySettings{tunnel: "t"}, log: slog.New(slog.NewTextHandler(&log, nil))}
	report := func(state integrity.State, f *integrity.Fault) *integrity.Report {
		passed := &integrity.Direction{Bytes: 1}
		r := integrity.NewReport("t", time.Now(), []integrity.Chain{{State: state, Fault: f, Hops: []integrity.Hop{
			{Kind: integrity.KindRelay, Up: passed, Down: passed}, {Kind: integrity.KindTarget, Greeting: 1}}}})
		return &r
	}
	whole, down := report(integrity.Whole, nil), report(integrity.Broken, &integrity.Fault{Reason: integrity.Refused, Hop: 1, Text: "refused"})
	elsewhere := report(integrity.Broken, &integrity.Fault{Reason: integrity.TimedOut, Hop: 2, Text: "late"})
	var before *integrity.Report
	for _, now := range []*integrity.Report{whole, whole, down, down, elsewhere, whole} {
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

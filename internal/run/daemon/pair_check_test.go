package daemon

import (
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/integrity"
	"longhaul/internal/sys/loglimit"
)

// The hint of a check that no flow passes leads to the host that has the fault.
func TestCheckOfAPairNamesTheSide(t *testing.T) {
	for _, test := range []struct {
		end        flow.EndReason
		text, hint string
	}{
		{flow.EndTargetRefused, "no target is reached from there", "forward of the far tunnel"},
		{flow.EndNoHop, "no target is reached from there", "longhaul status there"},
		{flow.EndPairDown, "no flow reaches it", "from this host"},
		{flow.EndNoLocalPort, "no flow reaches it", "local ports"},
	} {
		t.Run(string(test.end), func(t *testing.T) {
			var c integrity.Chain
			addTarget(&c, "site-b", netip.AddrPort{}, test.end, errors.New("the cause"))
			if c.State != integrity.Broken || c.Fault == nil || len(c.Hops) != 1 {
				t.Fatalf("the chain is %+v", c)
			}
			if f := c.Fault; !strings.Contains(f.Text, test.text) || !strings.HasSuffix(f.Text, ": the cause") || !strings.Contains(f.Hint, test.hint) {
				t.Errorf("text %q, hint %q", f.Text, f.Hint)
			}
		})
	}
}

// A session that a reload ends behind its last flow is not told as a loss.
func TestPairTellsLosses(t *testing.T) {
	for _, test := range []struct {
		name  string
		after flow.Session
		lost  bool
	}{
		{"closed by this host", flow.Session{}, false},
		{"closed by this host, under flows", flow.Session{Flows: 1}, true},
		{"lost", flow.Session{Error: "read: connection reset by peer"}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			var log strings.Builder
			p := &pairs{lines: loglimit.New(slog.New(slog.NewTextHandler(&log, nil)))}
			was := &watched{Session: flow.Session{Up: true}}
			p.tell(was, test.after, time.Now())
			if got := strings.Contains(log.String(), "session lost"); got != test.lost || was.Up {
				t.Errorf("tells a loss: %v; up: %v; log %q", got, was.Up, log.String())
			}
		})
	}
}

package daemon

import (
	"errors"
	"log/slog"
	"maps"
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
		byPeer     bool
		text, hint string
	}{
		{flow.EndTargetRefused, true, "no target is reached from there", "forward of the far tunnel"},
		{flow.EndNoHop, true, "no target is reached from there", "longhaul status there"},
		{flow.EndPairDown, false, "no flow reaches it", "from this host"},
		{flow.EndPairDown, true, "the next one behind it does not", "longhaul check at site-b"},
		{flow.EndNoLocalPort, false, "no flow reaches it", "local ports"},
	} {
		t.Run(string(test.end), func(t *testing.T) {
			var c integrity.Chain
			addProbed(&c, "site-b", probed{end: test.end, err: errors.New("the cause"), byPeer: test.byPeer})
			if c.State != integrity.Broken || c.Fault == nil || len(c.Hops) != 1 {
				t.Fatalf("the chain is %+v", c)
			}
			if f := c.Fault; !strings.Contains(f.Text, test.text) || !strings.HasSuffix(f.Text, ": the cause") || !strings.Contains(f.Hint, test.hint) {
				t.Errorf("text %q, hint %q", f.Text, f.Hint)
			}
		})
	}
}

// A check of a range finds that the far relay does not take its last port, and nothing else of it.
func TestCheckOfARange(t *testing.T) {
	for end, broken := range map[flow.EndReason]bool{flow.EndDenied: true, flow.EndTargetRefused: false, "": false} {
		c := integrity.Chain{State: integrity.Whole, Hops: []integrity.Hop{{}, {State: integrity.Whole}}}
		addRange(&c, "site-b", probed{end: end, err: errors.New("the cause")})
		if (c.State == integrity.Broken) != broken || (c.Fault != nil) != broken {
			t.Errorf("%q: the chain is %+v", end, c)
		}
		if f := c.Fault; broken && (f.Hop != 2 || !strings.HasSuffix(f.Text, "the whole range of ports: the cause") || !strings.Contains(f.Hint, "forward of the far")) {
			t.Errorf("%+v", f)
		}
	}
}

// A check names the hops that get no new flows though their sessions stand.
func TestCheckNamesHopsWithoutNewFlows(t *testing.T) {
	all := []flow.Tunnel{{Name: "other", Hops: []flow.Hop{{Name: "a:1", State: flow.HopDrained}}}, {Name: "t", Hops: []flow.Hop{
		{Name: "a:1", State: flow.HopUp},
		{Name: "b:1", State: flow.HopDrained},
		{Name: "c:1", State: flow.HopSameHost, LastError: "leads to the same relay as a:1"},
		{Name: "d:1", State: flow.HopDown, LastError: "is tested elsewhere"},
	}}}
	want := map[string]string{"b:1": "drained", "c:1": "same-host: it leads to the same relay as a:1"}
	if got := hopNotes(all, "t"); !maps.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
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

// A check asks the session that takes new flows, not one that only keeps its old ones.
func TestCheckAsksTheSessionOfNewFlows(t *testing.T) {
	old := flow.Session{Tunnel: "t", End: flow.NearEnd, Session: "1", Up: true, Draining: true}
	next := flow.Session{Tunnel: "t", End: flow.NearEnd, Session: "2", Problem: flow.PairPathDown}
	up := flow.Session{Tunnel: "t", End: flow.NearEnd, Session: "3", Up: true}
	refused := up
	refused.Session, refused.LaneProblem, refused.Since = "6", flow.PairCertificate, time.Unix(1, 0) // a later one
	far := flow.Session{Tunnel: "t", End: flow.FarEnd, Session: "4", Up: true}
	other := flow.Session{Tunnel: "other", End: flow.NearEnd, Session: "5", Up: true}
	for _, test := range []struct {
		name string
		all  []flow.Session
		want string // session; empty: none
	}{
		{"only another tunnel's", []flow.Session{far, other}, ""},
		{"one that drains", []flow.Session{old}, ""},
		{"the far port is gone", []flow.Session{old, next}, "2"},
		{"listed the other way", []flow.Session{next, old}, "2"},
		{"one is up", []flow.Session{old, next, up}, "3"},
		{"new connections of another are refused", []flow.Session{refused, up}, "3"},
		{"those of the only one are", []flow.Session{old, next, refused}, "6"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got, has := takesFlows(test.all, "t", ""); got.Session != test.want || has != (test.want != "") {
				t.Errorf("asks session %q, %v", got.Session, has)
			}
		})
	}
}

// An error without words of its own is put into words; others stay.
func TestLostSessionsHaveWords(t *testing.T) {
	all := []flow.Session{{Error: "EOF"}, {Error: "read: connection reset by peer", Paths: []flow.Path{{Error: "unexpected EOF"}}}, {}}
	putIntoWords(all)
	if all[0].Error != all[1].Paths[0].Error || !strings.Contains(all[0].Error, "process has ended") ||
		all[1].Error != "read: connection reset by peer" || all[2].Error != "" {
		t.Errorf("%+v", all)
	}
}

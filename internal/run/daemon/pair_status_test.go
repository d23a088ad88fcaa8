package daemon

import (
	"bytes"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair"
	"longhaul/internal/carry/usable"
	"longhaul/internal/run/config"
	"longhaul/internal/sys/loglimit"
)

// TestFlappingSessions holds that a peer which begins and ends sessions without a pause
// gets few lines of each kind, the first ones at once. Another peer has its own.
func TestFlappingSessions(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	now := time.Unix(1000, 0)
	p := &pairs{log: log, lines: loglimit.NewWithClock(log, func() time.Time { return now })}
	known := map[sessionKey]*watched{}
	session := func(peer string, number uint64) flow.Session {
		return flow.Session{Peer: peer, Tunnel: "from-a", Session: pair.NumberText(number), Up: true, Since: now, Encrypted: true}
	}
	for i := range uint64(1000) {
		now = now.Add(10 * time.Millisecond) // 10 s in all
		s := session("hostile", i)
		p.watchSessions(known, []flow.Session{s}, now)
		s.Up, s.Error = false, "reset"
		p.watchSessions(known, []flow.Session{s}, now)
	}
	p.watchSessions(known, []flow.Session{session("honest", 1)}, now)
	for line, want := range map[string]int{
		`msg="pair: session up" peer=hostile`:    sessionBurst,
		`msg="pair: session lost" peer=hostile`:  sessionBurst,
		`msg="pair: session ended" peer=hostile`: sessionBurst,
		`msg="pair: session up" peer=honest`:     1,
	} {
		if got := strings.Count(out.String(), line); got < want || got > 2*want {
			t.Errorf("%d lines %s, want %d", got, line, want)
		}
	}
	out.Reset()
	now = now.Add(loglimit.Pause)
	p.lines.Flush()
	if got := strings.Count(out.String(), "\n"); got != 3 || !strings.Contains(out.String(), `msg="more: pair: session up" peer=hostile tunnel=from-a suppressed=`) {
		t.Errorf("the lines left out are counted so:\n%s", out.String())
	}
}

// Sessions come in the order of forward, and those of a removed hop last.
func TestSessionsInTheOrderOfForward(t *testing.T) {
	near := &nearTunnel{}
	for _, hop := range []string{"c:1", "a:1", "b:1"} {
		near.hops = append(near.hops, nearHop{options: pair.LinkOptions{Hop: hop}})
	}
	pairs := tunnelPairs{near: map[string]*nearTunnel{"t": near}}
	all := []flow.Session{{Tunnel: "u"}, {Tunnel: "t", Hop: "0:1"}, {Tunnel: "t", Hop: "a:1"}, {Tunnel: "t", Hop: "b:1"}, {Tunnel: "t", Hop: "c:1"}}
	pairs.places().sort(all)
	var order string
	for _, s := range all {
		order += s.Tunnel + s.Hop + " "
	}
	if want := "tc:1 ta:1 tb:1 t0:1 u "; order != want {
		t.Errorf("order %s, want %s", order, want)
	}
}

// TestRefusedCertificatesAreEvents: refusals in a row at a tunnel are one change, and their end another.
func TestRefusedCertificatesAreEvents(t *testing.T) {
	judge := usable.New(usable.Options{})
	now := time.Unix(1000, 0)
	all := refusedCertificates{}
	var last *flow.RefusedCertificate
	refuse := func(tunnel string) {
		last = &flow.RefusedCertificate{At: now, Source: netip.MustParseAddr("192.0.2.1"), Tunnel: tunnel, Error: "it has expired"}
	}
	for second := range 120 {
		now = now.Add(time.Second)
		if second > 10 && second < 50 && second%2 == 0 {
			refuse("from-a")
		}
		if second == 60 {
			refuse("from-b")
		}
		all.note(judge.Note, last, now)
	}
	var got []string
	for _, e := range judge.Events(time.Time{}) {
		got = append(got, e.Kind+" "+e.Tunnel+" "+e.From+" > "+e.To+": "+e.Reason)
	}
	want := []string{
		"certificate from-a no refusal > refused: from 192.0.2.1: it has expired",
		"certificate from-b no refusal > refused: from 192.0.2.1: it has expired",
		"certificate from-a refused > no refusal: ",
		"certificate from-b refused > no refusal: ",
	}
	if !slices.Equal(got, want) || len(all) > 0 {
		t.Errorf("events %q, want %q; left is %v", got, want, all)
	}
}

// TestHostOfTheProcessBefore: a link gets the host that it had in the process before.
func TestHostOfTheProcessBefore(t *testing.T) {
	p := &pairs{stood: []linkMemory{{Tunnel: "t", Peer: "site-b", Hop: "b1:6000", Host: "site-b/b1"}, {Tunnel: "t", Peer: "site-b", Hop: "b2:6000", Host: "site-b/b2"}}}
	c := &config.Tunnel{Name: "t", Pair: config.Pair{Peer: "site-b"}, Forward: make([]config.Forward, 2)}
	if was := p.before(c, "b2:6000"); was == nil || was.Host != "site-b/b2" {
		t.Errorf("it was %+v", was)
	}
	if c.Pair.Peer = "site-c"; p.before(c, "b2:6000") != nil {
		t.Error("another peer has stood there")
	}
}

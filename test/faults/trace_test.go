package faults

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"longhaul/internal/carry/flow"
	"longhaul/internal/find/doctor"
	"longhaul/internal/watch/trace"
	"longhaul/lab/link"
	"longhaul/test/nettest"
)

// TestTrace holds that longhaul trace names the limiting part of a flow at either relay of a pair.
func TestTrace(t *testing.T) {
	t.Parallel()
	endless := func(c net.Conn) { _, _ = io.Copy(c, zeros{}) }
	discard := func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }
	still := func(net.Conn) {}
	for name, tt := range map[string]struct {
		wan            link.Settings
		client, target func(net.Conn)
		part           trace.Kind
		direction      trace.Direction
		cause          doctor.Cause // empty: any that the path may show
	}{
		"target does not read": {link.Settings{Delay: 5 * time.Millisecond}, endless, still, trace.TargetLeg, trace.Up, doctor.Reader},
		"client does not read": {link.Settings{Delay: 5 * time.Millisecond}, still, endless, trace.ClientLeg, trace.Down, doctor.Reader},
		"slow WAN":             {link.Settings{Delay: 20 * time.Millisecond, RateBps: 4e6}, endless, discard, trace.WAN, trace.Up, ""},
		"lossy WAN":            {link.Settings{Delay: 20 * time.Millisecond, Loss: link.Loss{Probability: 0.03}}, discard, endless, trace.WAN, trace.Down, doctor.Loss},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tt.wan.MTU = 1500
			p := newPairPathOver(t, wan("wan", nearAddress, farAddress, tt.wan))
			p.settings = "    wan: {congestion_control: cubic}\n" // losses limit it
			p.start()
			p.moves(tt.client, tt.target)
			id := p.nameOfFlow()
			for _, d := range []*daemon{p.near, p.far} {
				var r trace.Report
				nettest.Eventually(t, patience, func() bool {
					r = d.trace(id.String()[:13])
					return len(r.Relays) == 2 && r.Limit.Part == tt.part && r.Limit.Direction == tt.direction && (tt.cause == "" || r.Limit.Cause == tt.cause)
				}, func() string { return fmt.Sprintf("%+v of %+v", r.Limit, r.Trace) })
				d.traceText(t, id.String())
				if r.Name != id || len(r.Missing) > 0 {
					t.Errorf("the trace is of %s, and misses %q", r.Name, r.Missing)
				}
			}
		})
	}
}

// TestTraceOfOneRelay holds that a relay shows what it sees of a flow whose pair is down, and says what is
// missing; and that it refuses the name of a flow that does not run.
func TestTraceOfOneRelay(t *testing.T) {
	t.Parallel()
	p := newPairPath(t)
	p.start()
	p.moves(func(c net.Conn) { _, _ = io.Copy(c, zeros{}) }, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	id := p.nameOfFlow()
	if text := p.near.traceText(t, id.String()); !strings.Contains(text, "here, far") {
		t.Errorf("no part of the far relay:\n%s", text)
	}
	p.cut(bothWays...)
	nettest.Eventually(t, patience, func() bool { return !p.near.session().Up && !p.far.session().Up }, func() string { return "the pair stands" })
	for d, peer := range map[*daemon]string{p.near: "far", p.far: "near"} {
		var r trace.Report
		nettest.Eventually(t, patience, func() bool { // the far relay may have nothing to send, and parks the flow
			r = d.trace(id.String())
			return r.Limit.Part == trace.WAN && r.Limit.Cause == doctor.Outage || d == p.far && r.Limit.Part == ""
		}, func() string { return fmt.Sprintf("%+v of %+v", r.Limit, r.Trace) })
		if len(r.Relays) != 1 || len(r.Missing) != 1 || !strings.Contains(r.Missing[0], "the session with "+peer+" is down") {
			t.Errorf("%s: %+v", peer, r)
		}
		if text := d.traceText(t, id.String()); !strings.Contains(text, "missing: the session with "+peer+" is down") ||
			!strings.Contains(text, map[string]string{"far": "here, far", "near": "near, here"}[peer]) {
			t.Errorf("nothing is said to be missing, or the other relay has no name:\n%s", text)
		}
	}
	if out, status := command(t, "trace", flow.NewName().String(), "--control-socket", p.near.socket()); status != 1 || !strings.Contains(out, "longhaul history show") {
		t.Errorf("status %d: %s", status, out)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// moves opens a flow and lets both ends do something, until the test ends.
func (p *pairPath) moves(client, target func(net.Conn)) {
	p.t.Helper()
	l, err := p.listenTarget(p.t.Context())
	nettest.Must(p.t, err)
	defer l.Close()
	c, err := p.dial(p.t.Context())
	nettest.Must(p.t, err)
	p.t.Cleanup(func() { c.Close() })
	to, err := l.Accept()
	nettest.Must(p.t, err)
	p.t.Cleanup(func() { to.Close() })
	go client(c)
	go target(to)
}

// nameOfFlow is the name of the only flow, which both relays have.
func (p *pairPath) nameOfFlow() flow.Name {
	p.t.Helper()
	var names [2]flow.Name
	nettest.Eventually(p.t, patience, func() bool {
		for i, d := range []*daemon{p.near, p.far} {
			if all := d.status().Flows; len(all) == 1 {
				names[i] = all[0].Name
			}
		}
		return !names[0].IsZero() && names[0] == names[1]
	}, func() string { return fmt.Sprintf("the flow's names are %v", names) })
	return names[0]
}

// trace is what longhaul trace says as JSON.
func (d *daemon) trace(name string) (r trace.Report) {
	d.t.Helper()
	out, err := exec.Command(nettest.Longhaul(d.t), "trace", name, "--json", "--control-socket", d.socket()).Output()
	if err == nil {
		err = json.Unmarshal(out, &r)
	}
	if err != nil {
		d.t.Fatalf("%v: %s", err, out)
	}
	return r
}

// traceText is what it prints, which fits a terminal.
func (d *daemon) traceText(t *testing.T, name string) string {
	t.Helper()
	out, status := command(t, "trace", name, "--control-socket", d.socket())
	if status != 0 {
		t.Fatalf("status %d: %s", status, out)
	}
	t.Log(out)
	for line := range strings.Lines(out) {
		if utf8.RuneCountInString(strings.TrimRight(line, "\n")) > 80 {
			t.Errorf("wider than 80 columns: %s", line)
		}
	}
	return out
}

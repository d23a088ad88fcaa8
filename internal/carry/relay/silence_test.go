package relay

import (
	"testing"
	"time"

	report "longhaul/internal/carry/flow"
	"longhaul/test/nettest"
)

// TestSilentPairedFlows holds that the relay decides how long a flow that a carrier has may be
// silent, at either end, as it does for other flows.
func TestSilentPairedFlows(t *testing.T) {
	const idle, half = 40 * time.Second, 10 * time.Second
	for name, c := range map[string]struct {
		figures report.Figures // after each pass
		passes  time.Duration
		want    report.EndReason // "": it stays
	}{
		"its target is dialed":         {report.Figures{State: report.StateDialing, Idle: time.Hour}, idle, ""},
		"it moves":                     {report.Figures{State: report.StateOpen, Idle: idle - 1}, idle, ""},
		"it is silent":                 {report.Figures{State: report.StateOpen, Idle: idle}, idle, report.EndIdle},
		"it is parked":                 {report.Figures{State: report.StateParked, Idle: idle}, idle, report.EndIdle},
		"no stream has ended":          {report.Figures{State: report.StateOpen, Idle: idle - 1}, half, ""},
		"one has ended, one moves":     {report.Figures{State: report.StateOpen, Ended: true, Idle: half - 1}, half, ""},
		"one has ended, one is silent": {report.Figures{State: report.StateOpen, Ended: true, Idle: half}, half, report.EndHalfClosed},
		"the reader takes nothing":     {report.Figures{State: report.StateDelivering, Ended: true, Clean: true, Idle: half}, half, report.EndHalfClosed},
	} {
		for _, end := range []string{"near", "far"} {
			t.Run(end+", "+name, func(t *testing.T) {
				nettest.CheckLeaks(t)
				carrier := &carrier{flows: make(chan *carriedFlow, 1)}
				g := newStoppedRig(t, func(o *rigOptions) {
					o.HalfCloseTimeout, o.Tunnels[0].IdleTimeout = half, idle
					if end == "near" {
						o.Tunnels[0].Forward[0].Carrier = carrier
					} else {
						farTunnel(o)
					}
				})
				var f *carriedFlow
				if end == "near" {
					dial(t, g.addr)
					f = carrier.next(t)
				} else {
					var err error
					_, f, err = g.open(atNear)
					nettest.Must(t, err)
				}
				for range 3 {
					f.set(report.Figures{State: report.StateOpen})
					g.pass(1)
					if n := len(g.flows.all()); n != 0 {
						break
					}
					f.set(c.figures)
					g.pass(c.passes)
				}
				if c.want == "" {
					f.expectResets(t)
					f.end(report.End{Reason: report.EndClean})
					g.expectReason(report.EndClean)
					return
				}
				f.expectResets(t, c.want)
				g.expectReason(c.want)
				f.end(report.End{Reason: c.want}) // told late
			})
		}
	}
}

package doctor

import (
	"fmt"

	"longhaul/internal/words/units"
)

var shortFlowCause = causeEntry{
	cause: ShortFlow, rule: shortFlow, remedies: shortFlowRemedies,
	sentence: limited("Connections are too short to reach full speed over this distance: they get %s in total."),
}

// shortFlow: the connections end before slow start. Round trips limit them, not the
// path's rate.
func shortFlow(c *patient) *Finding {
	if !c.o.shortConnections(c.f) {
		return nil
	}
	o := c.o
	mean := float64(o.TotalBytes) / float64(max(o.Connections, 1))
	finding := &Finding{Cause: ShortFlow, BoundBps: c.goodput, Evidence: []string{
		fmt.Sprintf("%d connections in %s moved %s each, and none left slow start", o.Connections, seconds(o.Time), units.FormatSize(mean)),
	}}
	now := slowStartTime(int64(mean), c.f.MSS, initialWindow, c.f.MinRTT, zeroIfInf(c.capacity))
	then := slowStartTime(int64(mean), c.f.MSS, largeInitialWindow, c.f.MinRTT, zeroIfInf(c.capacity))
	finding.PredictedBps, finding.Next = c.goodput*float64(now)/float64(then),
		"round trips, and the initial window of receivers"
	return finding
}

// The initial windows, in segments: Linux's (RFC 6928), and the remedy's. That is
// below the 64 KiB of a receiver's initial window.
const (
	initialWindow      = 10
	largeInitialWindow = 40
)

// startRoundTrips is the maximum number of round trips of slow start: ten grow a
// window a thousandfold, plus the handshake and the end.
const startRoundTrips = 15

// shortConnections reports whether the connections begin and end within slow start.
func (o Observation) shortConnections(f Figures) bool {
	return o.Connections >= 3 && (o.FromStart || o.Ended) && f.MSS > 0 && f.MinRTT > 0 && zeroIfNaN(f.LossShare) < 0.01 &&
		(f.SlowStart || f.Time < startRoundTrips*f.MinRTT)
}

func shortFlowRemedies(c *patient) []Remedy {
	host, _ := c.far()
	return []Remedy{{
		Action: fmt.Sprintf("begin with %d segments", largeInitialWindow), Place: Sender,
		Command: fmt.Sprintf("longhaul route set --to %s --initcwnd %d", host, largeInitialWindow),
		Apply:   []string{"route", "set", "--to", host, "--initcwnd", fmt.Sprint(largeInitialWindow)}, Undo: []string{"route", "undo", "--to", host},
	}, {Action: "have the program keep and reuse its connections", Place: InProgram}}
}

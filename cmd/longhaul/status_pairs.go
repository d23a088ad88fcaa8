//go:build linux

package main

import (
	"fmt"
	"io"
	"time"

	"longhaul/internal/display"
	"longhaul/internal/flow"
)

// writePairs prints the sessions of a tunnel with paired relays.
func writePairs(w io.Writer, p *flow.Pairs, tunnel string, now time.Time) {
	if p == nil {
		return
	}
	for _, s := range p.Sessions {
		if s.Tunnel != tunnel {
			continue
		}
		fmt.Fprintln(w, display.Shorten(fmt.Sprintf("  pair %s (%s): %s", s.Peer, s.End, pairLine(s, now)), 80))
		if s.Up {
			fmt.Fprintf(w, "    lanes %d warm %d busy, flows %d moving %d parked %d resuming\n",
				s.LanesWarm, s.LanesBusy, s.FlowsMoving, s.FlowsParked, s.FlowsResuming)
		}
		if s.RetainedBytes+s.Resumes > 0 || s.Outage > 0 {
			fmt.Fprintf(w, "    retained %s, %s, outage %s\n", display.Quantity(s.RetainedBytes),
				display.Plural(int(s.Resumes), "resume"), display.Age(s.Outage.Seconds()))
		}
	}
}

// pairLine says how a session is.
func pairLine(s flow.PairSession, now time.Time) string {
	if !s.Up {
		line := s.Problem
		if line == "" {
			line = "connecting"
		}
		if waiting := s.FlowsMoving + s.FlowsParked + s.FlowsResuming; waiting > 0 {
			line += ", " + display.Plural(waiting, "flow") + " wait"
		}
		if s.Error != "" {
			line += ": " + display.FirstLine(s.Error)
		}
		return line
	}
	line := fmt.Sprintf("up %s, %.1f ms", display.Age(now.Sub(s.Since).Seconds()), s.RTT.Seconds()*1e3)
	if s.Draining {
		line += ", draining"
	}
	return line
}

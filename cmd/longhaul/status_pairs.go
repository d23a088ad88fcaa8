//go:build linux

package main

import (
	"fmt"
	"io"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/words/display"
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
		line := pairLine(s, now)
		end := fmt.Sprintf(" (%s): ", s.End)
		if s.Hop != "" {
			end = fmt.Sprintf(" at %s%s", s.Hop, end)
		}
		fmt.Fprintf(w, "  pair %s%s%s\n", display.Shorten(s.Peer, max(80-len("  pair "+end+line), 10)), end, line)
		writePairProblem(w, s)
		if s.Up {
			fmt.Fprintf(w, "    lanes %d warm %d busy, flows %d moving %d parked %d resuming\n",
				s.LanesWarm, s.LanesBusy, s.FlowsMoving, s.FlowsParked, s.FlowsResuming)
		}
		writePaths(w, s.Paths)
		for _, fact := range s.Facts() {
			display.WriteParagraph(w, "    ", fact)
		}
		for _, note := range s.Notes() {
			display.WriteParagraph(w, "    ", note)
		}
		if s.RetainedBytes+s.Resumes > 0 || s.Outage > 0 {
			fmt.Fprintf(w, "    retained %s, %s, outage %s\n", display.Quantity(s.RetainedBytes),
				display.Plural(int(s.Resumes), "resume"), display.Age(s.Outage.Seconds()))
		}
	}
}

// writeCertificates prints this host's certificate for pairs, and the last one that was refused.
func writeCertificates(w io.Writer, p *flow.Pairs, now time.Time) {
	if p == nil {
		return
	}
	if c := p.Certificate; c != nil {
		fmt.Fprintln(w, display.Fold(fmt.Sprintf("certificate: %s, until %s", c.Name, c.Until.Local().Format("2006-01-02 15:04")), 78, 2))
	}
	if r := p.Refused; r != nil {
		fmt.Fprintln(w, display.Fold(fmt.Sprintf("last refused %s ago, from %s at tunnel %s: %s",
			display.Age(now.Sub(r.At).Seconds()), r.Source, r.Tunnel, display.FirstLine(r.Error)), 78, 2))
	}
}

// writePaths prints how the paths of a near tunnel are.
func writePaths(w io.Writer, paths []flow.Path) {
	for _, p := range paths {
		line := fmt.Sprintf("path %s: %s", p.Path, p.State())
		if p.Up {
			line += fmt.Sprintf(", %.1f ms, %s, %s sent, %s received", p.RTT.Seconds()*1e3, display.Plural(p.Busy, "busy lane"),
				display.Quantity(p.Sent), display.Quantity(p.Received))
		} else if p.Error != "" {
			line += ": " + display.FirstLine(p.Error)
		}
		display.WriteParagraph(w, "    ", line)
	}
}

// writePairProblem prints why a session does not stand, or makes no lanes, in whole.
func writePairProblem(w io.Writer, s flow.Session) {
	const lead = "    "
	switch {
	case s.Up && s.LaneError != "":
		display.WriteParagraph(w, lead, "no new lane: "+display.FirstLine(s.LaneError))
	case !s.Up && s.Error != "":
		display.WriteParagraph(w, lead, display.FirstLine(s.Error))
	}
	if remedy := s.Remedy(); (!s.Up || s.LaneError != "") && remedy != "" {
		display.WriteParagraph(w, lead, remedy)
	}
}

// pairLine says how a session is.
func pairLine(s flow.Session, now time.Time) string {
	if !s.Up {
		line := string(s.Problem)
		if line == "" {
			line = "connecting"
		}
		if waiting := s.FlowsMoving + s.FlowsParked + s.FlowsResuming; waiting > 0 {
			line += ", " + display.Plural(waiting, "flow") + " waiting"
		}
		return line
	}
	line := fmt.Sprintf("up %s, %.1f ms", display.Age(now.Sub(s.Since).Seconds()), s.RTT.Seconds()*1e3)
	if s.Refused() {
		line = string(s.LaneProblem) + ", " + line
	}
	if s.Draining {
		line += ", draining"
	}
	return line
}

package web

import (
	"maps"
	"net/url"
	"slices"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/words/display"
)

// pairsShown are the pairs of the relay with their sessions in words.
type pairsShown struct {
	Instance           string                     `json:"instance"`
	RetainedBytes      int64                      `json:"retained_bytes"`
	RetainedLimitBytes int64                      `json:"retained_limit_bytes"`
	Sessions           []pairRow                  `json:"sessions"`
	Strangers          map[flow.PairProblem]int64 `json:"strangers_total"`
}

// pairRow is a session with a paired relay.
type pairRow struct {
	flow.Session
	State       string `json:"state"`
	ProblemText string `json:"problem_text,omitempty"` // a clause; empty: there is none
	Remedy      string `json:"remedy,omitempty"`

	Notes []string  `json:"notes,omitempty"` // figures and a mode that few sessions have
	Paths []pathRow `json:"paths,omitempty"`
}

// pathRow is a path of a session.
type pathRow struct {
	flow.Path
	State string `json:"state"`
}

// pairRows returns the sessions of a tunnel; an empty name means all.
func pairRows(s *monitor.Snapshot, tunnel string) []pairRow {
	if s.Pairs == nil {
		return nil
	}
	rows := make([]pairRow, 0, len(s.Pairs.Sessions))
	for _, one := range s.Pairs.Sessions {
		if tunnel != "" && one.Tunnel != tunnel {
			continue
		}
		row := pairRow{Session: one, State: one.State(), Notes: append(one.Facts(), one.Notes()...)}
		if !one.Up && one.Problem != "" {
			row.ProblemText, row.Remedy = flow.PairProblemText(one.Problem, one.Peer), one.Remedy()
		}
		for _, p := range one.Paths {
			row.Paths = append(row.Paths, pathRow{p, p.State()})
		}
		rows = append(rows, row)
	}
	return rows
}

// pairs is the page of the pairs.
func (d *Dashboard) pairs(s *monitor.Snapshot) (any, error) {
	v := struct {
		Head  head        `json:"head"`
		Pairs *pairsShown `json:"pairs"` // null: no tunnel is paired
	}{Head: d.headOf(s)}
	if p := s.Pairs; p != nil {
		v.Pairs = &pairsShown{p.Instance, p.RetainedBytes, p.RetainedLimitBytes, pairRows(s, ""), p.Strangers}
	}
	return v, nil
}

// pairGrace is how long a far end or a path may be down before it is an alert: a
// start, a reload or an upgrade takes less.
const pairGrace = 2 * time.Second

func pairAlerts(s *monitor.Snapshot, add func(level, link, format string, args ...any)) {
	for i := range s.PairTotals {
		p := &s.PairTotals[i]
		// The near relay's tunnel is not usable, and says why.
		if waiting := p.WaitingFlows(); p.End == flow.FarEnd && waiting > 0 && p.DownFor(s.At) >= pairGrace {
			add("warning", "/tunnels/"+url.PathEscape(p.Tunnel), "Tunnel %s has no session with %s: %s. Its flows wait for one",
				p.Tunnel, p.Peer, flow.PairProblemText(p.Problem, p.Peer))
		}
	}
	if s.Pairs == nil {
		return
	}
	for i := range s.Pairs.Sessions {
		one := &s.Pairs.Sessions[i]
		if one.Refused() && one.End == flow.FarEnd { // of the near relay's tunnel as above
			add("warning", "/tunnels/"+url.PathEscape(one.Tunnel), "Tunnel %s and %s refuse new connections: %s", one.Tunnel, one.Peer, display.FirstLine(one.LaneError))
		}
		for _, p := range one.Paths {
			if one.Up && !p.Up && p.Error != "" && !p.Since.IsZero() && s.At.Sub(p.Since) >= pairGrace {
				add("warning", "/tunnels/"+url.PathEscape(one.Tunnel), "Tunnel %s reaches %s over its other paths only: %s is down: %s",
					one.Tunnel, one.Peer, p.Path, display.FirstLine(p.Error))
			}
		}
	}
	if limit := s.Pairs.RetainedLimitBytes; limit > 0 && s.Pairs.RetainedBytes*10 >= limit*9 {
		add("warning", "/pairs", "Pairs hold nine tenths of the unacknowledged data that they may: senders are slowed down")
	}
	for _, problem := range slices.Sorted(maps.Keys(s.Pairs.Strangers)) {
		if n := s.Pairs.Strangers[problem]; n > 0 && slices.Contains([]flow.PairProblem{flow.PairKeyUnknown, flow.PairCertificate, flow.PairVersion, flow.PairDenied}, problem) {
			add("notice", "/pairs", "%s from other relays since the start became part of no pair: %s",
				display.Plural(int(n), "connection"), problem)
		}
	}
}

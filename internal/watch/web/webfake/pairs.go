package webfake

import (
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/words/units"
)

// Peers lists the names of the paired relays.
var Peers = []string{"site-b", "site-c"}

// pairs are three sessions: the near end of one that is up, the far end of one,
// and one whose key is not known.
func (m *Monitor) pairs(now time.Time) (*flow.Pairs, []monitor.Pair) {
	p := &flow.Pairs{
		Instance: "5ad1c0ffee5ad1c0", RetainedBytes: 41_000_000, RetainedLimitBytes: 128 << 20,
		Strangers: map[flow.PairProblem]int64{flow.PairUnpaired: 12, flow.PairKeyUnknown: 3},
		Sessions: []flow.Session{
			{
				Tunnel: Tunnels[0], Peer: Peers[0], Session: "01", End: flow.NearEnd, Up: true, Encrypted: true, Resumable: true, Since: now.Add(-3 * time.Hour), Release: "longhaul 0.8.0",
				Instance: "beefbeefbeefbeef", Remote: address("10.20.20.20:6000"), RTT: units.Seconds(62400 * time.Microsecond), LanesWarm: 4, LanesBusy: 37,
				FlowsMoving: 37, FlowsParked: 12, FlowsTotal: 81234, RetainedBytes: 40_800_000, Resumes: 19, Outage: units.Seconds(23400 * time.Millisecond),
				Paths: m.paths(now),
			},
			{
				Tunnel: Tunnels[1], Peer: Peers[0], Session: "02", End: flow.FarEnd, Up: true, Resumable: true, Since: now.Add(-3 * time.Hour), Release: "longhaul 0.8.0",
				Instance: "beefbeefbeefbeef", Remote: address("10.20.20.20:41200"), RTT: units.Seconds(62900 * time.Microsecond), LanesWarm: 4, LanesBusy: 2,
				FlowsMoving: 2, FlowsResuming: 1, FlowsTotal: 240, RetainedBytes: 200_000,
			},
			{
				Tunnel: Tunnels[2], Peer: Peers[1], Session: "03", End: flow.NearEnd, Encrypted: true, Resumable: true, Since: now.Add(-9 * time.Minute),
				Problem: flow.PairKeyUnknown, Error: "the key of site-c is not the pinned one",
			},
		},
	}
	var totals []monitor.Pair
	for _, s := range p.Sessions {
		one := monitor.Pair{Session: s}
		if s.Problem != "" {
			one.Problems = []flow.PairProblem{s.Problem}
		}
		totals = append(totals, one)
	}
	return p, totals
}

// paths are the two paths of a session, one of which is down.
func (m *Monitor) paths(now time.Time) []flow.Path {
	carried := now.Unix() % 1e6
	return []flow.Path{
		{
			Path: "wan0", Up: true, Since: now.Add(-3 * time.Hour), Active: true, Control: true,
			RTT: units.Seconds(62400 * time.Microsecond), Lanes: 41, Busy: 37, Sent: 11_000_000 * carried, Received: 500_000 * carried,
		},
		{Path: "lte0", Since: now.Add(-2 * time.Minute), Error: "network is unreachable"},
	}
}

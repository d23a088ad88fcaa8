package metrics

import (
	"slices"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/monitor"
)

var pairProblems = []flow.PairProblem{flow.PairBusy, flow.PairCertificate, flow.PairDenied, flow.PairEncrypt, flow.PairKeyUnknown, flow.PairOverloaded, flow.PairPathDown, flow.PairPathMTU, flow.PairUnpaired, flow.PairVersion}

var pairFamilies = []family{
	{"pair_up", "1 if a session with a paired relay stands and takes new connections, 0 if not.", gauge, []string{"tunnel", "peer"},
		ofPair(func(p *monitor.Pair) (float64, bool) { return truth(p.Up && !p.Refused()), true })},
	{"pair_info", "Always 1: which end of the pair this relay is, and the release of the other one.", gauge, []string{"tunnel", "peer", "end", "release"},
		pairs(func(p *monitor.Pair, emit *emitter) {
			emit.add(1, p.Tunnel, p.Peer, string(p.End), p.Release)
		})},
	{"pair_problem", "1 for what keeps a session with a paired relay from standing, or from taking new connections; 0 for the others.", gauge, []string{"tunnel", "peer", "problem"},
		holding(pairs(func(p *monitor.Pair, emit *emitter) {
			for _, problem := range pairProblems {
				emit.add(truth(slices.Contains(p.Problems, problem) && (!p.Up || p.Refused())), p.Tunnel, p.Peer, string(problem))
			}
		}))},
	{"pair_encrypted", "1 if flows between paired relays are encrypted, 0 if they cross the WAN in clear.", gauge, []string{"tunnel", "peer"},
		ofPair(func(p *monitor.Pair) (float64, bool) { return truth(p.Encrypted), true })},
	{"pair_resumable", "1 if flows of a pair survive the loss of their connection, 0 if they end with it.", gauge, []string{"tunnel", "peer"},
		ofPair(func(p *monitor.Pair) (float64, bool) { return truth(p.Resumable), true })},
	{"pair_rtt_seconds", "Round-trip time between the relays of a pair.", gauge, []string{"tunnel", "peer"},
		ofPair(func(p *monitor.Pair) (float64, bool) { return p.RTT.Seconds(), p.RTT > 0 })},
	{"pair_lanes", "Connections of a pair for data: warm ones wait for a flow, busy ones have one.", gauge, []string{"tunnel", "peer", "state"},
		pairs(func(p *monitor.Pair, emit *emitter) {
			emit.add(float64(p.LanesWarm), p.Tunnel, p.Peer, "warm")
			emit.add(float64(p.LanesBusy), p.Tunnel, p.Peer, "busy")
		})},
	{"pair_flows", "Flows of a pair: moving ones have a lane, parked ones are silent, resuming ones wait for a lane.", gauge,
		[]string{"tunnel", "peer", "state"},
		pairs(func(p *monitor.Pair, emit *emitter) {
			emit.add(float64(p.FlowsMoving), p.Tunnel, p.Peer, "moving")
			emit.add(float64(p.FlowsParked), p.Tunnel, p.Peer, "parked")
			emit.add(float64(p.FlowsResuming), p.Tunnel, p.Peer, "resuming")
		})},
	{"pair_striped_flows", "Moving flows of a pair that have several lanes.", gauge, []string{"tunnel", "peer"},
		ofPair(func(p *monitor.Pair) (float64, bool) { return float64(p.FlowsStriped), true })},
	{"pair_path_up", "1 if a path to a paired relay stands, 0 if not.", gauge, []string{"tunnel", "peer", "path"},
		detailed(ofPath(func(p *flow.Path) float64 { return truth(p.Up) }))},
	{"pair_path_active", "1 if flows may use a path now, 0 if it is down or another one is to be used.", gauge, []string{"tunnel", "peer", "path"},
		detailed(ofPath(func(p *flow.Path) float64 { return truth(p.Active) }))},
	{"pair_path_rtt_seconds", "Round-trip time of a path; 0 while it is down.", gauge, []string{"tunnel", "peer", "path"},
		detailed(ofPath(func(p *flow.Path) float64 { return p.RTT.Seconds() }))},
	{"pair_path_lanes", "Connections for data over a path.", gauge, []string{"tunnel", "peer", "path"},
		detailed(ofPath(func(p *flow.Path) float64 { return float64(p.Lanes) }))},
	{"pair_path_sent_bytes_total", "Data that the far relay has acknowledged on a path.", counter, []string{"tunnel", "peer", "path"},
		detailed(ofPath(func(p *flow.Path) float64 { return float64(p.Sent) }))},
	{"pair_path_received_bytes_total", "Data that came over a path.", counter, []string{"tunnel", "peer", "path"},
		detailed(ofPath(func(p *flow.Path) float64 { return float64(p.Received) }))},
	{"pair_sent_bytes_total", "Data of flows that went to a paired relay, before compression; of the other way there is that relay's figure.", counter, []string{"tunnel", "peer"},
		ofPair(func(p *monitor.Pair) (float64, bool) { return float64(p.Sent), true })},
	{"pair_retained_bytes", "Data that was sent to a paired relay and not yet acknowledged.", gauge, []string{"tunnel", "peer"},
		ofPair(func(p *monitor.Pair) (float64, bool) { return float64(p.RetainedBytes), true })},
	{"pair_retained_limit_bytes", "Bound of that data of all pairs together: a quarter of memory_limit, or of the memory of the host or cgroup.", gauge, nil,
		func(s *state, emit *emitter) {
			if s.Pairs != nil && s.Pairs.RetainedLimitBytes > 0 {
				emit.add(float64(s.Pairs.RetainedLimitBytes))
			}
		}},
	{"pair_compressed_bytes_total", "Bytes of flows that crossed the WAN in compressed records, both ways: as they were (plain) and compressed (wan).", counter,
		[]string{"tunnel", "peer", "size"},
		pairs(func(p *monitor.Pair, emit *emitter) {
			emit.add(float64(p.CompressedBytes), p.Tunnel, p.Peer, "plain")
			emit.add(float64(p.CompressedToBytes), p.Tunnel, p.Peer, "wan")
		})},
	{"pair_resumes_total", "Lost connections of a pair that others replaced.", counter, []string{"tunnel", "peer"},
		ofPair(func(p *monitor.Pair) (float64, bool) { return float64(p.Resumes), true })},
	{"pair_outage_seconds_total", "Time without a connection between the relays of a pair.", counter,
		[]string{"tunnel", "peer"},
		ofPair(func(p *monitor.Pair) (float64, bool) { return p.Outage.Seconds(), true })},
	{"pair_strangers_total", "Connections to far tunnels that became part of no session, by problem.", counter, []string{"problem"},
		func(s *state, emit *emitter) {
			if s.Pairs == nil {
				return
			}
			for _, problem := range pairProblems {
				emit.add(float64(s.Pairs.Strangers[problem]), string(problem))
			}
		}},
}

func pairs(each func(*monitor.Pair, *emitter)) func(*state, *emitter) {
	return func(s *state, emit *emitter) {
		for i := range s.PairTotals {
			each(&s.PairTotals[i], emit)
		}
	}
}

func ofPair(value func(*monitor.Pair) (float64, bool)) func(*state, *emitter) {
	return pairs(func(p *monitor.Pair, emit *emitter) {
		if v, known := value(p); known {
			emit.add(v, p.Tunnel, p.Peer)
		}
	})
}

func ofPath(value func(*flow.Path) float64) func(*state, *emitter) {
	return pairs(func(p *monitor.Pair, emit *emitter) {
		for i := range p.Paths {
			emit.add(value(&p.Paths[i]), p.Tunnel, p.Peer, p.Paths[i].Path)
		}
	})
}

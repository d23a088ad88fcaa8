package metrics

import (
	"cmp"
	"slices"

	"longhaul/internal/watch/monitor"
	"longhaul/internal/words/stats"
)

// histogramFamily is a family of histograms.
type histogramFamily struct {
	name, help string
	labels     []string
	collect    func(*state, func(d *monitor.Distribution, labels ...string))
}

var histogramFamilies = []histogramFamily{
	{"flow_duration_seconds", "How long flows lasted that have ended.", []string{"tunnel"},
		ofDistribution(func(_ *state, t *monitor.Tunnel) *monitor.Distribution { return t.Duration })},
	{"flow_goodput_bytes_per_second", "Data forwarded both ways by time, of flows that have ended and moved 1 MiB or more.", []string{"tunnel"},
		ofDistribution(func(_ *state, t *monitor.Tunnel) *monitor.Distribution { return t.Goodput })},
	{"flow_outage_seconds", "How long flows waited for a new connection between paired relays, of those that have ended and resumed; only of paired tunnels.", []string{"tunnel"},
		ofDistribution(func(s *state, t *monitor.Tunnel) *monitor.Distribution {
			if !s.paired(t.Name) && t.Outage != nil && t.Outage.Count == 0 {
				return nil
			}
			return t.Outage
		})},
	{"connect_seconds", "How long targets took to accept; at the far relay of a pair, which connects to them.", []string{"tunnel", "hop"}, connects},
}

// paired reports whether a tunnel has, or is an end of, a pair.
func (s *state) paired(tunnel string) bool {
	_, is := slices.BinarySearchFunc(s.PairTotals, tunnel, func(p monitor.Pair, name string) int { return cmp.Compare(p.Tunnel, name) })
	return is
}

func ofDistribution(of func(*state, *monitor.Tunnel) *monitor.Distribution) func(*state, func(*monitor.Distribution, ...string)) {
	return func(s *state, emit func(*monitor.Distribution, ...string)) {
		for i := range s.Tunnels {
			if d := of(s, &s.Tunnels[i]); d != nil {
				emit(d, s.Tunnels[i].Name)
			}
		}
	}
}

// connects are by hop, or without the label of the hop those of all hops of a tunnel.
func connects(s *state, emit func(*monitor.Distribution, ...string)) {
	for i := range s.Tunnels {
		t := &s.Tunnels[i]
		var all *monitor.Distribution
		for j := range t.Hops {
			h := &t.Hops[j]
			switch d := h.Connect; {
			case h.Pair != nil || d == nil:
			case s.detail != TunnelDetail:
				emit(d, t.Name, h.Name)
			case all == nil:
				all = d
			default:
				all = sum(all, d)
			}
		}
		if all != nil {
			emit(all, t.Name, "")
		}
	}
}

// sum adds two histograms up. The exemplar is the later one.
func sum(a, b *monitor.Distribution) *monitor.Distribution {
	s := &monitor.Distribution{Histogram: &stats.Histogram{}, Exemplar: a.Exemplar}
	s.Add(a.Histogram)
	s.Add(b.Histogram)
	if b.Exemplar.At.After(a.Exemplar.At) {
		s.Exemplar = b.Exemplar
	}
	return s
}

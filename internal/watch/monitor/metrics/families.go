package metrics

import (
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/archive/ship"
	"longhaul/internal/watch/monitor"
)

const prefix = "longhaul_"

// Bounds of the number of time series for labels whose values come from outside
// the configuration.
const (
	maxReasons = 32 // of ends
	maxWords   = 16 // of any other list
	other      = "other"
)

// state is the source of all metrics.
type state struct {
	*monitor.Snapshot
	*vocabularies
	history *History // nil: no history
	detail  Detail
}

// vocabularies holds the known values of labels from outside the configuration.
type vocabularies struct{ reasons, errnos, sheds vocabulary }

func newVocabularies() *vocabularies {
	return &vocabularies{
		reasons: vocabulary{size: maxReasons},
		errnos:  vocabulary{size: maxWords, common: commonErrnos},
		sheds:   vocabulary{size: maxWords, common: commonSheds},
	}
}

// family is a metric with all its labels.
type family struct {
	name, help string
	kind       kind
	labels     []string
	collect    func(*state, *emitter)
}

// Values of labels.
var (
	tunnelStates = []string{"listening", "waiting", "shedding", "paused", "drained", "draining", "removed"}
	useStates    = []flow.UseState{flow.Untried, flow.Up, flow.Returning, flow.Down}
	hopStates    = []flow.HopState{flow.HopUntried, flow.HopUp, flow.HopReturning, flow.HopDown, flow.HopEjected, flow.HopDrained, flow.HopSameHost}
	commonErrnos = []string{"ECONNABORTED", "EMFILE", "ENFILE", "ENOBUFS", "ENOMEM"}
	commonSheds  = []string{"descriptors", "memory", "cgroup_memory", "tcp_memory", "cpu"}
)

var families = slices.Concat(processFamilies, tunnelFamilies, legFamilies, hopFamilies, checkFamilies, pairFamilies)

var processFamilies = []family{
	{"build_info", "Always 1; the labels name the program.", gauge, []string{"version", "go_version"},
		func(s *state, emit *emitter) { emit.add(1, s.Process.Version, runtime.Version()) }},
	{"start_time_seconds", "When the process began, since 1970.", gauge, nil, one(func(s *state) (float64, bool) {
		return unix(s.Process.StartedAt), !s.Process.StartedAt.IsZero()
	})},
	{"samples_total", "Samples taken of flows.", counter, nil, one(func(s *state) (float64, bool) {
		return float64(s.Sequence), true
	})},
	{"sample_timestamp_seconds", "When the figures shown were taken, since 1970.", gauge, nil,
		one(func(s *state) (float64, bool) {
			return unix(s.At), true
		})},
	{"sample_duration_seconds", "Time that the latest sample of flows took.", gauge, nil,
		one(func(s *state) (float64, bool) {
			return s.Took.Seconds(), s.Sequence > 0
		})},
	{"sample_lag_seconds", "How old a flow's figures are at most, in causes and round-trip times; sums have no lag.", gauge, nil,
		one(func(s *state) (float64, bool) {
			return s.Lag.Seconds(), s.Sequence > 0
		})},
	{"draining", "1 while the process takes no new flows and waits for its last ones to end.", gauge, nil,
		one(func(s *state) (float64, bool) {
			return truth(s.Process.Draining), true
		})},
	{"older_processes", "Processes that finish their flows after an upgrade to this one.", gauge, nil,
		one(func(s *state) (float64, bool) {
			return float64(s.Process.OlderProcesses), true
		})},
	{"shedding", "1 while new flows are refused because a resource is short.", gauge, nil,
		one(func(s *state) (float64, bool) {
			return truth(s.Process.Shedding != ""), true
		})},
	{"memory_used_bytes", "Memory of the flows' sockets and pipes; only with memory_limit.", gauge, nil,
		one(func(s *state) (float64, bool) {
			return float64(s.Process.MemoryUsed), s.Process.MemoryUsed >= 0
		})},
	{"memory_limit_bytes", "memory_limit of the configuration; only if it is set.", gauge, nil,
		one(func(s *state) (float64, bool) {
			return float64(s.Process.MemoryLimit), s.Process.MemoryLimit > 0
		})},
	{"reload_success",
		"1 if the last reload of the configuration took effect, or there was none; 0 if it failed and the old one stays.", gauge, nil,
		one(func(s *state) (float64, bool) {
			return truth(s.Process.LastReload == nil || s.Process.LastReload.OK), true
		})},
	{"reload_timestamp_seconds",
		"When the configuration was last reloaded, or the process began, since 1970.", gauge, nil,
		one(func(s *state) (float64, bool) {
			if r := s.Process.LastReload; r != nil {
				return unix(r.At), true
			}
			return unix(s.Process.StartedAt), !s.Process.StartedAt.IsZero()
		})},
	{"reload_rollback_timestamp_seconds",
		"When the relay goes back to the configuration before, since 1970; only while reload --confirm waits to be confirmed.", gauge, nil,
		one(func(s *state) (float64, bool) {
			return unix(s.Process.RollbackAt), !s.Process.RollbackAt.IsZero()
		})},
	{"certificate_expiry_timestamp_seconds",
		"When a certificate of this host ends, since 1970; use is dashboard, http (http_listen) or pairs (pair_trust).", gauge, []string{"use"},
		eachCertificate(func(c *flow.Certificate) time.Time { return c.Until })},
	{"certificate_begin_timestamp_seconds",
		"Since when it is valid.", gauge, []string{"use"},
		eachCertificate(func(c *flow.Certificate) time.Time { return c.From })},
	{"accept_errors_total", "Failed accepts, by errno.", counter, []string{"errno"},
		func(s *state, emit *emitter) {
			for word, n := range s.errnos.fold(s.Process.AcceptErrors) {
				emit.add(float64(n), word)
			}
		}},
	{"host_restored_total", "Parts of this host's state that were set again after another program removed them.", counter, []string{"part"},
		func(s *state, emit *emitter) {
			for part, n := range s.Process.Restored {
				emit.add(float64(n), part)
			}
		}},
	{"host_fights_total", "Times that another program kept removing them.", counter, nil,
		one(func(s *state) (float64, bool) {
			return float64(s.Process.Fights), true
		})},
	{"congestion_control_active", "1 if a configured algorithm is in use, 0 if a fallback is.", gauge, []string{"name"},
		func(s *state, emit *emitter) {
			for name, active := range s.Process.CongestionControl {
				emit.add(truth(active), name)
			}
		}},
	{"log_lines_dropped_total", "Log lines dropped because their reader was too slow.", counter, nil,
		one(func(s *state) (float64, bool) {
			return float64(s.Process.LogLinesDropped), true
		})},
	{"records_dropped_total", "Flows without a record, because too many ended at once.", counter, nil,
		one(func(s *state) (float64, bool) {
			return float64(s.Process.RecordsDropped), true
		})},
	{"history_records_total", "Records of flows that the history has stored.", counter, nil,
		one(func(s *state) (float64, bool) {
			if s.history == nil {
				return 0, false
			}
			return float64(s.history.Written), true
		})},
	{"history_records_dropped_total", "Records of flows that the history could not store.", counter, nil,
		one(func(s *state) (float64, bool) {
			if s.history == nil {
				return 0, false
			}
			return float64(s.history.Dropped), true
		})},
	{"history_size_bytes", "Size of the history on disk.", gauge, nil, one(func(s *state) (float64, bool) {
		if s.history == nil {
			return 0, false
		}
		return float64(s.history.Bytes), s.history.Bytes >= 0
	})},
	{"history_ship_up", "1 while a sink takes records of flows, 0 after a failure.", gauge, []string{"sink"},
		sinks(func(k *ship.State) float64 { return truth(k.Problem == "") })},
	{"history_ship_waiting_records", "Records in the history that a sink lacks.", gauge, []string{"sink"},
		sinks(func(k *ship.State) float64 { return float64(k.Waiting) })},
	{"history_ship_lag_seconds", "Age of the oldest waiting record; 0 if no record waits.", gauge, []string{"sink"},
		sinks(func(k *ship.State) float64 { return k.Lag.Duration().Seconds() })},
	{"history_ship_records_total", "Records that a sink has taken.", counter, []string{"sink"},
		sinks(func(k *ship.State) float64 { return float64(k.Shipped) })},
	{"history_ship_lost_total", "Records that the history had to delete before a sink had them.", counter, []string{"sink"},
		sinks(func(k *ship.State) float64 { return float64(k.Lost) })},
}

var tunnelFamilies = []family{
	{"tunnel_state", "1 for the state that a tunnel is in, 0 for the others.", gauge, []string{"tunnel", "state"},
		holding(tunnels(func(t *monitor.Tunnel, emit *emitter) {
			for _, state := range tunnelStates {
				emit.add(truth(t.State == state), t.Name, state)
			}
		}))},
	{"tunnel_usable", "1 if a tunnel serves new flows, as far as the relay knows; 0 if not. longhaul ready says why.", gauge, []string{"tunnel"},
		tunnels(func(t *monitor.Tunnel, emit *emitter) { emit.add(truth(t.Usability.Usable), t.Name) })},
	{"tunnel_usability", "1 for the state of a tunnel for new flows, 0 for the others.", gauge, []string{"tunnel", "state"},
		holding(tunnels(func(t *monitor.Tunnel, emit *emitter) {
			for _, state := range useStates {
				emit.add(truth(t.Usability.State == state), t.Name, string(state))
			}
		}))},
	{"flows_active", "Flows that are connecting or connected.", gauge, []string{"tunnel"},
		ofTunnel(func(t *monitor.Tunnel) int64 { return t.FlowsNow })},
	{"flows_peak", "The most flows at the same time since the tunnel was added.", gauge, []string{"tunnel"},
		ofTunnel(func(t *monitor.Tunnel) int64 { return t.FlowsPeak })},
	{"flows_limit", "max_flows of the configuration; only if it is set.", gauge, []string{"tunnel"},
		tunnels(func(t *monitor.Tunnel, emit *emitter) {
			if t.FlowsLimit > 0 {
				emit.add(float64(t.FlowsLimit), t.Name)
			}
		})},
	{"flows_opened_total", "Flows that were admitted.", counter, []string{"tunnel"},
		ofTunnel(func(t *monitor.Tunnel) int64 { return t.FlowsTotal })},
	{"flows_closed_total",
		"Flows that have ended, by the party that ended them (client, target, both, relay or peer: the other relay of a pair says so) and the reason.",
		counter, []string{"tunnel", "who", "reason"},
		func(s *state, emit *emitter) {
			for i := range s.Tunnels {
				counts := map[string]int64{}
				for _, c := range s.Tunnels[i].Ended {
					counts[c.EndedBy+" "+string(c.Reason)] += c.Flows
				}
				for words, n := range s.reasons.fold(counts) {
					who, reason, ok := strings.Cut(words, " ")
					if !ok {
						who, reason = other, other
					}
					emit.add(float64(n), s.Tunnels[i].Name, who, reason)
				}
			}
		}},
	{"bytes_total", "Data forwarded up to the target or down to the client.", counter, []string{"tunnel", "direction"},
		tunnels(func(t *monitor.Tunnel, emit *emitter) {
			emit.add(float64(t.BytesUp), t.Name, "up")
			emit.add(float64(t.BytesDown), t.Name, "down")
		})},
	{"tunnel_bypassed", "1 while new connections pass a tunnel that intercepts because its pair or every hop is down; only with when_down: bypass.", gauge, []string{"tunnel"},
		tunnels(func(t *monitor.Tunnel, emit *emitter) {
			if t.Bypass != nil {
				emit.add(truth(t.Bypass.Reason != ""), t.Name)
			}
		})},
	{"tunnel_bypasses_total", "Times that new connections began to pass such a tunnel.", counter, []string{"tunnel"},
		tunnels(func(t *monitor.Tunnel, emit *emitter) {
			if t.Bypass != nil {
				emit.add(float64(t.Bypass.Total), t.Name)
			}
		})},
	{"tunnel_host_problem", "1 while this host lacks a part of what the tunnel needs: rules, interface, setting or address.", gauge, []string{"tunnel", "part"},
		holding(tunnels(func(t *monitor.Tunnel, emit *emitter) {
			for _, part := range flow.HostParts {
				has := slices.ContainsFunc(t.Host, func(p flow.HostProblem) bool { return p.Part == part })
				if t.Intercepts != "" || part == flow.HostAddress || has {
					emit.add(truth(has), t.Name, string(part))
				}
			}
		}))},
	{"intercepted_twice_total", "Connections that another relay had intercepted before.", counter, []string{"tunnel"},
		tunnels(func(t *monitor.Tunnel, emit *emitter) {
			if t.Intercepts != "" {
				emit.add(float64(t.Relayed), t.Name)
			}
		})},
	{"acl_denied_total", "Connections refused for their source, their target or a bad PROXY header.", counter, []string{"tunnel"},
		ofTunnel(func(t *monitor.Tunnel) int64 { return t.Denied })},
	{"limited_total",
		"Connections refused by max_flows or new_flows_per_second, or a source's share of them.",
		counter, []string{"tunnel"},
		ofTunnel(func(t *monitor.Tunnel) int64 { return t.Limited })},
	{"shed_total",
		"Connections refused because a resource was short, by resource.", counter, []string{"tunnel", "reason"},
		holding(func(s *state, emit *emitter) {
			for i := range s.Tunnels {
				for reason, n := range s.sheds.fold(s.Tunnels[i].ShedBy) {
					emit.add(float64(n), s.Tunnels[i].Name, reason)
				}
			}
		})},
	{"flows_moving",
		"Flows that move data now, by the cause that limits their sender.", gauge, []string{"tunnel", "cause"},
		detailed(tunnels(func(t *monitor.Tunnel, emit *emitter) {
			for cause, n := range t.Causes {
				emit.add(float64(n), t.Name, string(cause))
			}
		}))},
}

var legFamilies = []family{
	{"leg_rtt_seconds",
		"Smoothed round-trip times of the open legs: min is the lowest ever measured on one of them.",
		gauge, []string{"tunnel", "leg", "stat"},
		func(s *state, emit *emitter) {
			legs(func(t *monitor.Tunnel, l *monitor.LegTotals, emit *emitter) {
				for _, of := range []struct {
					stat string
					rtt  time.Duration
				}{{"min", l.MinRTT.Duration()}, {"median", l.MedianRTT.Duration()}, {"p99", l.P99RTT.Duration()}} {
					if of.rtt > 0 && (of.stat == "median" || s.detail != TunnelDetail) {
						emit.add(of.rtt.Seconds(), t.Name, string(l.Leg), of.stat)
					}
				}
			})(s, emit)
		}},
	{"leg_sent_bytes_total", "Data that legs have sent, retransmissions included.", counter, []string{"tunnel", "leg"},
		legs(func(t *monitor.Tunnel, l *monitor.LegTotals, emit *emitter) {
			if l.BytesSent >= 0 {
				emit.add(float64(l.BytesSent), t.Name, string(l.Leg))
			}
		})},
	{"leg_retransmitted_bytes_total", "Data that legs have retransmitted.", counter, []string{"tunnel", "leg"},
		legs(func(t *monitor.Tunnel, l *monitor.LegTotals, emit *emitter) {
			if l.BytesRetransmitted >= 0 {
				emit.add(float64(l.BytesRetransmitted), t.Name, string(l.Leg))
			}
		})},
	{"leg_limited_seconds_total",
		"Time in which flows that move data were limited, by cause; flows add up.",
		counter, []string{"tunnel", "leg", "cause"},
		detailed(legs(func(t *monitor.Tunnel, l *monitor.LegTotals, emit *emitter) {
			for cause, seconds := range l.LimitedSeconds {
				emit.add(seconds, t.Name, string(l.Leg), string(cause))
			}
		}))},
}

var hopFamilies = []family{
	{"hop_up", "1 if new flows are led to a hop, which is up or untried; 0 while nothing succeeds there.", gauge, []string{"tunnel", "hop"},
		ofHop(func(h *monitor.Hop) (float64, bool) { return truth(h.Usable), true })},
	{"hop_state",
		"1 for the state that a hop is in, 0 for the others; drained is by the operator.",
		gauge, []string{"tunnel", "hop", "state"},
		holding(tunnels(func(t *monitor.Tunnel, emit *emitter) {
			for i := range t.Hops {
				for _, state := range hopStates {
					emit.add(truth(t.Hops[i].State == state), t.Name, t.Hops[i].Name, string(state))
				}
			}
		}))},
	{"service_state", "1 for the state of the service whose SRV records are a tunnel's hops, 0 for the others.", gauge, []string{"tunnel", "service", "state"},
		holding(tunnels(func(t *monitor.Tunnel, emit *emitter) {
			for _, state := range flow.ServiceStates {
				if t.Service != nil {
					emit.add(truth(t.Service.State == state), t.Name, t.Service.Name, string(state))
				}
			}
		}))},
	{"service_answered_timestamp_seconds", "When a service last had targets, since 1970; only if it has had some.", gauge, []string{"tunnel", "service"},
		tunnels(func(t *monitor.Tunnel, emit *emitter) {
			if t.Service != nil && !t.Service.Answered.IsZero() {
				emit.add(unix(t.Service.Answered), t.Name, t.Service.Name)
			}
		})},
	{"hop_flows_active", "Flows that are connecting or connected to a hop.", gauge, []string{"tunnel", "hop"},
		detailed(ofHop(func(h *monitor.Hop) (float64, bool) { return float64(h.FlowsNow), true }))},
	{"hop_flows_total", "Flows that were connected to a hop.", counter, []string{"tunnel", "hop"},
		detailed(ofHop(func(h *monitor.Hop) (float64, bool) { return float64(h.FlowsTotal), true }))},
	{"hop_connect_failures_total", "Flows whose connect to a hop failed.", counter, []string{"tunnel", "hop"},
		detailed(ofHop(func(h *monitor.Hop) (float64, bool) { return float64(h.Failed), true }))},
	{"hop_rtt_seconds",
		"Median round-trip time of the legs to a hop, or of its last probe without legs; of its session with pair.",
		gauge, []string{"tunnel", "hop"},
		detailed(ofHop(func(h *monitor.Hop) (float64, bool) { return h.RTT.Seconds(), h.RTT > 0 }))},
	{"hop_sent_bytes_total",
		"Data that legs have sent to a hop, retransmissions included.", counter, []string{"tunnel", "hop"},
		detailed(ofHop(func(h *monitor.Hop) (float64, bool) { return float64(h.BytesSent), h.BytesSent >= 0 }))},
	{"hop_retransmitted_bytes_total", "Data that legs have sent to a hop again.", counter, []string{"tunnel", "hop"},
		detailed(ofHop(func(h *monitor.Hop) (float64, bool) {
			return float64(h.BytesRetransmitted), h.BytesRetransmitted >= 0
		}))},
}

var checkFamilies = []family{
	{"check_up",
		"1 if the last integrity check found the chain whole, 0 if broken; only after a first check.",
		gauge, []string{"tunnel"},
		checks(func(t *monitor.Tunnel, c *monitor.Check, emit *emitter) { emit.add(truth(c.OK), t.Name) })},
	{"check_timestamp_seconds", "When the last integrity check was made, since 1970.", gauge, []string{"tunnel"},
		checks(func(t *monitor.Tunnel, c *monitor.Check, emit *emitter) { emit.add(unix(c.At), t.Name) })},
	{"check_leg_loss_ratio",
		"Share of segments lost on a leg of the chain in the last integrity check; the first leg from this relay is 1.",
		gauge, []string{"tunnel", "position"},
		checks(func(t *monitor.Tunnel, c *monitor.Check, emit *emitter) {
			for i, h := range c.Hops[:min(len(c.Hops), maxWords)] {
				if h.LossShare >= 0 {
					emit.add(h.LossShare, t.Name, strconv.Itoa(i+1))
				}
			}
		})},
}

// holding leaves out what is 0 with TunnelDetail.
func holding(collect func(*state, *emitter)) func(*state, *emitter) {
	return func(s *state, emit *emitter) {
		emit.holding = s.detail == TunnelDetail
		collect(s, emit)
	}
}

// detailed leaves all out with TunnelDetail.
func detailed(collect func(*state, *emitter)) func(*state, *emitter) {
	return func(s *state, emit *emitter) {
		if s.detail != TunnelDetail {
			collect(s, emit)
		}
	}
}

func one(value func(*state) (float64, bool)) func(*state, *emitter) {
	return func(s *state, emit *emitter) {
		if v, known := value(s); known {
			emit.add(v)
		}
	}
}

// eachCertificate has a sample for each certificate of the host, by its use.
func eachCertificate(at func(*flow.Certificate) time.Time) func(*state, *emitter) {
	return func(s *state, emit *emitter) {
		for use, c := range s.Process.Certificates {
			emit.add(unix(at(&c)), use)
		}
		if s.Pairs != nil && s.Pairs.Certificate != nil {
			emit.add(unix(at(s.Pairs.Certificate)), "pairs")
		}
	}
}

func tunnels(each func(*monitor.Tunnel, *emitter)) func(*state, *emitter) {
	return func(s *state, emit *emitter) {
		for i := range s.Tunnels {
			each(&s.Tunnels[i], emit)
		}
	}
}

// sinks are the figures of each sink of records.
func sinks(value func(*ship.State) float64) func(*state, *emitter) {
	return func(s *state, emit *emitter) {
		if s.history == nil {
			return
		}
		for i := range s.history.Ship {
			emit.add(value(&s.history.Ship[i]), s.history.Ship[i].Sink)
		}
	}
}

func ofTunnel(value func(*monitor.Tunnel) int64) func(*state, *emitter) {
	return tunnels(func(t *monitor.Tunnel, emit *emitter) { emit.add(float64(value(t)), t.Name) })
}

func legs(each func(*monitor.Tunnel, *monitor.LegTotals, *emitter)) func(*state, *emitter) {
	return tunnels(func(t *monitor.Tunnel, emit *emitter) {
		for i := range t.Legs {
			each(t, &t.Legs[i], emit)
		}
	})
}

func ofHop(value func(*monitor.Hop) (float64, bool)) func(*state, *emitter) {
	return tunnels(func(t *monitor.Tunnel, emit *emitter) {
		for i := range t.Hops {
			if v, known := value(&t.Hops[i]); known {
				emit.add(v, t.Name, t.Hops[i].Name)
			}
		}
	})
}

func checks(each func(*monitor.Tunnel, *monitor.Check, *emitter)) func(*state, *emitter) {
	return tunnels(func(t *monitor.Tunnel, emit *emitter) {
		if t.LastCheck != nil {
			each(t, t.LastCheck, emit)
		}
	})
}

func truth(v bool) float64 {
	if v {
		return 1
	}
	return 0
}

func unix(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// vocabulary holds the values of one label: the common ones and the first
// others seen. Later values are summed as other.
type vocabulary struct {
	size   int
	common []string // shown even at 0: rate() misses an increase from absent
	mu     sync.Mutex
	words  map[string]bool
}

// fold sums the counts of values outside the vocabulary as other.
func (v *vocabulary) fold(counts map[string]int64) map[string]int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.words == nil {
		v.words = map[string]bool{}
	}
	out := make(map[string]int64, len(counts)+len(v.common))
	for _, word := range v.common {
		v.words[word], out[word] = true, 0
	}
	for _, word := range slices.Sorted(maps.Keys(counts)) {
		if !v.words[word] && len(v.words) < v.size {
			v.words[word] = true
		}
		if v.words[word] {
			out[word] += counts[word]
		} else {
			out[other] += counts[word]
		}
	}
	return out
}

package metrics

import (
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"longhaul/internal/monitor"
)

const prefix = "longhaul_"

// What bounds the number of time series where words come from elsewhere than the
// configuration.
const (
	mostReasons = 32 // of ends
	mostWords   = 16 // of any other list
	other       = "other"
)

// state is what metrics are made of.
type state struct {
	*monitor.Snapshot
	*vocabularies
	history *History // nil: there is none
}

// vocabularies are those of labels whose words come from elsewhere.
type vocabularies struct{ reasons, errnos, sheds vocabulary }

func newVocabularies() *vocabularies {
	return &vocabularies{
		reasons: vocabulary{most: mostReasons},
		errnos:  vocabulary{most: mostWords, common: commonErrnos},
		sheds:   vocabulary{most: mostWords, common: commonSheds},
	}
}

// family is a metric with all its labels.
type family struct {
	name, help string
	kind       prometheus.ValueType
	labels     []string
	collect    func(*state, func(v float64, labels ...string))
}

const (
	gauge   = prometheus.GaugeValue
	counter = prometheus.CounterValue
)

// words that are values of labels.
var (
	tunnelStates = []string{"listening", "shedding", "paused", "drained", "draining", "removed"}
	hopStates    = []string{"up", "returning", "down", "ejected", "drained"}
	commonErrnos = []string{"ECONNABORTED", "EMFILE", "ENFILE", "ENOBUFS", "ENOMEM"}
	commonSheds  = []string{"descriptors", "memory", "cgroup_memory", "tcp_memory", "cpu"}
)

var families = slices.Concat(processFamilies, tunnelFamilies, legFamilies, hopFamilies, checkFamilies)

var processFamilies = []family{
	{"build_info", "Always 1; the labels say what runs.", gauge, []string{"version", "go_version"},
		func(s *state, emit func(float64, ...string)) { emit(1, s.Process.Version, runtime.Version()) }},
	{"start_time_seconds", "When the process began, since 1970.", gauge, nil, one(func(s *state) (float64, bool) {
		return unix(s.Process.StartedAt), !s.Process.StartedAt.IsZero()
	})},
	{"samples_total", "Samples of all flows that were taken.", counter, nil, one(func(s *state) (float64, bool) {
		return float64(s.Sequence), true
	})},
	{"sample_timestamp_seconds", "When the figures shown were taken, since 1970.", gauge, nil, one(func(s *state) (float64, bool) {
		return unix(s.At), true
	})},
	{"sample_duration_seconds", "How long it took to look at all flows.", gauge, nil, one(func(s *state) (float64, bool) {
		return s.Took.Seconds(), s.Sequence > 0
	})},
	{"draining", "1 while the process takes no new flows and waits for its last ones to end.", gauge, nil, one(func(s *state) (float64, bool) {
		return truth(s.Process.Draining), true
	})},
	{"older_processes", "Processes that an upgrade has replaced by this one and that finish their flows.", gauge, nil, one(func(s *state) (float64, bool) {
		return float64(s.Process.OlderProcesses), true
	})},
	{"shedding", "1 while new flows are refused because something is short.", gauge, nil, one(func(s *state) (float64, bool) {
		return truth(s.Process.Shedding != ""), true
	})},
	{"memory_used_bytes", "What the flows' sockets and pipes hold; only with memory_limit.", gauge, nil, one(func(s *state) (float64, bool) {
		return float64(s.Process.MemoryUsed), s.Process.MemoryUsed >= 0
	})},
	{"memory_limit_bytes", "memory_limit of the configuration; only if it is set.", gauge, nil, one(func(s *state) (float64, bool) {
		return float64(s.Process.MemoryLimit), s.Process.MemoryLimit > 0
	})},
	{"reload_success", "1 if the last reload of the configuration took effect, or there was none; 0 if it failed and the old one stays.", gauge, nil,
		one(func(s *state) (float64, bool) {
			return truth(s.Process.LastReload == nil || s.Process.LastReload.OK), true
		})},
	{"reload_timestamp_seconds", "When the configuration was last reloaded, or the process began, since 1970.", gauge, nil, one(func(s *state) (float64, bool) {
		if r := s.Process.LastReload; r != nil {
			return unix(r.At), true
		}
		return unix(s.Process.StartedAt), !s.Process.StartedAt.IsZero()
	})},
	{"accept_errors_total", "Accepts that failed, by the system's error.", counter, []string{"errno"},
		func(s *state, emit func(float64, ...string)) {
			for word, n := range s.errnos.fold(s.Process.AcceptErrors) {
				emit(float64(n), word)
			}
		}},
	{"congestion_control_active", "1 if an algorithm that the configuration names is in use, 0 if another takes its place.", gauge, []string{"name"},
		func(s *state, emit func(float64, ...string)) {
			for name, active := range s.Process.CongestionControl {
				emit(truth(active), name)
			}
		}},
	{"log_lines_dropped_total", "Lines of the log that nobody read in time.", counter, nil, one(func(s *state) (float64, bool) {
		return float64(s.Process.LogLinesDropped), true
	})},
	{"records_dropped_total", "Flows that ended so fast that there is no record of them.", counter, nil, one(func(s *state) (float64, bool) {
		return float64(s.Process.RecordsDropped), true
	})},
	{"history_records_total", "Records of flows that the history has taken in.", counter, nil, one(func(s *state) (float64, bool) {
		if s.history == nil {
			return 0, false
		}
		return float64(s.history.Written), true
	})},
	{"history_records_dropped_total", "Records of flows that the history could not take in.", counter, nil, one(func(s *state) (float64, bool) {
		if s.history == nil {
			return 0, false
		}
		return float64(s.history.Dropped), true
	})},
	{"history_size_bytes", "What the history takes on disk.", gauge, nil, one(func(s *state) (float64, bool) {
		if s.history == nil {
			return 0, false
		}
		return float64(s.history.Bytes), s.history.Bytes >= 0
	})},
}

var tunnelFamilies = []family{
	{"tunnel_state", "1 for the state that a tunnel is in, 0 for the others.", gauge, []string{"tunnel", "state"},
		tunnels(func(t *monitor.Tunnel, emit func(float64, ...string)) {
			for _, state := range tunnelStates {
				emit(truth(t.State == state), t.Name, state)
			}
		})},
	{"flows_active", "Flows that stand or are being connected.", gauge, []string{"tunnel"}, ofTunnel(func(t *monitor.Tunnel) int64 { return t.FlowsNow })},
	{"flows_peak", "The most flows at the same time since the tunnel was added.", gauge, []string{"tunnel"}, ofTunnel(func(t *monitor.Tunnel) int64 { return t.FlowsPeak })},
	{"flows_limit", "max_flows of the configuration; only if it is set.", gauge, []string{"tunnel"},
		tunnels(func(t *monitor.Tunnel, emit func(float64, ...string)) {
			if t.FlowsLimit > 0 {
				emit(float64(t.FlowsLimit), t.Name)
			}
		})},
	{"flows_opened_total", "Flows that were admitted.", counter, []string{"tunnel"}, ofTunnel(func(t *monitor.Tunnel) int64 { return t.FlowsTotal })},
	{"flows_closed_total", "Flows that have ended, by who ended them (client, target, both or relay) and why.", counter, []string{"tunnel", "who", "reason"},
		func(s *state, emit func(float64, ...string)) {
			for i := range s.Tunnels {
				counts := map[string]int64{}
				for _, c := range s.Tunnels[i].Closed {
					counts[c.EndedBy+" "+c.Reason] += c.Flows
				}
				for words, n := range s.reasons.fold(counts) {
					who, reason, ok := strings.Cut(words, " ")
					if !ok {
						who, reason = other, other
					}
					emit(float64(n), s.Tunnels[i].Name, who, reason)
				}
			}
		}},
	{"bytes_total", "Data that were forwarded, up to the target or down to the client.", counter, []string{"tunnel", "direction"},
		tunnels(func(t *monitor.Tunnel, emit func(float64, ...string)) {
			emit(float64(t.BytesUp), t.Name, "up")
			emit(float64(t.BytesDown), t.Name, "down")
		})},
	{"acl_denied_total", "Connections that were refused because of their source, or of a bad PROXY header.", counter, []string{"tunnel"}, ofTunnel(func(t *monitor.Tunnel) int64 { return t.Denied })},
	{"limited_total", "Connections that were refused by max_flows or new_flows_per_second, or a source's share of them.", counter, []string{"tunnel"}, ofTunnel(func(t *monitor.Tunnel) int64 { return t.Limited })},
	{"shed_total", "Connections that were refused because something was short, by what.", counter, []string{"tunnel", "reason"},
		func(s *state, emit func(float64, ...string)) {
			for i := range s.Tunnels {
				for reason, n := range s.sheds.fold(s.Tunnels[i].ShedBy) {
					emit(float64(n), s.Tunnels[i].Name, reason)
				}
			}
		}},
	{"flows_limited", "Flows that move data now, by what limits their sender.", gauge, []string{"tunnel", "cause"},
		tunnels(func(t *monitor.Tunnel, emit func(float64, ...string)) {
			for cause, n := range t.Causes {
				emit(float64(n), t.Name, string(cause))
			}
		})},
}

var legFamilies = []family{
	{"leg_rtt_seconds", "Smoothed round-trip times of the legs that stand: min is the least that was ever measured on one of them.", gauge, []string{"tunnel", "leg", "stat"},
		legs(func(t *monitor.Tunnel, l *monitor.LegTotals, emit func(float64, ...string)) {
			for _, s := range []struct {
				name string
				rtt  time.Duration
			}{{"min", l.MinRTT}, {"median", l.MedianRTT}, {"p99", l.P99RTT}} {
				if s.rtt > 0 {
					emit(s.rtt.Seconds(), t.Name, string(l.Leg), s.name)
				}
			}
		})},
	{"leg_sent_bytes_total", "Data that legs have sent, retransmissions included.", counter, []string{"tunnel", "leg"},
		legs(func(t *monitor.Tunnel, l *monitor.LegTotals, emit func(float64, ...string)) {
			if l.BytesSent >= 0 {
				emit(float64(l.BytesSent), t.Name, string(l.Leg))
			}
		})},
	{"leg_retransmitted_bytes_total", "Data that legs have sent again.", counter, []string{"tunnel", "leg"},
		legs(func(t *monitor.Tunnel, l *monitor.LegTotals, emit func(float64, ...string)) {
			if l.BytesRetransmitted >= 0 {
				emit(float64(l.BytesRetransmitted), t.Name, string(l.Leg))
			}
		})},
	{"leg_limited_seconds_total", "Time for which flows that move data were limited, by what; many at once add up.", counter, []string{"tunnel", "leg", "cause"},
		legs(func(t *monitor.Tunnel, l *monitor.LegTotals, emit func(float64, ...string)) {
			for cause, seconds := range l.LimitedSeconds {
				emit(seconds, t.Name, string(l.Leg), string(cause))
			}
		})},
}

var hopFamilies = []family{
	{"hop_up", "1 if new flows go to a hop, 0 if not.", gauge, []string{"tunnel", "hop"}, ofHop(func(h *monitor.Hop) (float64, bool) { return truth(h.Usable), true })},
	{"hop_state", "1 for the state that a hop is in, 0 for the others; drained is by the operator.", gauge, []string{"tunnel", "hop", "state"},
		tunnels(func(t *monitor.Tunnel, emit func(float64, ...string)) {
			for i := range t.Hops {
				for _, state := range hopStates {
					emit(truth(t.Hops[i].State == state), t.Name, t.Hops[i].Name, state)
				}
			}
		})},
	{"hop_flows_active", "Flows that are connecting to a hop or stand.", gauge, []string{"tunnel", "hop"}, ofHop(func(h *monitor.Hop) (float64, bool) { return float64(h.FlowsNow), true })},
	{"hop_flows_total", "Flows that were connected to a hop.", counter, []string{"tunnel", "hop"}, ofHop(func(h *monitor.Hop) (float64, bool) { return float64(h.Flows), true })},
	{"hop_connect_failures_total", "Flows whose connect to a hop failed.", counter, []string{"tunnel", "hop"}, ofHop(func(h *monitor.Hop) (float64, bool) { return float64(h.Failures), true })},
	{"hop_rtt_seconds", "Median round-trip time of the legs to a hop, or of its last probe where there are none.", gauge, []string{"tunnel", "hop"},
		ofHop(func(h *monitor.Hop) (float64, bool) { return h.RTT.Seconds(), h.RTT > 0 })},
	{"hop_sent_bytes_total", "Data that legs have sent to a hop, retransmissions included.", counter, []string{"tunnel", "hop"},
		ofHop(func(h *monitor.Hop) (float64, bool) { return float64(h.BytesSent), h.BytesSent >= 0 })},
	{"hop_retransmitted_bytes_total", "Data that legs have sent to a hop again.", counter, []string{"tunnel", "hop"},
		ofHop(func(h *monitor.Hop) (float64, bool) { return float64(h.BytesRetransmitted), h.BytesRetransmitted >= 0 })},
}

var checkFamilies = []family{
	{"check_up", "1 if the last integrity check found the chain whole, 0 if it is broken; only once there was one.", gauge, []string{"tunnel"},
		checks(func(t *monitor.Tunnel, c *monitor.Check, emit func(float64, ...string)) { emit(truth(c.OK), t.Name) })},
	{"check_timestamp_seconds", "When the last integrity check was made, since 1970.", gauge, []string{"tunnel"},
		checks(func(t *monitor.Tunnel, c *monitor.Check, emit func(float64, ...string)) { emit(unix(c.At), t.Name) })},
	{"check_leg_loss_ratio", "Share of the segments that the last integrity check lost on a leg of the chain, counted from this relay as 1.", gauge, []string{"tunnel", "position"},
		checks(func(t *monitor.Tunnel, c *monitor.Check, emit func(float64, ...string)) {
			for i, h := range c.Hops[:min(len(c.Hops), mostWords)] {
				if h.LossShare >= 0 {
					emit(h.LossShare, t.Name, strconv.Itoa(i+1))
				}
			}
		})},
}

func one(value func(*state) (float64, bool)) func(*state, func(float64, ...string)) {
	return func(s *state, emit func(float64, ...string)) {
		if v, known := value(s); known {
			emit(v)
		}
	}
}

func tunnels(each func(*monitor.Tunnel, func(float64, ...string))) func(*state, func(float64, ...string)) {
	return func(s *state, emit func(float64, ...string)) {
		for i := range s.Tunnels {
			each(&s.Tunnels[i], emit)
		}
	}
}

func ofTunnel(value func(*monitor.Tunnel) int64) func(*state, func(float64, ...string)) {
	return tunnels(func(t *monitor.Tunnel, emit func(float64, ...string)) { emit(float64(value(t)), t.Name) })
}

func legs(each func(*monitor.Tunnel, *monitor.LegTotals, func(float64, ...string))) func(*state, func(float64, ...string)) {
	return tunnels(func(t *monitor.Tunnel, emit func(float64, ...string)) {
		for i := range t.Legs {
			each(t, &t.Legs[i], emit)
		}
	})
}

func ofHop(value func(*monitor.Hop) (float64, bool)) func(*state, func(float64, ...string)) {
	return tunnels(func(t *monitor.Tunnel, emit func(float64, ...string)) {
		for i := range t.Hops {
			if v, known := value(&t.Hops[i]); known {
				emit(v, t.Name, t.Hops[i].Name)
			}
		}
	})
}

func checks(each func(*monitor.Tunnel, *monitor.Check, func(float64, ...string))) func(*state, func(float64, ...string)) {
	return tunnels(func(t *monitor.Tunnel, emit func(float64, ...string)) {
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

// vocabulary is the words of one label: common ones, and the first others that
// were seen. Of those after them nothing is known but how many they are together.
type vocabulary struct {
	most   int
	common []string // that are shown as 0, too: an increase from nothing is not seen
	mu     sync.Mutex
	words  map[string]bool
}

// fold counts what is not of the vocabulary as other.
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
		if !v.words[word] && len(v.words) < v.most {
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

package daemon

import (
	"context"
	"log/slog"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay"
	"longhaul/internal/run/config"
	"longhaul/internal/sys/resources"
	"longhaul/internal/words/display"
)

// descriptorsPerFlow counts a flow's two connections.
const descriptorsPerFlow = 2

// shedder has the relay refuse new flows while a resource is short.
type shedder struct {
	log     *slog.Logger
	relay   *relay.Relay
	monitor *resources.Monitor

	// Used by the monitor's goroutine only.
	flows    int64 // when the descriptors were counted
	maxFlows int64 // maximum of flows for the descriptors; negative: any number
	reserve  int64 // further flows, for sources and tunnels with few flows
	overflow resources.Amount
	dropped  int64 // connections, from the relay's own accept queues
	warnedAt time.Time
}

func newShedder(r *relay.Relay, log *slog.Logger, limits config.Limits) *shedder {
	s := &shedder{log: log, relay: r, maxFlows: -1, overflow: resources.Unknown}
	s.monitor = resources.Start(resources.Options{Limits: resourceLimits(limits), LoopDelay: s.loopDelay, OnState: s.act})
	return s
}

// Prepare is that of the part of the limits above which new flows are shed.
func (s *shedder) Prepare(_ context.Context, p *plan) (Change, error) {
	return setting(func() {
		s.monitor.SetLimits(resourceLimits(p.Limits))
		s.monitor.BoundRuntime(runtimeBound(int64(p.MemoryLimit)))
	}), nil
}

// tight lists the resources that are short, or soon will be.
func (s *shedder) tight() []resources.Resource { return s.monitor.State().Tight }

// leastRuntime is a memory in bytes for which the garbage collector need not work harder.
const leastRuntime = 64 << 20

// runtimeBound is the memory in bytes of the runtime below which the garbage collector works
// harder; 0: none. A quarter of the limit is for the payload of paired flows, which lies beside it.
func runtimeBound(memoryLimit int64) int64 {
	if memoryLimit == 0 {
		return 0
	}
	return max(memoryLimit*5/8, leastRuntime)
}

func resourceLimits(l config.Limits) resources.Limits {
	limits := resources.Limits{}
	for r, one := range map[resources.Resource]config.Limit{
		resources.Descriptors: l.Descriptors, resources.Memory: l.Memory, resources.CgroupMemory: l.CgroupMemory,
		resources.TCPMemory: l.TCPMemory, resources.CPU: l.CPU,
	} {
		limits[r] = resources.Limit{Share: one.Share, Amount: float64(one.Amount)}
	}
	d := limits[resources.Descriptors]
	d.Grain = descriptorsPerFlow
	limits[resources.Descriptors] = d
	return limits
}

// loopDelay comes before each sample.
func (s *shedder) loopDelay() resources.Amount {
	ctx, cancel := context.WithTimeout(context.Background(), loopPatience)
	defer cancel()
	delay, err := s.relay.Responsive(ctx)
	s.flows = s.relay.FlowsNow()
	if err != nil {
		return resources.Unknown
	}
	return resources.Amount(delay.Seconds())
}

// act applies a state to the relay.
func (s *shedder) act(state resources.State, changes []resources.Change) {
	s.shed(state)
	s.relay.KeepEnds(state.ManyOrphans())
	for _, c := range changes {
		s.tell(c)
	}
	s.watchQueues(state)
}

// shed refuses every new flow while a limit is reached that has no known number of
// flows. The number of flows for the descriptors is known ahead. So even a flood
// between two samples does not use them up, and the relay refuses no flow while
// descriptors are left. Half of those above the limit are reserved for sources and
// tunnels with few flows.
func (s *shedder) shed(state resources.State) {
	if room, ok := state.DescriptorRoom(); ok {
		s.maxFlows = s.flows + room/descriptorsPerFlow
		s.reserve = reserveOf(s.maxFlows, state.Figure(resources.Descriptors))
	} else if !state.Figure(resources.Descriptors).Limit.Known() {
		s.maxFlows = -1
	}
	var short []resources.Resource
	for _, r := range state.Shedding {
		if r != resources.Descriptors {
			short = append(short, r)
		}
	}
	switch {
	case len(short) > 0:
		s.relay.Shed(resources.Names(short), 0, 0)
	case s.maxFlows >= 0:
		s.relay.Shed(string(resources.Descriptors), s.maxFlows, s.reserve)
	default:
		s.relay.Shed("", 0, 0)
	}
}

// reserveOf returns the number of flows for half of the descriptors above the limit,
// at most an eighth of maxFlows. It returns 0 if the limit is above the number that
// the process may open, or if that is unlimited.
func reserveOf(maxFlows int64, descriptors resources.Figure) int64 {
	if !descriptors.Capacity.Known() {
		return 0
	}
	behind := int64(descriptors.Capacity - descriptors.Limit)
	return max(0, min(maxFlows/8, behind/descriptorsPerFlow/2))
}

func (s *shedder) tell(c resources.Change) {
	f := c.Figure
	attrs := []any{"resource", f.Resource, "used", f.Text(f.Used), "limit", f.Text(f.Limit), "flows", s.relay.FlowsNow()}
	if c.Reached {
		s.log.Warn("shedding new flows: a limit is reached", append(attrs, "remedy", f.Resource.Remedy())...)
		return
	}
	s.log.Info("a limit is no longer reached", append(attrs, "after_seconds", display.Round(c.For.Seconds(), 10))...)
}

// queuePause is the time between two warnings of full accept queues.
const queuePause = 10 * time.Second

// watchQueues warns of connections that the kernel dropped from a queue of the relay.
// It reads the queues when the kernel's counter for all programs has grown.
func (s *shedder) watchQueues(state resources.State) {
	before := s.overflow
	s.overflow = state.AcceptOverflows
	if before == state.AcceptOverflows || state.At.Sub(s.warnedAt) < queuePause {
		return
	}
	var dropped int64
	var worst flow.AcceptQueue
	for _, q := range s.relay.AcceptQueues() {
		dropped += int64(q.Dropped)
		if q.Dropped > worst.Dropped {
			worst = q
		}
	}
	more := dropped - s.dropped
	s.dropped = dropped
	if more <= 0 || !before.Known() {
		return // another program's, or before the watch began
	}
	s.warnedAt = state.At
	s.log.Warn("connections came faster than the relay accepted them: the kernel dropped some, which try again",
		"dropped", more, "listen", worst.Listen, "queue", worst.Limit, "event_loop_delay_seconds", state.LoopDelay,
		"remedy", "raise net.core.somaxconn, or set new_flows_per_second if a single client floods")
}

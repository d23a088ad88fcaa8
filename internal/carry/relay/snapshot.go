package relay

import (
	"cmp"
	"net/netip"
	"slices"
	"sort"
	"time"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay/monotime"
)

// Snapshot is the state of a relay at one moment.
type Snapshot struct {
	Workers      int              `json:"workers"`
	Draining     bool             `json:"draining"`
	AcceptPaused bool             `json:"accept_paused"` // descriptors or kernel memory have run out
	Shedding     string           `json:"shedding"`      // why new flows are refused; empty: none is
	PipesOpen    int64            `json:"pipes_open"`
	PipesLimit   int64            `json:"pipes_limit"`
	Memory       *MemorySnapshot  `json:"memory"` // null: no limit, so not measured
	FlowsNow     int64            `json:"flows_now"`
	AcceptErrors map[string]int64 `json:"accept_errors"` // since the start, by errno
	Tunnels      []report.Tunnel  `json:"tunnels"`
	Removed      []report.Tunnel  `json:"-"` // tunnels without listeners that still have flows
	Flows        []FlowSnapshot   `json:"flows"`
}

// MemorySnapshot is the memory of the flows' sockets and pipes, as the kernel
// counts it.
type MemorySnapshot struct {
	LimitBytes int64 `json:"limit_bytes"`
	UsedBytes  int64 `json:"used_bytes"`
	Short      bool  `json:"short"` // senders are slowed down
}

// FlowSnapshot is one flow.
type FlowSnapshot struct {
	ID          uint64          `json:"id"`             // of this process
	Name        report.Name     `json:"name,omitzero"`  // the same in every relay that carries the flow
	Peer        string          `json:"peer,omitempty"` // the other relay of its pair
	Tunnel      string          `json:"tunnel"`
	State       string          `json:"state"` // header, dialing, check, open, client-ended, target-ended, delivering, resetting, parked or resuming
	Client      netip.AddrPort  `json:"client"`
	Listen      netip.AddrPort  `json:"listen"`
	Target      netip.AddrPort  `json:"target"`
	Hop         string          `json:"hop,omitempty"` // the target's hop as configured
	AgeSeconds  float64         `json:"age_seconds"`
	IdleSeconds float64         `json:"idle_seconds"`
	BytesUp     int64           `json:"bytes_up"`
	BytesDown   int64           `json:"bytes_down"`
	HeldUp      int             `json:"held_up_bytes"` // read, not yet written to the target's socket
	HeldDown    int             `json:"held_down_bytes"`
	ClientLeg   LegSnapshot     `json:"client_leg"`
	TargetLeg   LegSnapshot     `json:"target_leg"`
	Pair        *report.Figures `json:"pair,omitempty"` // of a flow that a pair of relays carries
}

// LegSnapshot is the setup of a leg.
type LegSnapshot struct {
	Side     string `json:"side,omitempty"` // lan or wan
	Degraded string `json:"degraded,omitempty"`
	// Destination is the prefix of the tunnel's destinations whose settings it has.
	Destination netip.Prefix `json:"destination,omitzero"`
}

// Snapshot describes the relay now. Flows are sorted by age, oldest first.
func (r *Relay) Snapshot() Snapshot {
	r.mu.Lock()
	workers, queues := r.workers, r.acceptQueues()
	r.mu.Unlock()
	flows := []FlowSnapshot{}
	for _, w := range workers {
		w.do(func() {
			now := monotime.Now()
			w.eachFlow(func(f *flow) { flows = append(flows, w.flowSnapshot(f, now)) })
			w.addSums()
		})
	}
	s := r.Overview() // behind the looks at paired flows, which count them
	s.Flows = flows
	for i := range s.Tunnels {
		s.Tunnels[i].AcceptQueues = append(s.Tunnels[i].AcceptQueues, queues[s.Tunnels[i].Name]...)
	}
	s.Tunnels = append(s.Tunnels, s.Removed...)
	sort.SliceStable(s.Flows, func(i, j int) bool { return s.Flows[i].AgeSeconds > s.Flows[j].AgeSeconds })
	return s
}

// Overview is a Snapshot that queries no event loop and never waits. It omits
// flows and queues; byte counts are those of the loops' latest turns, and for
// flows of pairs of the latest look at them.
func (r *Relay) Overview() Snapshot {
	now := r.now()
	s := Snapshot{
		Workers:      r.opts.Workers,
		Draining:     now.draining,
		AcceptPaused: now.paused,
		Shedding:     now.shedding,
		FlowsNow:     r.live.Load(),
		AcceptErrors: r.acceptErrors.byName(),
		Tunnels:      []report.Tunnel{},
		Flows:        []FlowSnapshot{},
	}
	if r.loops.Load() != nil {
		s.PipesLimit = r.pipesMost
		s.PipesOpen = r.pipesMost - r.pipeBudget.Load()
	}
	if limit := r.memory.limit.Load(); limit > 0 {
		s.Memory = &MemorySnapshot{LimitBytes: limit, UsedBytes: r.memory.held.bytes.Load(), Short: r.memory.short.Load()}
	}
	table := r.table.Load()
	for _, in := range table.tunnels {
		t := tunnelSnapshot(in.state, in.tunnel)
		in.standing(&t, now)
		t.DeadFamilies = in.deadFamilies()
		s.Tunnels = append(s.Tunnels, t)
	}
	for _, in := range table.removed {
		if in.state.flows.Load() > 0 {
			t := tunnelSnapshot(in.state, in.tunnel)
			t.State, t.Hops = "removed", in.hops.Snapshot(t.Hops, now.at)
			s.Removed = append(s.Removed, t)
		}
	}
	return s
}

// Tunnels is the number of tunnels in force, and whether the relay drains.
func (r *Relay) Tunnels() (n int, draining bool) {
	return len(r.table.Load().tunnels), r.draining.Load()
}

// Standing lists the tunnels with what decides whether they serve new flows, and nothing else:
// name, state, listening addresses, hops, flows now and their limit, and what the host lacks.
// It never waits. The result reuses into.
func (r *Relay) Standing(into []report.Tunnel) []report.Tunnel {
	now, tunnels := r.now(), r.table.Load().tunnels
	into = slices.Grow(into[:0], len(tunnels))[:len(tunnels)]
	for i, in := range tunnels {
		t := &into[i]
		*t = report.Tunnel{Name: in.tunnel.Name, Listen: t.Listen[:0], Hops: t.Hops[:0], FlowsNow: in.state.flows.Load(), FlowsLimit: in.tunnel.MaxFlows}
		in.standing(t, now)
	}
	return into
}

// relayNow is what holds for all tunnels at a moment.
type relayNow struct {
	at               time.Duration
	draining, paused bool
	shedding         string // why; empty: it does not
}

func (r *Relay) now() relayNow {
	now := relayNow{at: monotime.Now(), draining: r.draining.Load(), paused: r.pausedWorkers.Load() > 0}
	if shed := r.sheds(); shed != nil {
		now.shedding = shed.reason
	}
	return now
}

// standing fills in the state of a tunnel, its listening addresses, its hops, and what the host
// lacks of them.
func (in *installed) standing(t *report.Tunnel, now relayNow) {
	t.State = "listening"
	switch {
	case now.draining:
		t.State = "draining"
	case in.state.drained.Load():
		t.State = "drained"
	case now.paused:
		t.State = "paused"
	case now.shedding != "":
		t.State = "shedding"
	}
	t.Hops = in.hops.Snapshot(t.Hops, now.at)
	absent := 0
	for _, l := range in.listeners {
		t.Listen = append(t.Listen, l.bound)
		if l.absent.Load() != nil {
			absent++
		}
	}
	if absent == 0 {
		return
	}
	if t.Host = in.waits(absent == len(in.listeners)); t.State == "listening" && absent == len(in.listeners) {
		t.State = "waiting"
	}
}

func tunnelSnapshot(st *tunnelState, t *Tunnel) report.Tunnel {
	ts := report.Tunnel{
		Name:       t.Name,
		Listen:     []netip.AddrPort{},
		Intercepts: t.Intercepts,
		Forward:    []string{},
		Balance:    string(t.Balance),
		Hops:       []report.Hop{},
		FlowsNow:   st.flows.Load(),
		FlowsPeak:  st.peak.Load(),
		FlowsLimit: t.MaxFlows,
		FlowsTotal: st.total.Load(),
		BytesUp:    st.moved[up].Load(),
		BytesDown:  st.moved[down].Load(),
		Life:       st.life,
		Peers:      st.overPeers(),
		Relayed:    st.relayed.Load(),
		Denied:     st.denied.Load(),
		Limited:    st.limited.Load(),
		Shed:       st.shed.Load(),
		Refused:    st.refused.Load(),
		Errors:     st.errors.Load(),
		Checks:     st.integrity.total.Load(),

		ShedBy:       st.shedByReason(),
		Ended:        endList(&st.ended, &st.endedByPeer),
		AcceptQueues: []report.AcceptQueue{},
	}
	for i := range t.Forward {
		f := &t.Forward[i]
		ts.Forward = append(ts.Forward, f.String())
	}
	return ts
}

func (w *worker) flowSnapshot(f *flow, now time.Duration) FlowSnapshot {
	w.lookAtPaired(f)
	w.setUpLegs(f)
	return FlowSnapshot{
		ID:          f.id,
		Name:        f.name,
		Peer:        f.peer(),
		Tunnel:      f.route.tunnel.Name,
		State:       f.state(),
		Client:      f.origin(),
		Listen:      w.listenAddr(f),
		Target:      f.target(),
		Hop:         f.hopName(),
		AgeSeconds:  (now - f.start).Seconds(),
		IdleSeconds: (now - f.active).Seconds(),
		BytesUp:     max(0, f.dirs[up].bytes),
		BytesDown:   max(0, f.dirs[down].bytes),
		HeldUp:      int(f.dirs[up].held),
		HeldDown:    int(f.dirs[down].held),
		ClientLeg:   f.legs[client].snapshot(),
		TargetLeg:   f.legs[target].snapshot(),
		Pair:        f.pairSnapshot(),
	}
}

func (f *flow) state() string {
	switch {
	case f.phase == phaseHeader:
		return "header"
	case f.phase == phaseAccepted, f.phase == phaseDialing, f.phase == phaseAwaiting, f.phase == phaseHeld, f.phase == phaseWaiting:
		return "dialing"
	case f.phase == phaseIntegrity:
		return "check"
	case f.phase == phasePaired:
		return cmp.Or(f.paired.seen.state.String(), "dialing")
	case f.end.deadline:
		return "resetting"
	case f.end.delivering():
		return "delivering"
	case f.end.in[client] == inputEnded:
		return "client-ended"
	case f.end.in[target] == inputEnded:
		return "target-ended"
	}
	return "open"
}

func (l *leg) snapshot() LegSnapshot {
	if l.setup == nil {
		return LegSnapshot{}
	}
	return LegSnapshot{Side: l.setup.side, Degraded: l.setup.degraded, Destination: l.setup.destination}
}

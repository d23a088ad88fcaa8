// Package usable decides for each tunnel whether it serves a new flow, and why not: from the
// state of the relay, the pair, the hops, and from what the host has of a tunnel's listeners
// and rules. It is the only place that decides that. Readiness, status, metrics, the dashboard
// and `when_down` read the decision; balance reads that of a hop, which package hops makes, also
// of one that is the far relay of a pair.
//
//	untried ──flow, check or session──▶ up ◀──────┐
//	   └───────────▶ down ──▶ returning ──success─┘
//
// Each change of a decision is an event (see [Judge.Events]).
package usable

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/sys/resources"
)

// Options are the sources of a [Judge].
type Options struct {
	Tight func() []resources.Resource // whose limits are reached or nearly reached
}

// Judge decides. Its methods may be called from any goroutine.
type Judge struct {
	o Options

	mu    sync.Mutex      // calls nobody
	full  map[string]bool // tunnels at their limit
	known map[subject]*seen
	order []*seen // of the last Decide: most find the same subjects in the same order
	log   ring
}

// subject is something with a state.
type subject struct{ kind, tunnel, name string }

// seen is the state of a subject as a Judge saw it last.
type seen struct {
	subject
	state  string
	reason flow.Reason // another reason is a change
	detail string      // another detail is none
	since  time.Time
}

// New makes a Judge that has decided nothing.
func New(o Options) *Judge {
	return &Judge{o: o, full: map[string]bool{}, known: map[subject]*seen{}}
}

// Decide fills in the usability of every tunnel of the relay. What the host lacks is in the tunnels
// already. Changes since the last call become events.
func (j *Judge) Decide(tunnels []flow.Tunnel) {
	now := time.Now()
	tight := j.o.Tight()
	j.mu.Lock()
	defer j.mu.Unlock()
	behind := make([]flow.UseState, len(tunnels))
	for i := range tunnels {
		t := &tunnels[i]
		if isFull(t, j.full[t.Name]) {
			j.full[t.Name] = true
		} else {
			delete(j.full, t.Name)
		}
		t.Usability, behind[i] = j.decide(t, tight)
	}
	j.note(tunnels, behind, now)
}

// decide lists the problems of a tunnel, those first that are the relay's own. behind is the state
// without the reasons that hold for all tunnels.
func (j *Judge) decide(t *flow.Tunnel, tight []resources.Resource) (u flow.Usability, behind flow.UseState) {
	add := func(reason flow.Reason, format string, args ...any) {
		u.Problems = append(u.Problems, flow.Problem{Reason: reason, Detail: fmt.Sprintf(format, args...)})
	}
	switch t.State {
	case "listening", "waiting": // for an address of which the host tells
	case "shedding":
		add(flow.ReasonShedding, "is shedding")
	default: // draining, drained, paused or removed
		add(flow.Reason(t.State), "is %s", t.State)
	}
	for _, p := range t.Host {
		if p.Blocks {
			add(p.Part.Reason(), "takes no clients: %s", p.Problem)
		}
	}
	if len(tight) > 0 && t.State == "listening" {
		add(flow.ReasonResources, "is near a limit: %s", resources.Names(tight))
	}
	if j.full[t.Name] {
		add(flow.ReasonMaxFlows, "is at max_flows: %d", t.FlowsLimit)
	}
	own := len(u.Problems)
	if len(t.Hops) == 1 && t.Hops[0].Pair != nil {
		u.State = ofPair(t.Hops[0].Pair, add)
	} else {
		u.State = ofHops(t, add)
	}
	behind = u.State
	if own > 0 {
		u.State = flow.Down // whatever lies behind
	}
	if slices.ContainsFunc(u.Problems[:own], func(p flow.Problem) bool { return !ofRelay[p.Reason] }) {
		behind = flow.Down
	}
	u.Usable = len(u.Problems) == 0
	return u, behind
}

// ofHops decides by the hops.
func ofHops(t *flow.Tunnel, add func(flow.Reason, string, ...any)) flow.UseState {
	if t.Service != nil && len(t.Hops) == 0 {
		why := t.Service.Error
		if why == "" {
			why = "no answer yet"
		}
		add(flow.ReasonHopsDown, "has no hop: the service %s has no targets: %s", t.Service.Name, why)
		return flow.Down
	}
	drained, usable := 0, false
	var up, untried, returning bool
	for i := range t.Hops {
		h := &t.Hops[i]
		usable = usable || h.Usable
		switch h.State {
		case flow.HopDrained:
			drained++
		case flow.HopUp:
			up = up || h.Usable
		case flow.HopUntried:
			untried = untried || h.Usable
		case flow.HopReturning:
			returning = true
		}
	}
	switch {
	case len(t.Hops) > 0 && drained == len(t.Hops):
		add(flow.ReasonHopsDrained, "has no hop: %s", hopsText(t.Hops))
	case !usable && len(t.Hops) > 0:
		add(flow.ReasonHopsDown, "has no hop: %s", hopsText(t.Hops))
	}
	switch {
	case up:
		return flow.Up
	case untried, len(t.Hops) == 0:
		return flow.Untried
	case returning:
		return flow.Returning
	}
	return flow.Down
}

// hopsText lists hops with their states.
func hopsText(hops []flow.Hop) string {
	all := make([]string, len(hops))
	for i, h := range hops {
		all[i] = h.Name + " is " + string(h.State)
		if h.State != flow.HopDrained && h.LastError != "" {
			all[i] += " (" + h.LastError + ")"
		}
	}
	return strings.Join(all, ", ")
}

// ofPair decides by the pair of a tunnel with one far relay.
func ofPair(p *flow.PairHop, add func(flow.Reason, string, ...any)) flow.UseState {
	switch {
	case p.State == flow.HopUp:
		return flow.Up
	case p.State == flow.HopUntried:
		return flow.Untried
	case p.Reason == flow.ReasonHopsDown:
		add(p.Reason, "has no hop: %s", p.Why)
	case p.Error != "":
		add(p.Reason, "has no session: %s (%s)", p.Why, p.Error)
	default:
		add(p.Reason, "has no session: %s", p.Why)
	}
	return flow.Down
}

// isFull reports whether a tunnel is at its limit of flows. One that was there takes
// new flows once a tenth is free.
func isFull(t *flow.Tunnel, was bool) bool {
	limit := int64(t.FlowsLimit)
	if was {
		limit -= limit / 10
	}
	return t.FlowsLimit > 0 && t.FlowsNow >= limit
}

package usable

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"longhaul/internal/carry/flow"
)

// MaxEvents bounds the events that a Judge remembers. Of the subject that has most of them the
// oldest goes, so that one that flaps takes no room from the others.
const MaxEvents = 1000

// ring holds the latest events, the oldest first.
type ring struct {
	all   []flow.Event
	count map[subject]int  // of all
	add   func(flow.Event) // nil: nobody else keeps them
}

func subjectOf(e *flow.Event) subject { return subject{e.Kind, e.Tunnel, e.Subject} }

func (r *ring) put(e flow.Event) {
	r.append(e)
	if r.add != nil {
		r.add(e)
	}
}

// append adds the events at the end.
func (r *ring) append(events ...flow.Event) {
	if r.count == nil {
		r.count = map[subject]int{}
	}
	for i := range events {
		r.all = append(r.all, events[i])
		r.count[subjectOf(&events[i])]++
	}
	for len(r.all) > MaxEvents {
		r.drop()
	}
}

// drop forgets the oldest event of the subject that has most of them.
func (r *ring) drop() {
	most := 0
	for _, n := range r.count {
		most = max(most, n)
	}
	at := slices.IndexFunc(r.all, func(e flow.Event) bool { return r.count[subjectOf(&e)] == most })
	if of := subjectOf(&r.all[at]); most > 1 {
		r.count[of]--
	} else {
		delete(r.count, of)
	}
	r.all = slices.Delete(r.all, at, at+1)
}

// Memory is what a Judge knows of changes, for the succeeding process.
type Memory struct {
	Events []flow.Event `json:"events,omitempty"`
	States []State      `json:"states,omitempty"`
}

// State is the present state of a subject of events.
type State struct {
	Kind    string      `json:"kind"`
	Tunnel  string      `json:"tunnel,omitempty"`
	Subject string      `json:"subject,omitempty"`
	State   string      `json:"state"`
	Reason  flow.Reason `json:"reason,omitempty"`
	Since   time.Time   `json:"since"`
}

// Memory returns what the succeeding process has to know.
func (j *Judge) Memory() Memory {
	j.mu.Lock()
	defer j.mu.Unlock()
	m := Memory{Events: slices.Clone(j.log.all)}
	for s, now := range j.known {
		m.States = append(m.States, State{s.kind, s.tunnel, s.name, now.state, now.reason, now.since})
	}
	return m
}

// Remember takes over from the process before, or from a file, of whose events those count that
// are older than any that this Judge has.
func (j *Judge) Remember(m Memory) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range m.States {
		s := subject{e.Kind, e.Tunnel, e.Subject}
		j.known[s] = &seen{subject: s, state: e.State, reason: e.Reason, since: e.Since}
	}
	before := m.Events
	if len(j.log.all) > 0 { // the file may have these already, of which it keeps milliseconds
		began := j.log.all[0].At.Truncate(time.Millisecond)
		before = slices.DeleteFunc(slices.Clone(before), func(e flow.Event) bool { return !e.At.Before(began) })
	}
	j.order = nil
	own := j.log.all
	j.log.all, j.log.count = nil, nil
	j.log.append(slices.Concat(before, own)...)
}

// Tell has add called with each event from now on. It must not wait, nor call this Judge.
func (j *Judge) Tell(add func(flow.Event)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.log.add = add
}

// Events returns those since a time that are remembered, the oldest first.
func (j *Judge) Events(since time.Time) []flow.Event {
	j.mu.Lock()
	defer j.mu.Unlock()
	at, _ := slices.BinarySearchFunc(j.log.all, since, func(e flow.Event, since time.Time) int { return e.At.Compare(since) })
	return append([]flow.Event{}, j.log.all[at:]...)
}

// Begin notes that this process serves: for the first time, or in place of another.
func (j *Judge) Begin(follows bool, version string, pid int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	from := "stopped"
	if follows {
		from = "another process"
	}
	j.log.put(flow.Event{At: time.Now(), Kind: flow.EventRelay, From: from, To: serving, Reason: fmt.Sprintf("%s, process %d", version, pid)})
}

// Note records the state of something that Decide does not see.
func (j *Judge) Note(kind, tunnel, name, state, detail string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.see(subject{kind, tunnel, name}, seen{state: state, detail: detail}, time.Now())
}

// see records a state, and returns what is known of its subject now.
func (j *Judge) see(s subject, next seen, now time.Time) *seen {
	known := j.known[s]
	if known == nil {
		known = &seen{subject: s, state: next.state, reason: next.reason, since: now}
		switch { // where that is known
		case s.kind == flow.EventPair && next.state == pairUp:
			known.state = pairConnecting // its first session has come up
		case s.kind == flow.EventConfiguration:
			known.state = confirmed
		}
		j.known[s] = known
	}
	j.change(known, next, now)
	return known
}

// The states of a pair before and after its first session comes up, as [flow.Session.State] has them.
const (
	pairConnecting = "connecting"
	pairUp         = "up"
)

// confirmed is the state of a relay's configuration before any `reload --confirm`.
const confirmed = "confirmed"

// change records a state. Another one is an event, but for the first of a subject: nobody knows
// what it was before.
func (j *Judge) change(known *seen, next seen, now time.Time) {
	if known.state == next.state && known.reason == next.reason {
		return
	}
	s := known.subject
	j.log.put(flow.Event{At: now, Kind: s.kind, Tunnel: s.tunnel, Subject: s.name, From: known.state, To: next.state, Reason: next.detail})
	known.state, known.reason, known.since = next.state, next.reason, now
}

// ofRelay are the reasons that hold for all tunnels: one event tells of them.
var ofRelay = map[flow.Reason]bool{flow.ReasonDraining: true, flow.ReasonPaused: true, flow.ReasonShedding: true, flow.ReasonResources: true}

// serving is the state of a relay that none of these reasons holds for.
const serving = "serving"

// ownState is that of a tunnel without the reasons that hold for all tunnels. All others count, not
// the first alone: an outage that begins while a tunnel is drained is a change.
func ownState(t *flow.Tunnel, behind flow.UseState) seen {
	own := seen{state: string(behind)}
	var details []string
	for _, p := range t.Usability.Problems {
		if ofRelay[p.Reason] {
			continue
		}
		if own.reason != "" {
			own.reason += " "
		}
		own.reason += p.Reason
		details = append(details, p.Detail)
	}
	own.detail = strings.Join(details, "; ")
	return own
}

// note compares the relay, its tunnels and their hops with what was known of them.
// behind has the state of each tunnel without those reasons that hold for all.
func (j *Judge) note(tunnels []flow.Tunnel, behind []flow.UseState, now time.Time) {
	at, same := 0, true
	see := func(s subject, state seen) time.Time {
		var known *seen
		if same = same && at < len(j.order) && j.order[at].subject == s; same {
			known = j.order[at]
			j.change(known, state, now)
		} else {
			known = j.see(s, state, now)
			j.order = append(j.order[:at], known)
		}
		at++
		return known.since
	}
	whole := seen{state: serving}
	since := make([]time.Time, len(tunnels))
	for i := range tunnels {
		t := &tunnels[i]
		if t.State == string(flow.ReasonRemoved) {
			continue // only its flows are left
		}
		for _, p := range t.Usability.Problems {
			if ofRelay[p.Reason] {
				whole = seen{state: string(p.Reason), detail: p.Detail}
			}
		}
		since[i] = see(subject{flow.EventTunnel, t.Name, ""}, ownState(t, behind[i]))
		for k := range t.Hops {
			h := &t.Hops[k]
			state := seen{state: string(h.State)}
			if !h.Usable && h.State != flow.HopDrained {
				state.detail = h.LastError
			}
			see(subject{flow.EventHop, t.Name, h.Name}, state)
		}
	}
	relaySince := see(subject{kind: flow.EventRelay}, whole)
	for i := range tunnels {
		t := &tunnels[i]
		if t.Usability.Since = since[i]; ofRelay[t.Usability.Reason()] || t.State != string(flow.ReasonRemoved) && relaySince.After(since[i]) {
			t.Usability.Since = relaySince // also of a relay that serves again
		}
	}
	if same && at == len(j.order) {
		return
	}
	j.order = j.order[:at]
	here := map[*seen]bool{}
	for _, known := range j.order {
		here[known] = true
	}
	for s, known := range j.known {
		if (s.kind == flow.EventTunnel || s.kind == flow.EventHop) && !here[known] {
			j.change(known, seen{state: string(flow.ReasonRemoved)}, now)
			delete(j.known, s)
		}
	}
}

// Package trace judges a flow that several relays describe, from its client to its target: which part of the
// way limits it.
package trace

import (
	"fmt"
	"slices"

	"longhaul/internal/carry/flow"
	"longhaul/internal/find/doctor"
	"longhaul/internal/words/display"
)

// Report is a flow from end to end.
type Report struct {
	flow.Trace
	Limit Limit `json:"limit"`
}

// Limit is the part of the way that limits a flow.
type Limit struct {
	Part      Kind         `json:"part,omitempty"`      // empty: not known, or nothing moves
	Index     int          `json:"index"`               // of the leg, from the client's; -1: Part is none
	Direction Direction    `json:"direction,omitempty"` // of the bytes that it limits
	Cause     doctor.Cause `json:"cause,omitempty"`     // empty: none stands out
	Text      string       `json:"text"`                // the same in a sentence without a stop
}

// Kind is a part of the way.
type Kind string

// The parts of the way. The two programs are parts as well: they may have nothing to send.
const (
	Client    Kind = "client"
	ClientLeg Kind = "client-leg"
	WAN       Kind = "wan"
	TargetLeg Kind = "target-leg"
	Target    Kind = "target"
)

// Direction is the way that bytes take.
type Direction string

// The directions.
const (
	Up   Direction = "up" // to the target
	Down Direction = "down"
)

// leg is a connection of the way, as the senders at its two ends see it.
type leg struct {
	kind         Kind
	before, next *flow.TraceRelay // that send up and down on it; nil: a client, a target, or a relay that has not answered
	up, down     *flow.TraceLeg   // nil: not known
}

func (l *leg) sender(d Direction) *flow.TraceLeg {
	if d == Up {
		return l.up
	}
	return l.down
}

// held is what the relay that sends in a direction keeps until the relay at the other end acknowledges it.
func (l *leg) held(d Direction) int64 {
	switch {
	case l.kind != WAN:
	case d == Up && l.before != nil:
		return max(l.before.HeldUp, 0)
	case d == Down && l.next != nil:
		return max(l.next.HeldDown, 0)
	}
	return 0
}

// waits is the number of bytes that wait for the leg's other end, or for room.
func (l *leg) waits(d Direction) int64 { return max(l.held(d), waiting(l.sender(d))) }

// receiver names the relay that receives in a direction.
func (l *leg) receiver(d Direction) string {
	if d == Up {
		return nameOf(l.next, l.up)
	}
	return nameOf(l.before, l.down)
}

// legsOf are the legs of a trace, the client's first.
func legsOf(t *flow.Trace) (all []leg) {
	for i := range t.Relays {
		r := &t.Relays[i]
		first := leg{kind: ClientLeg, next: r, down: &r.Legs[0]}
		if r.Legs[0].Lane {
			first.kind = WAN
		}
		if i > 0 {
			first.before, first.up = &t.Relays[i-1], &t.Relays[i-1].Legs[1]
		}
		all = append(all, first)
	}
	if n := len(t.Relays); n > 0 {
		r := &t.Relays[n-1]
		last := leg{kind: TargetLeg, before: r, up: &r.Legs[1]}
		if r.Legs[1].Lane {
			last.kind = WAN
		}
		all = append(all, last)
	}
	return all
}

// Assess judges a trace. Each relay names what limits it as a sender, so of several the one nearest to the
// receiver counts: what is before it waits for it. A relay that waits for data to send is no limit.
func Assess(t flow.Trace) Report {
	return Report{t, judge(&t, legsOf(&t))}
}

func judge(t *flow.Trace, legs []leg) Limit {
	for i := range t.Relays {
		switch r := &t.Relays[i]; r.State {
		case flow.StateResuming:
			at := i
			if r.Legs[1].Lane {
				at++
			}
			return legs[at].limits(at, "", doctor.Outage, "its connection is lost, and another is awaited")
		case flow.StateDialing:
			if i == len(t.Relays)-1 {
				return Limit{Part: Target, Index: -1, Text: "the target: no connection to it stands yet"}
			}
		}
	}
	d := direction(t, legs)
	if d == "" {
		text := "nothing: no byte moves, and none waits"
		if len(t.Missing) > 0 {
			text += " here"
		}
		return Limit{Index: -1, Text: text}
	}
	order := make([]int, len(legs))
	for i := range order {
		order[i] = i
		if d == Up {
			order[i] = len(legs) - 1 - i
		}
	}
	most := -1
	for _, i := range order {
		l := legs[i].sender(d)
		switch {
		case l == nil:
		case l.Cause != "" && doctor.Cause(l.Cause) != doctor.Application:
			return legs[i].limits(i, d, doctor.Cause(l.Cause), legs[i].explain(d, doctor.Cause(l.Cause)))
		case isFull(l) && (most < 0 || legs[i].waits(d) > legs[most].waits(d)):
			most = i
		}
	}
	moves := measured(t)
	if owes := owing(legs, order, d); owes >= 0 && !moves && (most < 0 || most == owes) {
		return legs[owes].limits(owes, d, "", legs[owes].owed(d))
	}
	if most >= 0 {
		return legs[most].limits(most, d, "", display.Quantity(legs[most].waits(d))+"B wait there, and no cause stands out: longhaul doctor looks closer")
	}
	if !moves {
		return Limit{Index: -1, Direction: d, Text: "an unknown part: the flow is not watched for a second yet"}
	}
	origin, end, kind := legs[order[len(order)-1]], Client, ClientLeg
	if d == Down {
		end, kind = Target, TargetLeg
	}
	if origin.kind != kind { // the relay before did not answer
		return Limit{Index: -1, Direction: d, Text: "what lies before the relays that answer: they pass on at once what comes"}
	}
	return Limit{Part: end, Index: -1, Direction: d, Cause: doctor.Application,
		Text: fmt.Sprintf("the %s, %s: %s, the relays wait for its data", end, d, doctor.Application)}
}

// owing is the leg nearest to the receiver over which a relay waits for another one's acknowledgement; -1: none.
func owing(legs []leg, order []int, d Direction) int {
	for _, i := range order {
		if legs[i].held(d) > 0 {
			return i
		}
	}
	return -1
}

// owed says what the relay that receives has not acknowledged.
func (l *leg) owed(d Direction) string {
	return l.receiver(d) + " has not acknowledged " + display.Quantity(l.held(d)) + "B"
}

// limits is the verdict on a leg.
func (l *leg) limits(i int, d Direction, c doctor.Cause, why string) Limit {
	text := "the " + l.text()
	if before, next := nameOf(l.before, l.down), nameOf(l.next, l.up); l.kind == WAN && before != unnamed && next != unnamed {
		text += " between " + before + " and " + next
	}
	if d != "" {
		text += ", " + string(d)
	}
	switch {
	case c != "" && why != "":
		text += ": " + string(c) + ", " + why
	case c != "" || why != "":
		text += ": " + string(c) + why
	}
	return Limit{Part: l.kind, Index: i, Direction: d, Cause: c, Text: text}
}

func (l *leg) text() string {
	switch l.kind {
	case ClientLeg:
		return "client leg"
	case TargetLeg:
		return "target leg"
	}
	return "WAN"
}

// unnamed is a relay that has not answered, and whose name is not known.
const unnamed = "the other relay, or what lies behind it,"

// nameOf is a relay in a sentence. One that has not answered (nil) has the name that the other end of its leg,
// as that relay sees it, gives it.
func nameOf(r *flow.TraceRelay, other *flow.TraceLeg) string {
	switch {
	case r == nil && other != nil && other.Peer != "":
		return other.Peer
	case r == nil:
		return unnamed
	case r.Relay == "":
		return "this relay"
	}
	return r.Relay
}

// explain says who reads slowly, and which relay lacks memory.
func (l *leg) explain(d Direction, c doctor.Cause) string {
	sends := l.before
	if d == Down {
		sends = l.next
	}
	switch {
	case c == doctor.SendBuffer && l.kind == WAN && sends != nil && sends.Pair != nil && sends.Pair.MemoryLimited:
		return "limited by the memory of " + nameOf(sends, nil) + ": raise its memory_limit"
	case c == doctor.Outage && l.held(d) > 0:
		return l.owed(d)
	case c != doctor.Reader:
		return ""
	case l.kind == ClientLeg:
		return "the client's program does not keep up"
	case l.kind == TargetLeg:
		return "the target's program does not keep up"
	}
	return l.receiver(d) + " does not keep up"
}

// measured reports whether a rate is known.
func measured(t *flow.Trace) bool {
	return slices.ContainsFunc(t.Relays, func(r flow.TraceRelay) bool { return r.UpBps > 0 || r.DownBps > 0 })
}

// direction is the one in which most moves, or waits if nothing moves; empty: neither.
func direction(t *flow.Trace, legs []leg) Direction {
	var up, down float64
	for i := range t.Relays {
		up, down = max(up, t.Relays[i].UpBps), max(down, t.Relays[i].DownBps)
	}
	if up == 0 && down == 0 {
		for i := range legs {
			up, down = max(up, float64(legs[i].waits(Up))), max(down, float64(legs[i].waits(Down)))
		}
	}
	switch {
	case up == 0 && down == 0:
		return ""
	case up >= down:
		return Up
	}
	return Down
}

// waiting is the number of bytes that the kernel has for a leg's peer, or for room.
func waiting(l *flow.TraceLeg) int64 {
	if l == nil {
		return 0
	}
	return max(l.Unacknowledged, 0) + max(l.NotSent, 0)
}

// isFull reports whether the leg has more to send than it may: bytes are not sent yet, or most of the
// congestion window is under way.
func isFull(l *flow.TraceLeg) bool {
	return doctor.Cause(l.Cause) != doctor.Application && l.NotSent > 0 || l.CongestionWindow > 0 && 4*l.Unacknowledged >= 3*l.CongestionWindow
}

// Command check breaks a chain of three relays in known ways, and compares the
// verdicts of longhaul check.
package main

import (
	"fmt"
	"time"

	"longhaul/internal/carry/integrity"
	"longhaul/lab/link"
)

// Case is a chain with a known fault, and the verdict that a check should have:
//
//	relay-a ══ab══ relay-b ══bc══ relay-c ══ct══ target
type Case struct {
	Name string
	want Verdict

	down   string     // program that does not run: relay-b, relay-c or target
	cut    string     // link that carries nothing
	resets bool       // target accepts and resets
	proxy  bool       // relays forward PROXY headers
	alter  alteration // by a program between two relays
	loss   map[string][2]link.Loss
	narrow bool   // queue of link bc overflows
	socat  string // leg with a socat in it: bc
}

// Verdict is the fault that a check found, and its place.
type Verdict struct {
	State  integrity.State  `json:"state"`
	Reason integrity.Reason `json:"reason,omitempty"`
	// From and To are the hosts on either side of the fault.
	From      string `json:"from,omitempty"`
	To        string `json:"to,omitempty"`
	Direction string `json:"direction,omitempty"`
}

func (v Verdict) String() string {
	if v.Reason == "" {
		return string(v.State)
	}
	s := fmt.Sprintf("%s: %s, %s to %s", v.State, v.Reason, v.From, v.To)
	if v.Direction != "" {
		s += ", " + v.Direction
	}
	return s
}

// alteration is the change that a program in the chain makes.
type alteration struct {
	leg       string // ab or bc; empty: no such program
	direction string // up, down or both
	at        int64  // the offset of the byte that it flips; negative: one in
	every     int64  // that number of bytes, on average
}

// The paths of the chain.
var (
	pathAB = link.Settings{Delay: 10 * time.Millisecond, RateBps: 500e6, MTU: 1500}
	pathBC = link.Settings{Delay: 15 * time.Millisecond, RateBps: 200e6, MTU: 1500}
	// An exchange fills narrow, and its queue overflows.
	narrow = link.Settings{Delay: 15 * time.Millisecond, RateBps: 40e6, QueueBytes: 100_000, MTU: 1500}
	pathCT = link.Settings{Delay: 200 * time.Microsecond, RateBps: 1e9, MTU: 1500}
)

func broken(reason integrity.Reason, from, to string) Verdict {
	return Verdict{State: integrity.Broken, Reason: reason, From: from, To: to}
}

func altered(leg, direction string) Verdict {
	v := broken(integrity.Altered, "relay-a", "relay-b")
	if leg == "bc" {
		v = broken(integrity.Altered, "relay-b", "relay-c")
	}
	v.Direction = direction
	return v
}

func losing(leg, direction string) Verdict {
	v := altered(leg, direction)
	v.State, v.Reason = integrity.Lossy, integrity.Losing
	return v
}

// Cases returns all cases.
func Cases() []Case {
	whole := Verdict{State: integrity.Whole}
	percent := func(ab, ba float64) [2]link.Loss {
		return [2]link.Loss{{Probability: ab / 100}, {Probability: ba / 100}}
	}
	on := func(leg string, loss [2]link.Loss) map[string][2]link.Loss {
		return map[string][2]link.Loss{leg: loss}
	}
	return []Case{
		{Name: "whole", want: whole},
		{Name: "whole-proxy-headers", want: whole, proxy: true},
		{Name: "whole-socat", want: whole, socat: "bc"},
		{Name: "whole-narrow", want: whole, narrow: true},

		{Name: "relay-b-down", want: broken(integrity.Refused, "relay-a", "relay-b"), down: "relay-b"},
		{Name: "relay-c-down", want: broken(integrity.Refused, "relay-b", "relay-c"), down: "relay-c"},
		{Name: "link-ab-cut", want: broken(integrity.TimedOut, "relay-a", "relay-b"), cut: "ab"},
		{Name: "link-bc-cut", want: broken(integrity.TimedOut, "relay-b", "relay-c"), cut: "bc"},

		{Name: "target-down", want: broken(integrity.Refused, "relay-c", "target"), down: "target"},
		{Name: "link-ct-cut", want: broken(integrity.TimedOut, "relay-c", "target"), cut: "ct"},
		{Name: "target-resets", want: broken(integrity.Reset, "relay-c", "target"), resets: true},

		{Name: "altered-ab-hello", want: altered("ab", "up"), alter: alteration{leg: "ab", direction: "up", at: 20}},
		{Name: "altered-ab-data", want: altered("ab", "down"), alter: alteration{leg: "ab", direction: "down", at: 700_000}},
		{Name: "altered-bc-frame", want: altered("bc", "down"), alter: alteration{leg: "bc", direction: "down", at: 170}},
		{Name: "altered-bc-data", want: altered("bc", "up"), alter: alteration{leg: "bc", direction: "up", at: 500_000}},
		{Name: "altered-bc-now-and-then", want: altered("bc", "up"), alter: alteration{leg: "bc", direction: "both", at: -1, every: 50_000}},

		{Name: "lossy-ab-up", want: losing("ab", "up"), loss: on("ab", percent(1, 0))},
		{Name: "lossy-ab-both", want: losing("ab", "both"), loss: on("ab", percent(1.5, 1.5))},
		{Name: "lossy-bc-up", want: losing("bc", "up"), loss: on("bc", percent(2, 0))},
		{Name: "lossy-bc-down", want: losing("bc", "down"), loss: on("bc", percent(0, 1))},
		{Name: "lossy-bc-bursts", want: losing("bc", "up"), loss: on("bc", [2]link.Loss{{ToBad: 0.008, ToGood: 0.4, BadProbability: 1}, {}})},
	}
}

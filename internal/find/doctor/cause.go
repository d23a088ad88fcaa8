package doctor

import (
	"fmt"
	"slices"
)

// Cause is what limits a connection.
type Cause string

// The causes. Healthy is a connection that fills its path and needs no remedy.
// Congestion is a path full of other connections' data. Reader is the receiving program,
// and Application the sending one. Nagle is TCP's wait for an acknowledgement before it
// sends less than a segment. Outage is a path that is down, or that has forgotten the
// connection. Reset is an end that cut a transfer. PairDown is a pair of relays without a session.
const (
	Healthy                 Cause = "healthy"
	Application             Cause = "application"
	Reader                  Cause = "reader"
	Nagle                   Cause = "nagle"
	ReceiverWindow          Cause = "receiver-window"
	WindowScaling           Cause = "window-scaling"
	SendBuffer              Cause = "send-buffer"
	RandomLoss              Cause = "random-loss"
	Congestion              Cause = "congestion"
	Policer                 Cause = "policer"
	Reordering              Cause = "reordering"
	SpuriousRetransmissions Cause = "spurious-retransmissions"
	SegmentSize             Cause = "segment-size"
	BlackHole               Cause = "black-hole"
	AsymmetricMTU           Cause = "asymmetric-mtu"
	Pacing                  Cause = "pacing"
	ShortFlow               Cause = "short-flow"
	CPU                     Cause = "cpu"
	Outage                  Cause = "outage"
	Reset                   Cause = "reset"
	PairDown                Cause = "pair-down"
	Unexplained             Cause = "unexplained"
	// Loss is lost segments without a queue. Only a glance names it: to tell random loss
	// from a policer takes a trial.
	Loss Cause = "loss"
	// Stalled is a connection without acknowledgements. Only a glance names it: to tell a
	// black hole from an outage takes probes.
	Stalled Cause = "stall"
)

// rule looks for one cause, and returns nil if the figures do not indicate it.
// Comparisons fail for an unknown figure.
type rule func(*patient) *Finding

// causeEntry is all that doctor knows of one cause. Each has a file of its own.
type causeEntry struct {
	cause Cause
	rule  rule // nil: another's finds it
	// standstill: the rule is for a connection that stands still. Others need one that
	// moves.
	standstill bool
	// glances: two samples show it.
	glances bool
	// sentence is the verdict for a reader without knowledge of TCP.
	sentence func(*Report) string
	// remedies are the remedies, the usual one first; nil: none.
	remedies func(*patient) []Remedy
	// doubt says how to make the verdict certain; empty, or nil: it is.
	doubt func(*patient) string
	// likely: the evidence is strong in spite of the doubt; nil: never.
	likely func(*patient) bool
	// byTiming: its figures are delays and gaps, which a host without CPU time to spare
	// makes itself.
	byTiming bool
	// byProgram: the same of gaps that only the program makes.
	byProgram bool
	// relayed: a relay at each site removes it from the long leg. Those are the limits of
	// both end hosts and of the sender's congestion control. The path, the program and
	// the sizes of its transfers stay.
	relayed bool
	// ends: nothing moves after it, so no rate is predicted without it.
	ends bool
	// needsNone: there is nothing to remove.
	needsNone bool
}

// causes is the table of all causes, in order of precedence for findings with the same
// gain.
var causes []*causeEntry

func init() {
	causes = []*causeEntry{
		&blackHoleCause, &outageCause, &resetCause,
		&shortFlowCause, &pacingCause, &nagleCause, &cpuCause, &readerCause, &windowScalingCause, &receiverWindowCause,
		&sendBufferCause, &applicationCause, &segmentSizeCause, &asymmetricMTUCause, &reorderingCause, &spuriousCause,
		&policerCause, &congestionCause, &randomLossCause, &healthyCause,
		&pairDownCause, &lossCause, &stallCause, &unexplainedCause,
	}
}

// Causes returns all causes.
func Causes() []Cause {
	all := make([]Cause, len(causes))
	for i, e := range causes {
		all[i] = e.cause
	}
	return all
}

// entry returns the table's entry of a cause; that of Unexplained if it has none.
func (c Cause) entry() *causeEntry {
	if i := slices.IndexFunc(causes, func(e *causeEntry) bool { return e.cause == c }); i >= 0 {
		return causes[i]
	}
	return &unexplainedCause
}

// IsNone reports whether the cause needs no removal.
func (c Cause) IsNone() bool { return c.entry().needsNone }

// limited returns the sentence of a cause that limits a connection to a rate, for which
// the text has a verb.
func limited(text string) func(*Report) string {
	return func(r *Report) string { return fmt.Sprintf(text, r.gets()) + r.could() }
}

package doctor

import (
	"fmt"
	"slices"
)

// Cause is what limits a connection.
type Cause string

// The causes. Healthy is a connection that fills its path and needs no remedy.
// Congestion is a path full of other connections' data. Reader is the receiving program,
// and Application the sending one. Outage is a path that is down, or that has forgotten
// the connection. PairDown is a pair of relays without a session.
const (
	Healthy        Cause = "healthy"
	Application    Cause = "application"
	Reader         Cause = "reader"
	ReceiverWindow Cause = "receiver-window"
	WindowScaling  Cause = "window-scaling"
	SendBuffer     Cause = "send-buffer"
	RandomLoss     Cause = "random-loss"
	Congestion     Cause = "congestion"
	Policer        Cause = "policer"
	Reordering     Cause = "reordering"
	SegmentSize    Cause = "segment-size"
	BlackHole      Cause = "black-hole"
	AsymmetricMTU  Cause = "asymmetric-mtu"
	Pacing         Cause = "pacing"
	ShortFlow      Cause = "short-flow"
	CPU            Cause = "cpu"
	Outage         Cause = "outage"
	PairDown       Cause = "pair-down"
	Unexplained    Cause = "unexplained"
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
	// relayed: a relay at each site removes it from the long leg. Those are the limits of
	// both end hosts and of the sender's congestion control. The path, the program and
	// the sizes of its transfers stay.
	relayed bool
	// needsNone: there is nothing to remove.
	needsNone bool
}

// causes is the table of all causes, in order of precedence for findings with the same
// gain.
var causes []*causeEntry

func init() {
	causes = []*causeEntry{
		&blackHoleCause, &outageCause,
		&shortFlowCause, &pacingCause, &cpuCause, &readerCause, &windowScalingCause, &receiverWindowCause,
		&sendBufferCause, &applicationCause, &segmentSizeCause, &asymmetricMTUCause, &reorderingCause,
		&policerCause, &congestionCause, &randomLossCause, &healthyCause,
		&pairDownCause, &unexplainedCause,
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

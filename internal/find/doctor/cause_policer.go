package doctor

import (
	"fmt"
	"math"
	"time"

	"longhaul/internal/words/units"
)

var policerCause = causeEntry{
	cause: Policer, rule: policer, byTiming: true, relayed: true, remedies: policerRemedies,
	sentence: limited("A policer on the path drops packets above a rate. The sender loses more than necessary: it gets %s."),
}

// policer: a policer drops packets above a rate, without a queue before it.
func policer(c *patient) *Finding {
	f, t := c.f, c.o.Capacity
	// With few segments under way, acknowledgements that wait for a second
	// segment look like a queue.
	if t == nil || f.Steady > 0.5 || f.SlowStart || !(f.CwndUsed > 0.5) {
		return nil
	}
	if !(t.LossShare > 2*c.lost && t.DropsWithoutQueue() && t.RTT-t.MinRTT < noQueue+t.MinRTT/30) {
		return nil
	}
	if c.lost == 0 && !(t.LossShare > 0.1 && trialQueue(t) < 0.1) {
		return nil // one sign is not enough
	}
	finding := &Finding{Cause: Policer, BoundBps: c.goodput, pathShare: belowPolicer, PredictedBps: max(belowPolicer*c.path, c.goodput), Next: "the policer", Evidence: []string{
		fmt.Sprintf("%s of the segments are lost at %s, and %s at %s, without a queue: a policer drops packets above a rate", percent(c.lost), units.FormatRate(c.goodput), percent(t.LossShare), units.FormatRate(t.GoodputBps)),
	}}
	if more := c.o.MoreStreams; c.policesConnections() {
		finding.Evidence = append(finding.Evidence, fmt.Sprintf("%d connections get %s together, and %d get %s: each has the limit, not all of them",
			t.Streams, units.FormatRate(t.GoodputBps), more.Streams, units.FormatRate(more.GoodputBps)))
	}
	return finding
}

// belowPolicer is the share of a policer's rate that a sender gets.
const belowPolicer = 0.95

// policesConnections reports whether what drops packets without a queue has a limit for each
// connection: twice as many get nearly twice as much. With random losses the share of losses
// would not grow with the rate.
func (c *patient) policesConnections() bool {
	t, more := c.o.Capacity, c.o.MoreStreams
	return t != nil && more != nil && more.Streams > t.Streams && !more.WindowLimited && t.LossShare > 2*c.lost &&
		t.DropsWithoutQueue() && more.DropsWithoutQueue() && more.each() > 0.8*t.each()
}

// noQueue is the variation of a round trip without a queue: acknowledgements wait for
// a second segment, and connections for each other.
const noQueue = 10 * time.Millisecond

func trialQueue(t *Trial) float64 {
	if t.MinRTT <= 0 {
		return 0
	}
	return float64(t.RTT-t.MinRTT) / float64(t.MinRTT)
}

func policerRemedies(c *patient) []Remedy {
	host, _ := c.far()
	haul := c.haul()
	haul.Notes = c.lanesUnknown()
	held := math.Round(0.97*zeroIfInf(c.path)*float64(c.f.MSS+c.f.Headers)/float64(max(c.f.MSS, 1))/1e4) / 100
	if held == 0 {
		return []Remedy{haul}
	}
	return []Remedy{haul, {
		Action: fmt.Sprintf("send at %.2f Mb/s, just below the policer's rate", held), Place: Sender,
		Command: fmt.Sprintf("longhaul cc use brutal --to %s --rate %.2fMbit", host, held),
		Apply:   []string{"cc", "use", "brutal", "--to", host, "--rate", fmt.Sprintf("%.2fMbit", held)},
		Undo:    []string{"cc", "undo", "--to", host},
		Others:  []string{"Linux without longhaul: tc qdisc replace dev DEVICE root fq maxrate " + fmt.Sprintf("%.2fmbit", held)},
	}}
}

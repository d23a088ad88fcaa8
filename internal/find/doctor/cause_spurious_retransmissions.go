package doctor

import "fmt"

var spuriousCause = causeEntry{
	cause: SpuriousRetransmissions, rule: spurious, doubt: spuriousDoubt, byTiming: true, relayed: true,
	remedies: func(c *patient) []Remedy { return []Remedy{c.haul()} },
	likely:   func(c *patient) bool { return c.counts.Segments >= 2*manyFull },
	sentence: limited("The sender retransmits what has arrived, and slows down for it: it gets %s."),
}

// severalSpurious is the number of needless retransmissions that are no accident.
const severalSpurious = 3

// spurious: the receiver already had what the sender retransmitted, and no segment was
// overtaken: time-outs and tail loss probes came too early, or acknowledgements were lost.
func spurious(c *patient) *Finding {
	f, n := c.f, &c.counts
	if n.Spurious < severalSpurious || reordering(c) != nil || healthy(c) != nil {
		return nil
	}
	share, least := f.SpuriousShare, 0.001
	if c.captured() {
		share, least = float64(n.Spurious)/float64(max(n.Retransmitted, 1)), 0.005
	}
	// Each time-out cuts the window to one segment.
	timeouts := n.AfterTimeout >= severalSpurious
	needless := share * max(n.lossShare(), zeroIfNaN(f.LossShare))
	slows := needless > least && lossBoundBps(c.o.CongestionControl, f.MSS, max(f.RTT, f.MinRTT), needless) < maxOfModel*c.goodput
	if !(share >= 0.5 && (timeouts || slows)) {
		return nil
	}
	evidence := []string{fmt.Sprintf("the receiver already had %d of %s", min(n.Spurious, n.Retransmitted), plural(n.Retransmitted, "retransmitted segment"))}
	if reasons := n.reasons(); len(reasons) > 1 {
		evidence[0] += fmt.Sprintf(" (%s)", reasons)
	}
	if n.OutOfOrder+n.Overtaken == 0 {
		evidence = append(evidence, "no segment overtook another")
	}
	return &Finding{Cause: SpuriousRetransmissions, BoundBps: c.goodput, Evidence: evidence}
}

func spuriousDoubt(c *patient) string {
	if c.counts.Segments < 2*manyFull {
		return "few segments were sent: something else may limit the connection"
	}
	return "retransmission time-outs that are too short, and acknowledgements that get lost or delayed, look alike: capture at both ends"
}

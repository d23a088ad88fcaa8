package doctor

import (
	"fmt"
	"time"
)

var reorderingCause = causeEntry{
	cause: Reordering, rule: reordering, byTiming: true, relayed: true, remedies: reorderingRemedies,
	sentence: limited("The path reorders packets. The sender takes that for loss and slows down to %s."),
}

// reordering: the sender takes overtaken segments for lost ones.
func reordering(c *patient) *Finding {
	f := c.f
	if !c.reorders() {
		return nil
	}
	finding := &Finding{Cause: Reordering, BoundBps: c.goodput}
	if c.o.Capacity != nil {
		// The connections of the trial also suffer from it.
		finding.pathShare = 1.05
		finding.PredictedBps, finding.Next = max(finding.pathShare*c.capacity, c.goodput), "the path"
	}
	if c.captured() {
		finding.Evidence = append(finding.Evidence, "segments changed their order: "+c.counts.orderText(),
			fmt.Sprintf("the receiver already had %d of %s", min(c.counts.Spurious, c.counts.Retransmitted), plural(c.counts.Retransmitted, "retransmitted segment")))
		switch n := &c.counts; {
		case 2*n.Spurious < n.Retransmitted:
			finding.strength, finding.doubt = NotCertain, "most retransmissions were needed: losses may limit it more"
		case n.OutOfOrder+n.Overtaken < 10:
			finding.strength, finding.doubt = Likely, "few segments changed their order: losses may limit it more"
		}
		return finding
	}
	if f.Reordered > 0 {
		overtook := fmt.Sprintf("%.0f of a thousand segments overtook others", f.Reordered)
		if f.Reordering > 0 {
			overtook += fmt.Sprintf(", by up to %.0f", f.Reordering)
		}
		finding.Evidence = append(finding.Evidence, overtook)
	}
	if f.SpuriousShare > 0 {
		finding.Evidence = append(finding.Evidence, fmt.Sprintf("%s of the segments were retransmitted, and the receiver had %s of those already (DSACK)", percent(f.LossShare), percent(f.SpuriousShare)))
	}
	if c.looksOld() {
		finding.Evidence = append(finding.Evidence, fmt.Sprintf("at this rate that is up to %s, and TCP's timestamps can make both ends drop what looks older than earlier data (PAWS)",
			milliseconds(c.overtakes())))
	}
	return finding
}

// reorders reports whether segments overtake others, and the sender retransmits for it
// what the receiver already had. The latter alone also comes from a time-out or a probe
// that was too early. A capture shows the order, and a kernel counts what it learns of it.
func (c *patient) reorders() bool {
	f, n := c.f, &c.counts
	if c.captured() {
		return n.Spurious >= severalSpurious && n.OutOfOrder+n.Overtaken >= severalSpurious && 10*n.Spurious >= 3*n.Retransmitted && n.lossShare() > 0.001
	}
	needless := f.SpuriousShare > 0.3 && f.LossShare > 0.001 && n.Spurious >= severalSpurious
	return needless && !(f.Reordered == 0) || f.Reordered > 3
}

// overtakes returns the time by which segments overtake others: the kernel's estimate of
// reordering at the connection's goodput.
func (c *patient) overtakes() time.Duration {
	return time.Duration(zeroIfNaN(c.f.Reordering) * float64(c.f.MSS) * 8 / c.goodput * float64(time.Second))
}

// looksOld reports whether timestamps, of a millisecond each, make overtaken segments and
// acknowledgements look old, so that the ends drop them (PAWS, RFC 7323, section 5).
func (c *patient) looksOld() bool {
	return c.f.Timestamps && c.goodput > 0 && c.overtakes() >= 10*time.Millisecond
}

func reorderingRemedies(c *patient) []Remedy {
	if !c.looksOld() {
		return []Remedy{c.haul()}
	}
	return []Remedy{c.haul(), {
		Action: "turn TCP's timestamps off, at the receiver too: they can make both ends drop overtaken packets", Place: Sender,
		Command: "sysctl -w net.ipv4.tcp_timestamps=0",
	}}
}

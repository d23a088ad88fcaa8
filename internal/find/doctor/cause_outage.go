package doctor

import (
	"fmt"
	"time"
)

var outageCause = causeEntry{
	cause: Outage, ends: true, rule: outage, standstill: true, remedies: outageRemedies,
	sentence: func(r *Report) string {
		switch s := r.Counts.Stall; {
		case r.Observation.Capture == nil:
		case s.AtEnd:
			return "The other host no longer answers: it or the path is down, or something on the path has forgotten the connection."
		default:
			return fmt.Sprintf("The other host did not answer for %s: it or the path was down.", length(s.Time))
		}
		return "Nothing of the connection gets through: the path is down, or something on it has forgotten the connection."
	},
}

// outage: nothing of the connection gets through, and the packets' size is not the
// reason.
func outage(c *patient) *Finding {
	f, path := c.f, c.o.Path
	if c.captured() {
		return c.capturedOutage()
	}
	size := f.MSS + f.Headers
	if !c.stands() || path.DeviceMTU == 0 { // without probes nothing tells an outage from a black hole
		return nil
	}
	evidence := []string{fmt.Sprintf("no acknowledgement for %s, though the sender retransmitted", seconds(f.Stalled))}
	switch {
	case path.MTU >= size:
		evidence = append(evidence, fmt.Sprintf("other packets of %d bytes get through meanwhile: a NAT or a firewall on the path has forgotten the connection", size))
	case path.MTU == 0 && !path.Answers:
		evidence = append(evidence, "the far host answers nothing else either")
	default:
		return nil
	}
	return &Finding{Cause: Outage, Evidence: evidence}
}

// capturedOutage: retransmissions get no answer in a capture, and the peer is not heard.
func (c *patient) capturedOutage() *Finding {
	s := c.counts.Stall
	if !c.stands() || s.Heard > 0 || blackHole(c) != nil {
		return nil
	}
	finding := &Finding{Cause: Outage, Evidence: []string{c.stallEvidence(), "nothing of the peer was captured meanwhile"}}
	switch {
	case c.arrived():
		finding.strength, finding.doubt = Likely, "the data reached the capture: the receiving host may be down, or the way back"
	case !c.peerHeard():
		finding.strength, finding.doubt = Likely, "the capture has no packet of the peer: it may lack that direction"
	case !s.AtEnd:
		finding.Evidence[1] += ", and then it went on"
		finding.strength, finding.doubt = Likely, "a capture does not show which of the two was down"
	case s.Retransmissions < 3 || s.Time < 5*time.Second:
		finding.strength, finding.doubt = Likely, "the capture ends soon after: capture longer"
	}
	return finding
}

// stallEvidence says how long the connection stands.
func (c *patient) stallEvidence() string {
	s := c.counts.Stall
	return fmt.Sprintf("no acknowledgement for %s, though the sender retransmitted %s", length(s.Time), plural(s.Retransmissions, "time"))
}

func outageRemedies(c *patient) []Remedy {
	if c.captured() {
		return nil // a capture does not show which of them it is
	}
	if c.o.Path.MTU == 0 {
		return nil // the path is down
	}
	return []Remedy{{Action: "have the program send TCP keepalives more often than a NAT or a firewall on the path forgets connections", Place: InProgram}}
}

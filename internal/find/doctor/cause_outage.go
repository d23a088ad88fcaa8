package doctor

import "fmt"

var outageCause = causeEntry{
	cause: Outage, rule: outage, standstill: true, remedies: outageRemedies,
	sentence: func(*Report) string {
		return "Nothing of the connection gets through: the path is down, or something on it has forgotten the connection."
	},
}

// outage: nothing of the connection gets through, and the packets' size is not the
// reason.
func outage(c *patient) *Finding {
	f, path := c.f, c.o.Path
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

func outageRemedies(c *patient) []Remedy {
	if c.o.Path.MTU == 0 {
		return nil // the path is down
	}
	return []Remedy{{Action: "have the program send TCP keepalives more often than a NAT or a firewall on the path forgets connections", Place: InProgram}}
}

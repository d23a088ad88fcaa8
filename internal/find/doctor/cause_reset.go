package doctor

import "fmt"

var resetCause = causeEntry{
	cause: Reset, ends: true, rule: wasReset, remedies: resetRemedies, doubt: resetDoubt, likely: func(*patient) bool { return true },
	sentence: func(r *Report) string {
		n := &r.Counts
		return fmt.Sprintf("The %s cut the transfer: it reset the connection while %s had no acknowledgement.", who(n.Reset), size(n.ResetOutstanding))
	},
}

// who names the end that reset a connection.
func who(end ResetBy) string {
	if end == ResetBySender {
		return "sending host"
	}
	return "receiving host"
}

// wasReset: an end reset the connection while data was on its way.
func wasReset(c *patient) *Finding {
	n := &c.counts
	if !c.wasCut() {
		return nil
	}
	return &Finding{Cause: Reset, Evidence: []string{
		fmt.Sprintf("the %s reset the connection after %s, with %s unacknowledged", who(n.Reset), size(n.Delivered), size(n.ResetOutstanding)),
	}}
}

// resetDoubt: a packet does not show who made it.
func resetDoubt(c *patient) string {
	if n := &c.counts; c.o.Capture.AtSender == (n.Reset == ResetBySender) {
		return ""
	}
	return "a firewall on the path can send a reset in a host's name: capture at that host, or look into its program's log"
}

func resetRemedies(c *patient) []Remedy {
	r := Remedy{Place: Receiver, Action: "look into the log of the receiving program: it closed the connection before it had read all data"}
	if c.counts.Reset == ResetBySender {
		r = Remedy{Place: InProgram, Action: "look into the log of the sending program: it closed the connection before its data had arrived"}
	}
	return []Remedy{r}
}

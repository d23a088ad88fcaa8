package doctor

import "fmt"

var cpuCause = causeEntry{
	cause: CPU, rule: cpu, glances: true, remedies: cpuRemedies,
	sentence: limited("The program limits it, not the network: its busiest thread has no CPU time left at %s."),
}

// cpu: the program's busiest thread has no time left.
func cpu(c *patient) *Finding {
	if !(c.f.CPU > 0.85 && (c.f.Busy < 0.8 || c.f.Idle > 0.6 || c.runsDry())) {
		return nil
	}
	return &Finding{Cause: CPU, BoundBps: c.goodput, Evidence: []string{
		fmt.Sprintf("one thread of the program is busy %s of the time", percent(c.f.CPU)),
		"the connection waits for it: " + c.idleEvidence(),
	}}
}

func cpuRemedies(*patient) []Remedy {
	return []Remedy{{Action: "take work off the program's busy thread: a cheaper cipher or compression, or several threads", Place: InProgram}}
}

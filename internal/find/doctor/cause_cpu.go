package doctor

import "fmt"

var cpuCause = causeEntry{
	cause: CPU, rule: cpu, glances: true, remedies: cpuRemedies,
	sentence: limited("The program limits it, not the network: its busiest thread has no CPU time left at %s."),
}

// maxCPU is the share of time of a thread, running or waiting for a CPU, above which it has
// none left, and mostWaited that of its waits alone.
const (
	maxCPU     = 0.85
	mostWaited = 0.5
)

// lacksCPU reports whether the program's busiest thread has no CPU time left.
func (c *patient) lacksCPU() bool { return c.f.CPU > maxCPU || c.f.Waited > mostWaited }

// cpu: the program's busiest thread has no time left.
func cpu(c *patient) *Finding {
	if !(c.lacksCPU() && nagle(c) == nil && (c.f.Busy < 0.8 || c.pauses() > 0.6 || c.runsDry())) {
		return nil
	}
	busy := fmt.Sprintf("one thread of the program is busy %s of the time", percent(c.f.CPU))
	if !(c.f.CPU > maxCPU) {
		busy = fmt.Sprintf("one thread of the program waits for a CPU %s of the time", percent(c.f.Waited))
	}
	return &Finding{Cause: CPU, BoundBps: c.goodput, Evidence: []string{
		busy,
		"the connection waits for it: " + c.idleEvidence(),
	}}
}

func cpuRemedies(*patient) []Remedy {
	return []Remedy{{Action: "take work off the program's busy thread: a cheaper cipher or compression, or several threads", Place: InProgram}}
}

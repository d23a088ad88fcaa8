package doctor

import "fmt"

var applicationCause = causeEntry{
	cause: Application, rule: application, glances: true, remedies: applicationRemedies,
	sentence: limited("The programs limit it, not the network: they move only %s."),
}

// application: the connection waits for the writing program.
func application(c *patient) *Finding {
	if !c.idle() || c.f.CPU > 0.85 {
		return nil
	}
	return &Finding{Cause: Application, BoundBps: c.goodput, Evidence: []string{c.idleEvidence()}}
}

// idle reports whether the connection could send more than the program writes.
func (c *patient) idle() bool {
	f := c.f
	return f.Busy < 0.8 || f.Idle > 0.6 && !(f.Rwnd > 0.15) && !c.bufferFull() || c.runsDry()
}

// runsDry reports whether the program lets the send buffer run low at times. A program
// with more data waits for room, and keeps two thirds of the buffer in use.
func (c *patient) runsDry() bool { return c.f.BufferLow < 0.4 }

func (c *patient) idleEvidence() string {
	switch {
	case c.f.Busy < 0.8:
		return fmt.Sprintf("it had nothing to send %s of the time", percent(1-c.f.Busy))
	case !(c.f.Idle > 0.6):
		return fmt.Sprintf("the program lets the send buffer run low: a tenth of the samples have less than %s of it in use", percent(c.f.BufferLow))
	}
	return fmt.Sprintf("in %s of the samples nothing waited to be sent, and the congestion window had room", percent(c.f.Idle))
}

func applicationRemedies(*patient) []Remedy {
	return []Remedy{{Action: "have the program keep data ready: larger writes, more requests in flight, several connections, reading and writing at once", Place: InProgram}}
}

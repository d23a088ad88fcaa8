package doctor

import "fmt"

var applicationCause = causeEntry{
	cause: Application, rule: application, byProgram: true, glances: true, remedies: applicationRemedies, doubt: applicationDoubt,
	sentence: limited("The programs limit it, not the network: they move only %s."),
}

// application: the connection waits for the writing program.
func application(c *patient) *Finding {
	if !c.idle() || c.lacksCPU() || nagle(c) != nil || c.glances() && (c.maybeNagle() || c.f.CPU > maybeBusy) {
		return nil
	}
	if c.captured() {
		return c.capturedApplication()
	}
	finding := &Finding{Cause: Application, BoundBps: c.goodput, Evidence: []string{c.idleEvidence()}}
	if c.exchange() > 0 {
		finding.Evidence = append(finding.Evidence, c.exchangeEvidence())
		finding.unpredicted = "the gain grows with the requests that the program has in flight at once, up to the path's capacity"
	}
	return finding
}

// idle reports whether the connection could send more than the program writes.
func (c *patient) idle() bool {
	f := c.f
	if c.captured() {
		return c.exchanges() || c.trickles() || c.pausing() > 0.2
	}
	return f.Busy < 0.8 || c.pauses() > 0.6 && !(f.Rwnd > 0.15) && !c.bufferFull() || c.runsDry()
}

// pauses returns the share of samples in which no full segment waited to be sent, and the
// congestion window had room.
func (c *patient) pauses() float64 { return c.f.Idle + zeroIfNaN(c.f.Held) }

// oftenPauses reports whether the connection is not at work all the time, so that no
// congestion window shows what the path carries.
func (c *patient) oftenPauses() bool { return c.pauses() > 0.2 }

// runsDry reports whether the program lets the send buffer run low at times.
func (c *patient) runsDry() bool {
	if c.glances() {
		// Both samples show it. A program may keep the kernel's queue short, as a relay of a pair does,
		// and yet have data wait for the congestion window.
		return c.f.BufferHigh < lowBuffer && !(c.f.CwndUsed == 1 && c.f.NotSent > 0)
	}
	return c.f.BufferLow < lowBuffer
}

func (c *patient) idleEvidence() string {
	switch {
	case c.f.Busy < 0.8:
		return fmt.Sprintf("it had nothing to send %s of the time", percent(1-c.f.Busy))
	case !(c.pauses() > 0.6):
		return fmt.Sprintf("the program lets the send buffer run low: a tenth of the samples have less than %s of it in use", percent(c.f.BufferLow))
	}
	what := "nothing"
	if c.f.Held > 0.05 {
		what = "less than a segment"
	}
	return fmt.Sprintf("in %s of the samples %s waited to be sent, and the congestion window had room", percent(c.pauses()), what)
}

// maybeBusy is the share of time of a thread at which its CPU time may limit the program.
const maybeBusy = 0.5

func applicationDoubt(c *patient) string {
	if !(c.f.CPU > maybeBusy) {
		return ""
	}
	return fmt.Sprintf("one thread of the program is busy %s of the time, so its CPU time may be what it lacks: watch longer with --time", percent(c.f.CPU))
}

func applicationRemedies(*patient) []Remedy {
	return []Remedy{{Action: "have the program keep data ready: larger writes, more requests in flight, several connections, reading and writing at once", Place: InProgram}}
}

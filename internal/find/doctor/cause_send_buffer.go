package doctor

import (
	"fmt"

	"longhaul/internal/words/units"
)

var sendBufferCause = causeEntry{
	cause: SendBuffer, rule: sendBuffer, byProgram: true, glances: true, relayed: true, remedies: sendBufferRemedies,
	sentence: sendBufferSentence,
}

func sendBufferSentence(r *Report) string {
	if p := r.Observation.Pair; p != nil && p.MemoryLimited > 0 && !r.Figures.BufferFull() {
		return limited("The relay may keep too little of a flow for this distance, limited by memory: it gets %s.")(r)
	}
	return limited("The sending program's socket buffer is too small for this distance: that limits it to %s.")(r)
}

// sendBuffer: the socket's buffer is smaller than the bandwidth-delay product.
func sendBuffer(c *patient) *Finding {
	f := c.f
	if c.lacksMemory() {
		return &Finding{Cause: SendBuffer, BoundBps: c.goodput, Evidence: []string{c.idleEvidence(),
			fmt.Sprintf("flows of the pair that the relay's memory limits: %d", c.o.Pair.MemoryLimited)}}
	}
	if !c.bufferFull() || f.Busy < 0.8 || c.lacksCPU() {
		return nil
	}
	evidence := []string{fmt.Sprintf("the send buffer limited the sender %s of the time", percent(f.Sndbuf))}
	if !(f.Sndbuf > 0.1) {
		evidence = []string{fmt.Sprintf("all data of the send buffer is in flight, %s of the %.0f segments that the congestion window allows", count(f.InFlight), f.Cwnd)}
	}
	return &Finding{Cause: SendBuffer, BoundBps: c.goodput, Evidence: evidence}
}

// lowBuffer is the share of the send buffer in use below which a program lets it run low. One
// with more data waits for room, and keeps two thirds in use.
const lowBuffer = 0.4

// bufferFull reports whether all data of the send buffer is in flight, and the
// congestion window has room for more. The kernel wakes a waiting writer when a third
// of the buffer is free, so the buffer never holds much less.
func (c *patient) bufferFull() bool { return c.f.BufferFull() }

// BufferFull reports whether all data of the send buffer is in flight, and the
// congestion window has room for more. A program that sends files (sendfile) may exceed
// the buffer, by a burst each time: some of it then waits, and at other times nothing does.
// A program that lets the buffer run low may also fill it at times, with a burst.
func (f *Figures) BufferFull() bool {
	allSent := f.NotSent < 4*float64(f.MSS) || f.Idle > 0.2
	return f.Sndbuf > 0.1 && !(f.BufferLow < lowBuffer) || f.BufferLow > 0.65 && f.BufferHigh > 0.85 && allSent && f.CwndUsed < 0.9 && !(f.Rwnd > 0.15)
}

func sendBufferRemedies(c *patient) []Remedy {
	if c.lacksMemory() {
		return []Remedy{{Action: c.o.Pair.MemoryRemedy, Place: Relay}}
	}
	window := c.windowNeeded()
	return []Remedy{{
		Action: "let the send buffer grow: have the program set no SO_SNDBUF, or " + units.FormatSize(float64(window)), Place: InProgram,
		Others: []string{
			fmt.Sprintf("Linux's bound on automatic buffers: sysctl -w net.ipv4.tcp_wmem=\"4096 16384 %d\"",
				2*window),
			fmt.Sprintf("AIX: no -o tcp_sendspace=%d -o sb_max=%d", window, 4*window),
		},
	}}
}

package doctor

import (
	"fmt"
	"longhaul/internal/words/units"
	"slices"
)

var readerCause = causeEntry{
	cause: Reader, rule: slowReader, glances: true, remedies: readerRemedies,
	sentence: limited("The receiving program limits it, not the network: it reads only %s."),
}

// slowReader: the receiving program reads more slowly than data arrive. Its window
// closes again and again, and is not merely small. Segments behind a lost one also
// fill the window.
func slowReader(c *patient) *Finding {
	f := c.f
	if c.o.Own || c.windowOfHost() {
		return nil
	}
	if !(f.Rwnd > 0.15 && c.lost < 0.002) {
		return nil
	}
	// A buffer of fixed size gives a constant window. The window of a host's small
	// buffers varies a little, which a trial has excluded.
	varies := f.PeerWindow < 0.97*f.PeerWindowMax && c.goodput < 0.95*f.PeerWindowMax*8/f.RTT.Seconds()
	if c.o.Capacity != nil && c.o.Capacity.PeerWindow > 0 {
		varies = c.windowVaries()
	}
	if !varies {
		return nil
	}
	return &Finding{Cause: Reader, BoundBps: c.goodput, Evidence: []string{
		fmt.Sprintf("the receiver's window limited the sender %s of the time, and varied between %s and %s: the receiving program reads slowly", percent(f.Rwnd), units.FormatSize(f.PeerWindowMin), units.FormatSize(f.PeerWindowMax)),
	}}
}

// windowOfHost reports whether the trial's connections, whose program reads at once, met
// a window about as small.
func (c *patient) windowOfHost() bool {
	t := c.o.Capacity
	return t != nil && t.WindowLimited && t.PeerWindow > 0 && t.PeerWindow < 1.5*c.f.PeerWindowMax
}

// windowVaries reports whether the window is not that of a buffer of fixed size, which
// is constant.
func (c *patient) windowVaries() bool { return c.f.PeerWindow < 0.98*c.f.PeerWindowMax }

// readerInDoubt reports whether either a slow reader or its host's small buffers limit:
// the window of both varies. Only a slow reader closes it, and only a trial shows
// another program's window.
func (c *patient) readerInDoubt(findings []Finding) bool {
	if c.o.Capacity != nil || c.o.Own || c.f.ZeroWindow >= 0.01 {
		return false
	}
	return slices.ContainsFunc(findings, func(f Finding) bool {
		return f.Cause == Reader || f.Cause == ReceiverWindow && c.windowVaries()
	})
}

func readerRemedies(*patient) []Remedy {
	return []Remedy{{Action: "have the receiving program read faster: larger reads, reading and writing at once, several connections", Place: Receiver}}
}

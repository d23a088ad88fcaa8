package doctor

import (
	"fmt"
	"slices"

	"longhaul/internal/words/units"
)

var readerCause = causeEntry{
	cause: Reader, rule: slowReader, glances: true, remedies: readerRemedies,
	sentence: func(r *Report) string {
		if r.GoodputBps == 0 || r.Counts.ZeroWindowAtEnd && r.Counts.ZeroWindowTime > 9*r.Figures.Time/10 {
			return "The receiving program reads nothing, so its host lets no more data come: the connection stands still."
		}
		return limited("The receiving program limits it, not the network: it reads only %s.")(r)
	},
}

// slowReader: the receiving program reads more slowly than data arrive. Its window
// closes again and again, and is not merely small. Segments behind a lost one also
// fill the window.
func slowReader(c *patient) *Finding {
	f := c.f
	if c.o.Own {
		return nil
	}
	if c.closesCaptured() {
		return c.closedWindow()
	}
	if c.closed() {
		reads := "reads slowly"
		if c.goodput == 0 {
			reads = "does not read"
		}
		return &Finding{Cause: Reader, BoundBps: c.goodput, Evidence: []string{
			fmt.Sprintf("the receiver's window limited the sender %s of the time, and was closed in %s of the samples: the receiving program %s",
				percent(min(f.Rwnd, 1)), percent(f.ZeroWindow), reads),
		}}
	}
	if c.windowOfHost() || !(f.Rwnd > 0.15 && (c.lost < 0.002 || c.closes())) {
		return nil
	}
	// A buffer of fixed size gives a constant window. The window of a host's small
	// buffers varies a little, which a trial has excluded.
	bound := f.PeerWindowMax * 8 / f.RTT.Seconds()
	varies := f.PeerWindow < 0.97*f.PeerWindowMax && c.goodput < 0.95*bound
	switch {
	case c.o.Capacity != nil && c.o.Capacity.PeerWindow > 0:
		varies = c.windowVaries()
	case c.glances():
		varies = c.windowMoves() && c.goodput < 0.5*bound
	}
	if !varies && !c.closes() {
		return nil
	}
	return &Finding{Cause: Reader, BoundBps: c.goodput, Evidence: []string{
		fmt.Sprintf("the receiver's window limited the sender %s of the time, and varied between %s and %s: the receiving program reads slowly", percent(f.Rwnd), units.FormatSize(f.PeerWindowMin), units.FormatSize(f.PeerWindowMax)),
	}}
}

// closed reports whether the receiver keeps its window closed: it has room for less than a
// segment most of the time, and for nothing at least once.
func (c *patient) closed() bool {
	return c.f.Rwnd > 0.5 && c.f.ZeroWindow > 0.5 && c.f.PeerWindowMin == 0
}

// closes reports whether the receiver closes its window at times. The window of a small
// buffer never had room for many segments.
func (c *patient) closes() bool {
	f, segment := c.f, float64(c.f.MSS)
	return f.Rwnd > 0.15 && f.PeerWindowMin < 2*segment && f.PeerWindowMax >= 8*segment && (f.ZeroWindow >= 0.05 || c.glances())
}

// windowMoves reports whether two looks at the window differ. A fixed window does not move at
// all, and one that does may differ little by chance.
func (c *patient) windowMoves() bool { return c.f.PeerWindowMin < c.f.PeerWindowMax }

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
	if c.o.Capacity != nil || c.o.Own || c.f.ZeroWindow >= 0.01 || c.closesCaptured() {
		return false
	}
	return slices.ContainsFunc(findings, func(f Finding) bool {
		return f.Cause == Reader || f.Cause == ReceiverWindow && c.windowVaries()
	})
}

func readerRemedies(*patient) []Remedy {
	return []Remedy{{Action: "have the receiving program read faster: larger reads, reading and writing at once, several connections", Place: Receiver}}
}

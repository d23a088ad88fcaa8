package doctor

import (
	"fmt"
	"math"

	"longhaul/internal/words/units"
)

var receiverWindowCause = causeEntry{
	cause: ReceiverWindow, rule: receiverWindow, glances: true, relayed: true, remedies: receiverWindowRemedies,
	sentence: limited("The receiving host allows too little data in flight for this distance: that limits it to %s."),
}

// receiverWindow: the receiver's window is smaller than the bandwidth-delay
// product.
func receiverWindow(c *patient) *Finding {
	f := c.f
	if !c.windowLimited() || slowReader(c) != nil || windowScaling(c) != nil || c.glances() && c.windowMoves() {
		return nil
	}
	finding := &Finding{Cause: ReceiverWindow, BoundBps: c.windowBound(), Evidence: append([]string{
		fmt.Sprintf("the receiver's window of %s limited the sender %s of the time",
			units.FormatSize(f.PeerWindowMax), percent(f.Rwnd))}, c.windowEvidence()...)}
	if math.IsNaN(f.Rwnd) {
		finding.Evidence[0] = fmt.Sprintf("the receiver's window was full after %s of the segments", percent(c.windowFullShare()))
		if c.fillsWindow() {
			finding.Evidence[0] = "about one window arrives per round trip, and the window hardly changes"
		}
		finding.strength, finding.doubt = Likely, notFromSender
	}
	return finding
}

// windowLimited reports whether the peer's window limits the sender: it waits for it, and
// gets most of what one window per round trip allows.
func (c *patient) windowLimited() bool {
	waits := c.f.Rwnd > 0.15 && (!c.captured() || c.counts.WindowFull > 0)
	if math.IsNaN(c.f.Rwnd) && c.captured() && c.o.Capture.Handshake {
		waits = c.windowFullShare() > 0.3 || c.fillsWindow()
	}
	// More than the window allows shows that the window, or the round trip, is not the usual.
	allows := c.usualWindowBps()
	return waits && allows > 0 && c.goodput >= usedWindow*allows && c.goodput <= 2*max(allows, c.windowBound()) && !c.exchanges()
}

// usedWindow is the least share of a window per round trip that a sender gets whom the
// window limits.
const usedWindow = 0.5

// windowBound returns the rate of a window per round trip.
func (c *patient) windowBound() float64 {
	if c.f.MinRTT <= 0 {
		return 0
	}
	window := c.f.PeerWindowMax
	if math.IsNaN(window) {
		window = float64(c.counts.WindowMax)
	}
	return window * 8 / c.f.MinRTT.Seconds()
}

func (c *patient) windowEvidence() []string {
	window := c.f.PeerWindow
	if !(window > 0) {
		window = float64(c.counts.WindowMedian)
	}
	return []string{fmt.Sprintf("%s per round trip of %s are %s; the connection gets %s", units.FormatSize(window), milliseconds(max(c.f.RTT, c.f.MinRTT)), units.FormatRate(c.usualWindowBps()), units.FormatRate(c.goodput))}
}

func receiverWindowRemedies(c *patient) []Remedy {
	window := c.windowNeeded()
	return []Remedy{{
		Action: fmt.Sprintf("let the receiver's window grow to %s", units.FormatSize(float64(window))), Place: Receiver,
		Command: fmt.Sprintf("sysctl -w net.ipv4.tcp_rmem=\"4096 131072 %d\"", 2*window),
		Others: []string{
			fmt.Sprintf("AIX: no -o rfc1323=1 -o tcp_recvspace=%d -o sb_max=%d", window, 4*window),
			"a program that sets SO_RCVBUF: have it set none, or this size",
		},
	}}
}

// fillsWindow reports whether a capture at the receiver has as much data as one window per
// round trip allows, of a window that is constant.
func (c *patient) fillsWindow() bool {
	n, allows := &c.counts, c.usualWindowBps()
	return c.captured() && c.sendsFull() && c.goodput > 0.8*allows && c.goodput < 1.1*allows && 10*n.WindowMedian > 9*n.WindowMax
}

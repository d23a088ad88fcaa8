package doctor

import (
	"fmt"
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
	if !c.windowLimited() || slowReader(c) != nil || windowScaling(c) != nil {
		return nil
	}
	return &Finding{Cause: ReceiverWindow, BoundBps: c.windowBound(), Evidence: append([]string{
		fmt.Sprintf("the receiver's window of %s limited the sender %s of the time",
			units.FormatSize(f.PeerWindowMax), percent(f.Rwnd))}, c.windowEvidence()...)}
}

func (c *patient) windowLimited() bool {
	return c.f.Rwnd > 0.15
}

// windowBound returns the rate of a window per round trip.
func (c *patient) windowBound() float64 {
	return c.f.PeerWindowMax * 8 / c.f.MinRTT.Seconds()
}

func (c *patient) windowEvidence() []string {
	return []string{fmt.Sprintf("%s per round trip of %s are %s; the connection gets %s", units.FormatSize(c.f.PeerWindowMax), milliseconds(c.f.MinRTT), units.FormatRate(c.windowBound()), units.FormatRate(c.goodput))}
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

package doctor

import (
	"fmt"
	"time"
)

// A capture shows packets and no clocks of a kernel. What follows reads its counts.

// captured reports whether a capture shows the connection, and its counts.
func (c *patient) captured() bool { return c.o.Capture != nil }

// duration is how long the counts are of.
func (c *patient) duration() time.Duration {
	if c.captured() && c.o.Capture.Time > 0 {
		return c.o.Capture.Time
	}
	return c.f.Time
}

// shareOfTime is a time as a share of the connection's, at most 1.
func (c *patient) shareOfTime(d time.Duration) float64 {
	total := c.duration()
	if total <= 0 || d <= 0 {
		return 0
	}
	return min(d.Seconds()/total.Seconds(), 1)
}

// manyFull is the number of full segments that show what a path does to them.
const manyFull = 10

// sendsFull reports whether the sender fills its segments. Only then do their size and the
// path's rate limit it.
func (c *patient) sendsFull() bool {
	n := &c.counts
	if c.captured() {
		return n.FullSegments >= manyFull && 2*n.FullSegments >= n.Segments
	}
	return n.Segments <= 0 || n.Bytes <= 0 || float64(n.Bytes+int64(c.f.MSS)) >= 0.5*float64(n.Segments)*float64(c.f.MSS)
}

// few is the number of turns or segments below which a pattern is none.
const few = 5

// lacks reports whether a capture lacks so much of the data, or has numbers that fit
// together so badly, that its counts show little.
func (c *patient) lacks() bool {
	n := &c.counts
	return c.captured() && (10*n.Missing > n.Delivered || n.MaxFlight > 2*n.Bytes+maxUnscaled || n.ResetOutstanding > 2*n.Bytes+maxUnscaled)
}

// peerHeard reports whether a capture has an answer of the peer.
func (c *patient) peerHeard() bool {
	n := &c.counts
	return n.Delivered > 0 || n.MinRTT > 0 || n.Stall.Heard > 0 || c.o.Capture.Handshake
}

// trickles reports whether a capture shows small segments one after another, although the
// peer's window has room: the program writes little at a time.
func (c *patient) trickles() bool {
	n := &c.counts
	return c.captured() && n.Segments >= 2*manyFull && 20*n.FullSegments < n.Segments && n.lossShare() < 0.02 &&
		n.ZeroWindows == 0 && c.windowFullShare() < 0.05 && n.MaxFlight < 4*int64(max(c.f.MSS, 536))
}

// exchanges reports whether a capture shows requests and answers that take turns, each
// small enough to be under way at once: the programs wait for each other.
func (c *patient) exchanges() bool {
	n := &c.counts
	if !c.captured() || n.Turns < few || n.Bytes <= 0 {
		return false
	}
	segment := max(c.f.MSS, 536)
	small := n.Bytes < 2*n.Turns*int64(segment) ||
		c.o.Capture.AtSender && n.MaxFlight <= initialWindow*int64(segment) && n.Bytes <= (n.Turns+1)*n.MaxFlight
	return small && 2*n.Turns >= n.Segments-n.Retransmitted-n.FullSegments
}

// pausing is the share of time in which a capture shows that the sender had nothing to
// send. A sender whose data is lost before the capture, or that waits for a closed window,
// pauses too.
func (c *patient) pausing() float64 {
	n := &c.counts
	if !c.captured() {
		return 0
	}
	paused, active := n.PauseTime-n.Stall.Time-n.ZeroWindowTime, c.active()
	if paused <= 0 || active <= 0 {
		return 0
	}
	return min(paused.Seconds()/active.Seconds(), 1)
}

// active is the time until the last data was acknowledged: a connection that stays open
// afterwards does not pause.
func (c *patient) active() time.Duration {
	samples := c.o.Samples
	for k := len(samples) - 1; k > 0; k-- {
		if samples[k].Info.BytesAcked > samples[k-1].Info.BytesAcked {
			// The samples may leave out the start.
			return c.duration() - (samples[len(samples)-1].At - samples[k].At)
		}
	}
	return c.duration()
}

// waitsFor says who waits for whom in an exchange.
func (c *patient) waitsFor() []string {
	n := &c.counts
	var evidence []string
	if c.exchanges() {
		evidence = append(evidence, fmt.Sprintf("it sent %s after data of the peer, usually %s each: requests and answers take turns",
			plural(n.Turns, "time"), size(n.Bytes/max(n.Turns, 1))))
	}
	if c.trickles() && !c.exchanges() {
		evidence = append(evidence, fmt.Sprintf("of %s %d are full, and at most %s were under way at once: the program writes little at a time",
			plural(n.Segments, "segment"), n.FullSegments, size(n.MaxFlight)))
	}
	if c.pausing() >= 0.05 {
		who := "the sending program"
		if n.WaitedForPeer > n.PauseTime/2 {
			who = "the peer's program, whose data it answers"
		}
		evidence = append(evidence, fmt.Sprintf("it had nothing to send for %s of %s, and waited for %s",
			length(min(n.PauseTime, c.active())), length(c.active()), who))
	}
	return evidence
}

// usualWindowBps is the rate of the peer's usual window per usual round trip; 0: unknown.
func (c *patient) usualWindowBps() float64 {
	rtt := max(c.f.RTT, c.f.MinRTT)
	window := c.f.PeerWindow
	if !(window > 0) {
		window = float64(c.counts.WindowMedian)
	}
	if rtt <= 0 || !(window > 0) {
		return 0
	}
	return window * 8 / rtt.Seconds()
}

// windowFullShare is the share of segments after which the window was full.
func (c *patient) windowFullShare() float64 {
	n := &c.counts
	sent := n.Segments - n.Retransmitted
	if sent <= 0 {
		return 0
	}
	return min(float64(n.WindowFull)/float64(sent), 1)
}

// closesCaptured reports whether the receiver closes its window again and again, or for long. Only
// a program that reads slowly has its host do that.
func (c *patient) closesCaptured() bool {
	n := &c.counts
	if !c.captured() || n.ZeroWindows == 0 {
		return false
	}
	return n.ZeroWindowAtEnd && n.ZeroWindowTime >= time.Second && (n.Probes > 0 || n.Reset == "") ||
		n.ZeroWindowTime >= 100*time.Millisecond && c.shareOfTime(n.ZeroWindowTime) >= 0.1 ||
		n.ZeroWindows >= 3 && n.WindowFull >= 10 && c.windowFullShare() >= 0.1
}

// stallAtTheEnd returns the time for which a connection stands at the end, by a capture or
// by samples. In a capture also that of an interruption which takes half of its time.
func (c *patient) stallAtTheEnd() time.Duration {
	if c.captured() {
		// A reset of the receiver is an answer, and so is a closed window.
		s, n := c.counts.Stall, &c.counts
		if n.Reset == ResetByReceiver {
			return 0
		}
		atEnd := s.AtEnd && !n.ZeroWindowAtEnd && s.Retransmissions >= 2
		long := s.Retransmissions >= 3 && s.Heard == 0 && c.shareOfTime(s.Time) >= 0.5 && c.shareOfTime(n.ZeroWindowTime) < 0.1
		if atEnd || long {
			return s.Time
		}
		return 0
	}
	if !c.f.StalledAtTheEnd {
		return 0
	}
	return c.f.Stalled
}

// wasCut reports whether a reset cut a transfer: data waited for an acknowledgement that
// is more than the last words of a protocol.
func (c *patient) wasCut() bool {
	n := &c.counts
	const lastWords = 100 // bytes, such as an alert of TLS
	return n.Reset != "" && n.ResetOutstanding > lastWords &&
		(n.ResetOutstanding >= int64(max(c.f.MSS, 536)) || 10*n.ResetOutstanding >= n.Delivered)
}

// enoughCaptured returns an error unless a capture shows enough of a connection.
func (c *patient) enoughCaptured() error {
	n, f := &c.counts, c.f
	if n.Segments == 0 && f.Bytes == 0 {
		return &ErrTooLittle{"no data in the capture", "a capture of a transfer"}
	}
	if !c.peerHeard() && n.Segments-n.Retransmitted > 2*manyFull {
		return &ErrTooLittle{fmt.Sprintf("none of %s has an answer in the capture, and the sender went on", plural(n.Segments, "segment")),
			"a capture of both directions"}
	}
	if c.stands() || c.closesCaptured() || c.wasCut() || c.exchanges() {
		return nil
	}
	took := length(c.duration())
	switch {
	case n.Segments > 0 && n.Segments < minSegments && f.Samples < minSamples:
		return &ErrTooLittle{fmt.Sprintf("%s in %s", plural(n.Segments, "segment"), took), fmt.Sprintf("%d segments of data", minSegments)}
	case c.duration() < minTime:
		return &ErrTooLittle{fmt.Sprintf("%s of a connection", full(c.duration())), fmt.Sprintf("%s with data in flight", full(minTime))}
	case c.duration() < minRoundTrips*f.MinRTT:
		return &ErrTooLittle{fmt.Sprintf("%s of a connection with a round trip of %s", took, length(f.MinRTT)),
			fmt.Sprintf("%d round trips", minRoundTrips)}
	case f.Samples < minSamples && c.pausing() < 0.5 && n.Retransmitted == 0:
		return &ErrTooLittle{fmt.Sprintf("%s in %s, with long gaps", plural(n.Segments, "segment"), took), "data in flight for more of the time"}
	case n.Delivered == 0 && f.Bytes == 0 && n.Retransmitted == 0:
		return &ErrTooLittle{fmt.Sprintf("none of %s was acknowledged, and none was sent again", plural(n.Segments, "segment")),
			"a capture of both directions"}
	}
	return nil
}

// minSegments is the minimum number of segments of data for a verdict on a capture.
const minSegments = 10

// capturedApplication is the finding of a capture in which the programs wait.
func (c *patient) capturedApplication() *Finding {
	n := &c.counts
	finding := &Finding{Cause: Application, BoundBps: c.goodput, Evidence: c.waitsFor(), strength: NotCertain,
		doubt: "it paused for a part of the time, and a capture does not show what the program had to send: " + c.live() + " on the sending host does"}
	disturbed := n.lossShare() > 0.02 || n.Stall.Retransmissions > 2 || n.ZeroWindows > 0 || n.Missing > 0
	idle := c.pausing() >= 0.5
	switch {
	case !disturbed && (idle && c.o.Capture.AtSender || c.exchanges() && n.Turns >= 20):
		finding.strength, finding.doubt = Certain, ""
	case idle || c.exchanges() || c.trickles():
		finding.strength = Likely
		finding.doubt = "the capture is not from the sending host: losses before it look like pauses"
		if c.o.Capture.AtSender {
			finding.doubt = "a capture does not show what the program had to send: " + c.live() + " on the sending host does"
		}
		if disturbed {
			finding.doubt = "segments were also retransmitted or missed, or the window closed: those times may count as pauses"
		}
	}
	return finding
}

// closedWindow is the finding of a capture in which the receiver closes its window.
func (c *patient) closedWindow() *Finding {
	n := &c.counts
	finding := &Finding{Cause: Reader, BoundBps: c.goodput, strength: Certain, Evidence: []string{
		fmt.Sprintf("the receiver closed its window: %s; its program reads slowly", c.closedShare()),
	}}
	if n.WindowFull > 0 {
		finding.Evidence = append(finding.Evidence, fmt.Sprintf("the window was full after %s of %s", plural(n.WindowFull, "segment"), plural(n.Segments, "segment")))
	}
	if c.shareOfTime(n.ZeroWindowTime) < 0.2 && !n.ZeroWindowAtEnd {
		finding.strength = Likely
		finding.doubt = "the window was closed for a part of the time: something else may limit the rest"
	}
	return finding
}

// closedShare says how often and for how long the window was closed.
func (c *patient) closedShare() string {
	text := c.counts.closedText()
	if share := c.shareOfTime(c.counts.ZeroWindowTime); share > 0 {
		text += fmt.Sprintf(" (closed %s of the time)", percent(share))
	}
	return text
}

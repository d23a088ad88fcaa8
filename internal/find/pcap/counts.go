package pcap

import (
	"time"

	"longhaul/internal/find/doctor"
)

// counts makes the counts of the data of an end.
func (c *connection) counts(of int, place Place) doctor.Counts {
	h := &c.half[of]
	n := &h.count
	out := doctor.Counts{
		Segments: n.dataSegsOut, FullSegments: min(max(n.fullSegs, 0), n.dataSegsOut), Bytes: n.bytesSent - n.bytesResent, Delivered: h.dataAcknowledged(),
		Retransmitted: n.segsResent + n.segsFilled,
		Fast:          n.because[fastRetransmit], AfterTimeout: n.because[timeout], TailProbes: n.because[tailProbe],
		OutOfOrder: n.reordered, Overtaken: n.overtaken, Extent: n.extent,
		WindowFull: n.windowFull, Probes: n.windowProbes, KeepAlives: n.probes - n.windowProbes,
		WindowMin: h.windows.min, WindowMedian: h.windows.quantile(0.5), WindowMax: h.windows.max,
		MinRTT:    time.Duration(h.minRTT),
		MedianRTT: time.Duration(h.rtts.quantile(0.5)), P95RTT: time.Duration(h.rtts.quantile(0.95)),
		MaxFlight: n.maxFlight,
		Pauses:    n.pauses, PauseTime: time.Duration(n.pauseTime), WaitedForPeer: time.Duration(n.waitedForPeer), Turns: n.turns,
		Missing: n.missing, Copies: n.copies, BackwardSteps: n.backward, BackwardBy: time.Duration(n.backwardBy),
	}
	out.Spurious = min(max(n.dsackAgain, n.segsNeedless), out.Retransmitted)
	if place == AtReceiver && c.key.a.Addr() != c.key.b.Addr() {
		// What the capture has, the receiver has.
		out.Spurious = n.segsResent
	}
	if n.missing > 0 {
		out.Overtaken = 0 // a retransmission may be among what the capture lacks
		if out.OutOfOrder == 0 {
			out.Extent = 0
		}
	}
	h.closed.counts(&out, c.last)
	out.Stall = h.stall.result(h, c.last)
	switch c.resetBy {
	case of:
		out.Reset = doctor.ResetBySender
	case 1 - of:
		out.Reset = doctor.ResetByReceiver
	}
	out.ResetOutstanding = h.resetOutstanding
	return out
}

// zeroWindows tracks the times in which the peer's window is 0.
type zeroWindows struct {
	since      int64 // negative: it is open
	until      int64 // the end of the latest such time; negative: none
	times      int64
	total, max int64 // ns
}

// window notes an announcement of the peer.
func (c *zeroWindows) window(zero bool, t int64) {
	switch {
	case zero && c.since < 0:
		c.since = t
		c.times++
	case !zero && c.since >= 0:
		c.total, c.max = c.total+t-c.since, max(c.max, t-c.since)
		c.since, c.until = -1, t
	}
}

// counts fills in the zero windows of a connection up to its last packet.
func (c *zeroWindows) counts(out *doctor.Counts, last int64) {
	total, longest := c.total, c.max
	if c.since >= 0 {
		total, longest = total+last-c.since, max(longest, last-c.since)
		out.ZeroWindowAtEnd = true
	}
	out.ZeroWindows, out.ZeroWindowTime, out.LongestZeroWindow = c.times, time.Duration(total), time.Duration(longest)
}

// stall tracks how long data waits for an acknowledgement although it is sent again.
type stall struct {
	progress int64 // time of the latest acknowledgement of new data
	began    int64 // when the data was sent that is sent again now
	resent   int64 // retransmissions since then
	heard    int64 // packets of the peer since then
	largest  int64 // data of the largest segment that was sent again
	answered int64 // data of the largest segment that was acknowledged
	before   int64 // and before the first of these retransmissions
	longest  doctor.Stall
}

// sentAgain notes a retransmission of data that was sent first at a time.
func (s *stall) sentAgain(first, t, segments, largest int64) {
	if s.resent == 0 {
		s.began, s.before = min(max(first, s.progress), t), s.answered
	}
	s.resent += segments
	s.largest = max(s.largest, largest)
}

// ended notes an acknowledgement of new data.
func (s *stall) ended(t int64) {
	if now := s.current(t); now.Time > s.longest.Time {
		s.longest = now
	}
	s.progress, s.resent, s.heard, s.largest = t, 0, 0, 0
}

// current is the stall up to now; of no time if nothing was sent again.
func (s *stall) current(t int64) doctor.Stall {
	if s.resent == 0 {
		return doctor.Stall{}
	}
	return doctor.Stall{
		Time: time.Duration(t - s.began), Retransmissions: s.resent,
		SegmentBytes: s.largest, AnsweredBytes: s.before, Heard: s.heard,
	}
}

// result is the longest stall of a connection up to its last packet.
func (s *stall) result(h *half, last int64) doctor.Stall {
	if now := s.current(last); h.outstanding() && now.Time > s.longest.Time {
		now.AtEnd = true
		return now
	}
	return s.longest
}

// minPause is the shortest pause that counts if the round trip is shorter or unknown.
const minPause = int64(time.Millisecond)

// spoke counts pauses and turns when new data is sent.
func (h *half) spoke(t int64) {
	n := &h.count
	if h.peerSpoke {
		h.peerSpoke = false
		n.turns++
	}
	if h.idleSince < 0 || h.shutAt >= 0 || h.closed.since >= 0 || h.closed.until >= h.idleSince {
		return
	}
	trip := max(h.path, h.srtt, minPause)
	away := max(0, h.path-h.toPeer()) // to this end and back, which is no pause
	if pause := t - h.idleSince - away; pause > trip {
		n.pauses++
		n.pauseTime += pause
		if h.peerSpokeAt >= h.idleSince && t-h.peerSpokeAt-away <= trip {
			n.waitedForPeer += pause
		}
	}
}

// reason is why a segment was sent again.
type reason uint8

const (
	noReason reason = iota
	fastRetransmit
	timeout
	tailProbe
	reasons
)

// recovery is the state of a sender that sends again, as far as the peer's
// acknowledgements and the times show it.
type recovery struct {
	duplicates int    // acknowledgements since the latest progress
	why        reason // of the latest recovery
	until      int64  // sequence number that ends it
	// again is a ring of what was sent again and not reported as a duplicate yet.
	again     []sackRange
	nextAgain int
}

// maxAgain bounds the retransmissions of which a duplicate is expected.
const maxAgain = 256

// sentAgain notes a retransmission.
func (r *recovery) sentAgain(b sackRange) {
	if len(r.again) < maxAgain {
		r.again = append(r.again, b)
		return
	}
	r.again[r.nextAgain] = b
	r.nextAgain = (r.nextAgain + 1) % maxAgain
}

// needless returns the segments of retransmissions that the receiver reports as
// duplicates. Others are duplicates that the path made, or answers to probes.
func (r *recovery) needless(b sackRange, packets func(int64) int64) (n int64) {
	left := b.end - b.start
	for i := range r.again {
		if a := &r.again[i]; left > 0 && a.start < b.end && a.end > b.start {
			bytes := min(a.end, b.end) - max(a.start, b.start)
			n, left = n+packets(bytes), left-bytes
			*a = sackRange{} // reported
		}
	}
	return n
}

// manyDuplicates is the number of duplicate acknowledgements that show a loss (RFC
// 5681, section 3.2).
const manyDuplicates = 3

// why determines the reason for sending the data from start to end again at t. sent is
// when the data, or what was sent last, was sent before.
func (h *half) why(start, end, sent, t int64, again bool) reason {
	r := &h.recovery
	quiet := t - max(sent, h.progress)
	late := start <= h.una && quiet >= h.rto()*9/10
	tail := end >= h.nxt && !again && h.offer.SACK && h.srtt > 0 && h.sacked == 0 && r.duplicates == 0
	switch {
	case tail && (late || quiet >= h.srtt*3/2):
		return tailProbe
	case late:
		h.count.timeouts++
		r.why, r.until = timeout, h.nxt
	case start < r.until: // it goes on
	case h.sacked > 0 && start < h.highSacked, r.duplicates >= manyDuplicates && start <= h.una:
		r.why, r.until = fastRetransmit, h.nxt
	default:
		return noReason
	}
	return r.why
}

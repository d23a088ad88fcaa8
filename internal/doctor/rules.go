package doctor

import (
	"fmt"
	"math"
	"slices"
	"time"

	"longhaul/internal/units"
)

// rule looks for one cause, and returns nil if the figures do not indicate it.
// Comparisons fail for an unknown figure.
type rule func(*patient) *Finding

// standstill are the rules for a connection that stands still.
var standstill = []rule{blackHole, outage}

// rules are those for others, in order of precedence for findings with the same gain.
var rules = []rule{
	shortFlow, pacing, cpu, slowReader, windowScaling, receiverWindow, sendBuffer, application,
	segmentSize, reordering, policer, congestion, randomLoss, healthy,
}

// blackHole: the handshake got through, and full segments never do. If path MTU
// discovery is blocked, the path drops large packets silently (RFC 2923, 2.1).
func blackHole(c *patient) *Finding {
	f, o := c.f, c.o
	if !c.stands() {
		return nil
	}
	size := f.MSS + f.Headers
	stalled := fmt.Sprintf("no acknowledgement for %s, though the sender retransmitted", seconds(f.Stalled))
	switch {
	case o.Path.MTU > 0 && o.Path.MTU < size:
		return &Finding{Cause: BlackHole, Evidence: []string{stalled,
			fmt.Sprintf("the path carries packets of %d bytes, and the connection's have %d", o.Path.MTU, size)}}
	case o.Path.Answers && o.Path.MTU == 0:
		return &Finding{Cause: BlackHole, Evidence: []string{stalled,
			fmt.Sprintf("the far host answers small packets meanwhile; the connection's have %d bytes", size)}}
	}
	return nil
}

// shortFlow: the connections end before slow start. Round trips limit them, not the
// path's rate.
func shortFlow(c *patient) *Finding {
	if !c.o.shortConnections(c.f) {
		return nil
	}
	o := c.o
	mean := float64(o.TotalBytes) / float64(max(o.Connections, 1))
	finding := &Finding{Cause: ShortFlow, BoundBps: c.goodput, Evidence: []string{
		fmt.Sprintf("%d connections in %s moved %s each, and none left slow start", o.Connections, seconds(o.Time), units.FormatSize(mean)),
	}}
	now := slowStartTime(int64(mean), c.f.MSS, initialWindow, c.f.MinRTT, zeroIfInf(c.capacity))
	then := slowStartTime(int64(mean), c.f.MSS, largeInitialWindow, c.f.MinRTT, zeroIfInf(c.capacity))
	finding.PredictedBps, finding.Next = c.goodput*float64(now)/float64(then),
		"round trips, and the initial window of receivers"
	return finding
}

// The initial windows, in segments: Linux's (RFC 6928), and the remedy's. That is
// below the 64 KiB of a receiver's initial window.
const (
	initialWindow      = 10
	largeInitialWindow = 40
)

// startRoundTrips is the maximum number of round trips of slow start: ten grow a
// window a thousandfold, plus the handshake and the end.
const startRoundTrips = 15

// shortConnections reports whether the connections begin and end within slow start.
func (o Observation) shortConnections(f Figures) bool {
	return o.Connections >= 3 && (o.FromStart || o.Ended) && f.MSS > 0 && f.MinRTT > 0 && zeroIfNaN(f.LossShare) < 0.01 &&
		(f.SlowStart || f.Time < startRoundTrips*f.MinRTT)
}

// pacing: the socket may not send faster (SO_MAX_PACING_RATE).
func pacing(c *patient) *Finding {
	if !(c.goodput > 0.85*c.f.PacedBps) {
		return nil
	}
	return &Finding{Cause: Pacing, BoundBps: c.f.PacedBps, Evidence: []string{
		fmt.Sprintf("the program limits the socket to %s of data (SO_MAX_PACING_RATE), and it gets %s",
			units.FormatRate(c.f.PacedBps), units.FormatRate(c.goodput)),
	}}
}

// cpu: the program's busiest thread has no time left.
func cpu(c *patient) *Finding {
	if !(c.f.CPU > 0.85 && (c.f.Busy < 0.8 || c.f.Idle > 0.6 || c.runsDry())) {
		return nil
	}
	return &Finding{Cause: CPU, BoundBps: c.goodput, Evidence: []string{
		fmt.Sprintf("one thread of the program is busy %s of the time", percent(c.f.CPU)),
		"the connection waits for it: " + c.idleEvidence(),
	}}
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

// application: the connection waits for the writing program.
func application(c *patient) *Finding {
	if !c.idle() || c.f.CPU > 0.85 {
		return nil
	}
	return &Finding{Cause: Application, BoundBps: c.goodput, Evidence: []string{c.idleEvidence()}}
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
	return &Finding{Cause: Application, BoundBps: c.goodput, slowReader: true, Evidence: []string{
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
		return f.slowReader || f.Cause == ReceiverWindow && c.windowVaries()
	})
}

// maxUnscaled is the largest window without window scaling (RFC 7323, 2.1).
const maxUnscaled = 65535

// windowScaling: the window is small because the header field cannot hold more.
func windowScaling(c *patient) *Finding {
	f := c.f
	if f.WindowScaling || !c.windowLimited() || !(f.PeerWindowMax <= maxUnscaled) {
		return nil
	}
	return &Finding{Cause: WindowScaling, BoundBps: c.windowBound(), Evidence: append([]string{
		"the two hosts agreed on no window scaling, which bounds the window to 65535 bytes"}, c.windowEvidence()...)}
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

// bufferFull reports whether all data of the send buffer is in flight, and the
// congestion window has room for more. The kernel wakes a waiting writer when a third
// of the buffer is free, so the buffer never holds much less.
func (c *patient) bufferFull() bool { return c.f.BufferFull() }

// BufferFull reports whether all data of the send buffer is in flight, and the
// congestion window has room for more.
func (f *Figures) BufferFull() bool {
	return f.Sndbuf > 0.1 || f.BufferLow > 0.65 && f.BufferHigh > 0.85 && f.NotSent < 4*float64(f.MSS) && f.CwndUsed < 0.9 && !(f.Rwnd > 0.15)
}

// sendBuffer: the socket's buffer is smaller than the bandwidth-delay product.
func sendBuffer(c *patient) *Finding {
	f := c.f
	if !c.bufferFull() || f.Busy < 0.8 || f.CPU > 0.85 {
		return nil
	}
	evidence := []string{fmt.Sprintf("the send buffer limited the sender %s of the time", percent(f.Sndbuf))}
	if !(f.Sndbuf > 0.1) {
		evidence = []string{fmt.Sprintf("all data of the send buffer is in flight, %s of the %.0f segments that the congestion window allows", count(f.InFlight), f.Cwnd)}
	}
	return &Finding{Cause: SendBuffer, BoundBps: c.goodput, Evidence: evidence}
}

// segmentSize: segments are smaller than the path carries, and packets or losses
// limit the connection.
func segmentSize(c *patient) *Finding {
	f, o := c.f, c.o
	size := f.MSS + f.Headers
	mtu := o.Path.MTU
	if o.Capture != nil && o.Capture.AgreedMSS > 0 {
		// The sender announces what its own device carries.
		size, mtu = o.Capture.AgreedMSS+f.Headers, o.Capture.SenderMSS+f.Headers
	}
	if f.MSS == 0 || mtu == 0 || float64(size) >= 0.95*float64(mtu) {
		return nil
	}
	larger := float64(mtu-f.Headers) / float64(f.MSS)
	carries := "the path"
	if o.Capture != nil {
		carries = "the sender's device"
	}
	finding := &Finding{Cause: SegmentSize, Evidence: []string{
		fmt.Sprintf("packets have %d bytes, and %s carries %d", size, carries, mtu),
	}}
	if o.Path.ReverseMTU > 0 && o.Path.ReverseMTU < mtu {
		finding.Cause = AsymmetricMTU
		finding.Evidence = append(finding.Evidence,
			fmt.Sprintf("the way back carries %d: the receiver asks for segments of that size", o.Path.ReverseMTU))
	}
	// The trial with half the size shows how the goodput depends on the size.
	if t := o.SmallSegments; t != nil && o.Capacity != nil && t.GoodputBps > 0 && t.SegmentBytes > 0 && t.SegmentBytes < o.Capacity.SegmentBytes {
		exponent := math.Log(o.Capacity.GoodputBps/t.GoodputBps) / math.Log(o.Capacity.SegmentBytes/t.SegmentBytes)
		finding.Evidence = append(finding.Evidence, fmt.Sprintf("segments of %.0f bytes in place of %.0f, in the mean, got %s in place of %s", t.SegmentBytes, o.Capacity.SegmentBytes, units.FormatRate(t.GoodputBps), units.FormatRate(o.Capacity.GoodputBps)))
		finding.pathShare = math.Pow(larger, min(max(exponent, 0), 1))
		finding.PredictedBps, finding.Next = c.goodput*finding.pathShare, "the path"
	}
	return finding
}

// reordering: the sender takes overtaken segments for lost ones.
func reordering(c *patient) *Finding {
	f := c.f
	if !(f.SpuriousShare > 0.3 && f.LossShare > 0.001 || f.Reordered > 3) {
		return nil
	}
	finding := &Finding{Cause: Reordering, BoundBps: c.goodput}
	if c.o.Capacity != nil {
		// The connections of the trial also suffer from it.
		finding.pathShare = 1.05
		finding.PredictedBps, finding.Next = max(finding.pathShare*c.capacity, c.goodput), "the path"
	}
	if f.Reordered > 0 {
		finding.Evidence = append(finding.Evidence, fmt.Sprintf("%.0f of a thousand segments overtook others, by up to %.0f", f.Reordered, f.Reordering))
	}
	if f.SpuriousShare > 0 {
		finding.Evidence = append(finding.Evidence, fmt.Sprintf("%s of the segments were retransmitted, and the receiver had %s of those already (DSACK)", percent(f.LossShare), percent(f.SpuriousShare)))
	}
	if c.looksOld() {
		finding.Evidence = append(finding.Evidence, fmt.Sprintf("at this rate that is up to %s, and TCP's timestamps can make both ends drop what looks older than earlier data (PAWS)",
			milliseconds(c.overtakes())))
	}
	return finding
}

// overtakes returns the time by which segments overtake others: the kernel's estimate of
// reordering at the connection's goodput.
func (c *patient) overtakes() time.Duration {
	return time.Duration(zeroIfNaN(c.f.Reordering) * float64(c.f.MSS) * 8 / c.goodput * float64(time.Second))
}

// looksOld reports whether timestamps, of a millisecond each, make overtaken segments and
// acknowledgements look old, so that the ends drop them (PAWS, RFC 7323, section 5).
func (c *patient) looksOld() bool {
	return c.f.Timestamps && c.goodput > 0 && c.overtakes() >= 10*time.Millisecond
}

// policer: a policer drops packets above a rate, without a queue before it.
func policer(c *patient) *Finding {
	f, t := c.f, c.o.Capacity
	// With few segments under way, acknowledgements that wait for a second
	// segment look like a queue.
	if t == nil || f.Queue > 0.5 || f.SlowStart || !(f.CwndUsed > 0.5) {
		return nil
	}
	if !(t.LossShare > 2*c.lost && t.DropsWithoutQueue() && t.RTT-t.MinRTT < noQueue+t.MinRTT/30) {
		return nil
	}
	if c.lost == 0 && !(t.LossShare > 0.1 && trialQueue(t) < 0.1) {
		return nil // one sign is not enough
	}
	finding := &Finding{Cause: Policer, BoundBps: c.goodput, pathShare: belowPolicer, PredictedBps: max(belowPolicer*c.path, c.goodput), Next: "the policer", Evidence: []string{
		fmt.Sprintf("%s of the segments are lost at %s, and %s at %s, without a queue: a policer drops packets above a rate", percent(c.lost), units.FormatRate(c.goodput), percent(t.LossShare), units.FormatRate(t.GoodputBps)),
	}}
	if more := c.o.MoreStreams; c.policesConnections() {
		finding.Evidence = append(finding.Evidence, fmt.Sprintf("%d connections get %s together, and %d get %s: each has the limit, not all of them",
			t.Streams, units.FormatRate(t.GoodputBps), more.Streams, units.FormatRate(more.GoodputBps)))
	}
	return finding
}

// belowPolicer is the share of a policer's rate that a sender gets.
const belowPolicer = 0.95

// policesConnections reports whether what drops packets without a queue has a limit for each
// connection: twice as many get nearly twice as much. With random losses the share of losses
// would not grow with the rate.
func (c *patient) policesConnections() bool {
	t, more := c.o.Capacity, c.o.MoreStreams
	return t != nil && more != nil && more.Streams > t.Streams && !more.WindowLimited && t.LossShare > 2*c.lost &&
		t.DropsWithoutQueue() && more.DropsWithoutQueue() && more.each() > 0.8*t.each()
}

// noQueue is the variation of a round trip without a queue: acknowledgements wait for
// a second segment, and connections for each other.
const noQueue = 10 * time.Millisecond

func trialQueue(t *Trial) float64 {
	if t.MinRTT <= 0 {
		return 0
	}
	return float64(t.RTT-t.MinRTT) / float64(t.MinRTT)
}

// queued is the threshold of Queue for a queue.
const queued = 0.27

// congestion: there is a queue of other connections.
func congestion(c *patient) *Finding {
	f := c.f
	if policer(c) != nil || !(f.Queue > queued && f.CwndUsed > 0.5 && c.goodput < ownQueue*c.capacity && !math.IsInf(c.capacity, 1)) {
		return nil
	}
	return &Finding{Cause: Congestion, Evidence: []string{
		fmt.Sprintf("packets wait %s in a queue, at %s of the %s that the path carries: others fill it", milliseconds(f.RTT-f.MinRTT), units.FormatRate(c.goodput), units.FormatRate(c.capacity)),
	}}
}

// randomLoss: the path loses segments without a full queue.
func randomLoss(c *patient) *Finding {
	f := c.f
	if !(c.lost > 0 && f.Queue < queued) || f.SlowStart || reordering(c) != nil || policer(c) != nil || c.idle() || math.IsInf(c.lossBound(), 1) {
		return nil
	}
	return &Finding{Cause: RandomLoss, BoundBps: max(c.goodput, c.lossBound()), Evidence: []string{
		fmt.Sprintf("%s of the segments are lost while packets hardly wait (%s at least, %s usually)", percent(c.lost), milliseconds(f.MinRTT), milliseconds(f.RTT)),
		fmt.Sprintf("%s reaches %s with that, by its model", orDefault(c.o.CongestionControl, "the congestion control"), units.FormatRate(c.lossBound())),
	}}
}

// ownQueue is the minimum share of the path's capacity at which a queue counts as the
// connection's own. A congestion control that overflows a queue leaves the path idle
// at times, even without other connections.
const ownQueue = 0.65

// healthy: the connection fills the path's capacity.
func healthy(c *patient) *Finding {
	f := c.f
	switch {
	case c.goodput >= c.capacity/Worthwhile || c.goodput >= ownQueue*c.capacity && f.Queue+f.RTTSpread > 0.25:
		return &Finding{Cause: Healthy, Evidence: []string{
			fmt.Sprintf("it gets %s; several connections at once get %s", units.FormatRate(c.goodput), units.FormatRate(c.capacity)),
		}}
	case math.IsInf(c.capacity, 1) && f.Queue > 0.1 && f.CwndUsed > 0.5 && !(c.goodput < ownQueue*c.path && !math.IsInf(c.path, 1)):
		return &Finding{Cause: Healthy, Evidence: []string{
			fmt.Sprintf("it fills the path: packets wait %s in its queue", milliseconds(f.RTT-f.MinRTT)),
		}}
	}
	return nil
}

// doubt returns how to make a verdict certain.
func (c *patient) doubt(findings []Finding) string {
	cause := findings[0].Cause
	if c.readerInDoubt(findings[:1]) {
		doubt := "a program that reads slowly, and small buffers of its host (tcp_rmem), look alike"
		if c.o.Capture == nil {
			doubt += ": add --test, with longhaul measure --serve at the far end"
		}
		return doubt
	}
	if (cause == SegmentSize || cause == AsymmetricMTU) && c.o.Capture != nil {
		return "a capture does not show whether the path carries larger packets: " +
			"longhaul doctor --remote --test on the sending host finds out"
	}
	if !(cause == RandomLoss || cause == Healthy || cause == Congestion || cause == Unexplained) || c.o.Capacity != nil {
		return ""
	}
	switch capture := c.o.Capture; {
	case capture == nil:
		return c.capacityUnknown()
	case !capture.AtSender:
		return "the capture is not from the sending host: only one from there shows what the sender waits for"
	case !capture.Handshake:
		return "the capture lacks the handshake, and with it the windows: capture from the connection's start"
	case cause == Unexplained && c.goodput < ownQueue*c.path && !math.IsInf(c.path, 1):
		return fmt.Sprintf("bursts cross the path at %s, so the program, its pacing or its send buffer may limit it: "+
			"longhaul doctor --remote on the sending host tells them apart", units.FormatRate(c.path))
	case cause == Unexplained:
		return "a capture does not show the program and its buffers: run longhaul doctor --remote on the sending host"
	}
	return c.capacityUnknown()
}

// capacityUnknown says how to find the capacity of the path.
func (c *patient) capacityUnknown() string {
	switch capture := c.o.Capture; {
	case capture == nil:
		return "the path's capacity is unknown: run longhaul measure --serve at the far end, and add --test"
	case !capture.AtSender:
		return "the path's capacity is unknown: capture at the sending host, whose bursts may show it"
	}
	return "no bursts show the path's capacity: longhaul doctor --remote --test on the sending host measures it"
}

func zeroIfInf(v float64) float64 {
	if math.IsInf(v, 0) {
		return 0
	}
	return v
}

func orDefault(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

func count(v float64) string { return fmt.Sprintf("%.0f", v) }

func percent(share float64) string {
	switch p := 100 * share; {
	case p >= 10:
		return fmt.Sprintf("%.0f %%", p)
	case p >= 1:
		return fmt.Sprintf("%.1f %%", p)
	default:
		return fmt.Sprintf("%.2g %%", p)
	}
}

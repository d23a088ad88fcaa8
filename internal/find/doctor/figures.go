package doctor

import (
	"math"
	"slices"
	"time"

	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/words/stats"
)

// unknown is the value of a missing figure.
var unknown = math.NaN()

// Figures are the input of the rules. A missing figure is NaN, so no comparison with
// it holds. A missing time is zero.
type Figures struct {
	Time       time.Duration // that the samples span
	Samples    int
	GoodputBps float64 // of data acknowledged by the peer
	Received   float64 // received bits per second

	// Shares of Time, of the sender's clocks.
	Busy   float64 // it had unsent or unacknowledged data
	Rwnd   float64 // the peer's window limited it
	Sndbuf float64 // the send buffer limited it

	RTT, MinRTT time.Duration // median of the smoothed, and the minimum
	P95RTT      time.Duration // 95th percentile of the smoothed
	RTTSpread   float64       // (95th - 5th percentile of the smoothed) ÷ MinRTT
	RTTVar      time.Duration // median of the mean deviation: between packets, not over seconds
	// Queue is the queueing delay of packets ÷ MinRTT. It uses the median, or the
	// first quartile with few segments in flight: delayed acknowledgements look
	// like a queue then.
	Queue float64
	// Steady is the part of Queue beyond the variation from one packet to the next. A
	// queue grows and shrinks over several round trips. Jitter, delayed acknowledgements and
	// those that come in bunches vary with each packet.
	Steady float64

	MSS             int     // data of a full segment, bytes
	Headers         int     // of IP and TCP, bytes, of a full segment
	LossShare       float64 // retransmitted segments ÷ segments sent
	SpuriousShare   float64 // of those, the share that the receiver already had (RFC 2883)
	LossEvents      int     // samples in which recovery began, or continued after a window was cut
	LossEventRate   float64 // per segment delivered
	Reordered       float64 // events of reordering per 1000 segments
	Reordering      float64 // maximum of the kernel's estimate of reordering, segments
	Timeouts        int
	Stalled         time.Duration // longest time with data in flight and no acknowledgement
	StalledAtTheEnd bool

	Cwnd          float64 // segments, median
	InFlight      float64 // segments, median
	MaxInFlight   float64 // segments
	CwndUsed      float64 // share of samples with a congestion window in use
	NotSent       float64 // bytes waiting to be sent, median
	Idle          float64 // share of samples with no unsent data and room in the congestion window
	Held          float64 // share of samples with less than a segment unsent, though both windows have room: Nagle's algorithm
	HeldBytes     float64 // unsent in those samples, median
	Sent, Answers int     // segments of data sent, and those that came back
	PeerWindow    float64 // bytes, median
	PeerWindowMin float64
	PeerWindowMax float64
	ZeroWindow    float64 // share of samples in which the peer's window held less than two segments, or half of its most
	BufferLow     float64 // 10th percentile of the share of the send buffer in use
	BufferHigh    float64 // 90th
	SendBuffer    float64 // bytes at the end
	// SendBufferFixed: the buffer is smaller than the kernel's own sizing, which
	// has room for two congestion windows and overhead.
	SendBufferFixed bool
	SlowStart       bool    // no loss has ended the start yet
	PacedBps        float64 // goodput that SO_MAX_PACING_RATE allows; +Inf without
	Variation       float64 // coefficient of variation of the goodput over seconds
	CPU             float64 // share of Time in which the busiest thread ran or waited for a CPU
	Waited          float64 // share of Time in which a thread of the program waited for a CPU
	Pressure        float64 // share of Time in which some program of this host waited for a CPU
	RecvQueue       float64 // bytes that this end's program has not read, median
	Announced       float64 // window that this end announces, bytes, median

	WindowScaling bool // both ends agreed; true if unknown
	Timestamps    bool
	SACK          bool
	Bytes         int64 // acknowledged since the connection began
}

// rtoInfinite is the threshold at or above which a slow start threshold means none.
const infiniteThreshold = 0x7fffffff

// Figures computes the rules' figures.
func (o Observation) Figures() Figures {
	f := Figures{
		Samples: len(o.Samples), Rwnd: unknown, Sndbuf: unknown, Busy: unknown, LossShare: unknown, SpuriousShare: unknown,
		Reordered: unknown, PacedBps: math.Inf(1), CPU: unknown, Variation: unknown, NotSent: unknown, BufferLow: unknown, BufferHigh: unknown,
		PeerWindow: unknown, PeerWindowMin: unknown, PeerWindowMax: unknown, GoodputBps: unknown, LossEventRate: unknown,
		Idle: unknown, Held: unknown, Waited: unknown, Pressure: unknown, Reordering: unknown, RecvQueue: unknown, Announced: unknown, ZeroWindow: unknown, WindowScaling: true,
	}
	if len(o.Samples) == 0 {
		return f
	}
	first, last := &o.Samples[0], &o.Samples[len(o.Samples)-1]
	f.Time = last.At - first.At
	seconds := f.Time.Seconds()
	f.header(o, last)
	if seconds <= 0 {
		return f
	}
	has := func(field tcpinfo.Field) bool { return first.Info.Has(field) && last.Info.Has(field) }
	share := func(field tcpinfo.Field, now, then time.Duration) float64 {
		if !has(field) {
			return unknown
		}
		return min(max((now-then).Seconds()/seconds, 0), 1) // its clock has coarse steps
	}
	a, b := &first.Info, &last.Info
	f.Busy = share(tcpinfo.FieldBusyTime, b.BusyTime, a.BusyTime)
	f.Rwnd = share(tcpinfo.FieldRwndLimited, b.RwndLimited, a.RwndLimited)
	f.Sndbuf = share(tcpinfo.FieldSndbufLimited, b.SndbufLimited, a.SndbufLimited)
	if has(tcpinfo.FieldBytesAcked) {
		f.GoodputBps = float64(b.BytesAcked-a.BytesAcked) * 8 / seconds
		f.Bytes = int64(b.BytesAcked)
	}
	if has(tcpinfo.FieldBytesReceived) {
		f.Received = float64(b.BytesReceived-a.BytesReceived) * 8 / seconds
	}
	if has(tcpinfo.FieldDataSegsIn) {
		f.Sent, f.Answers = int(b.DataSegsOut-a.DataSegsOut), int(b.DataSegsIn-a.DataSegsIn)
	}
	f.CPU = cpuShare(o.Samples)
	f.Waited = grown(first.Waited, last.Waited, f.Time)
	f.Pressure = grown(first.Pressure, last.Pressure, f.Time)
	f.losses(a, b)
	f.windows(o.Samples)
	f.rtts(o.Samples)
	f.course(o.Samples)
	return f
}

// cpuShare returns the share of time in which the busiest thread ran or waited for a
// CPU, between the first sample that has it and the last. The kernel counts a wait when it
// ends: the share is that between two ends, if most of the time lies between them.
func cpuShare(samples []Sample) float64 {
	var known, ends []*Sample
	for i := range samples {
		s := &samples[i]
		if s.CPU < 0 {
			continue
		}
		if len(known) > 0 && s.CPU > known[len(known)-1].CPU {
			ends = append(ends, s)
		}
		known = append(known, s)
	}
	if len(known) < 2 {
		return unknown
	}
	first, last := known[0], known[len(known)-1]
	if len(ends) > 2 {
		if a, b := ends[0], ends[len(ends)-1]; b.At-a.At > (last.At-first.At)/2 {
			first, last = a, b
		}
	}
	return min(float64(last.CPU-first.CPU)/float64(last.At-first.At), 1)
}

// grown returns the share of a time by which a clock has gone on; unknown if it stands.
func grown(from, to, during time.Duration) float64 {
	if to <= from {
		return unknown
	}
	return min(float64(to-from)/float64(during), 1)
}

// header reads the constant properties.
func (f *Figures) header(o Observation, last *Sample) {
	i := &last.Info
	f.MSS = int(i.SndMSS)
	ip := 20
	if o.Remote.Addr().Is6() && !o.Remote.Addr().Is4In6() {
		ip = 40
	}
	f.Headers = ip + 20
	if i.Has(tcpinfo.FieldOptions) {
		f.Timestamps = i.Options&tcpinfo.OptTimestamps != 0
		f.SACK = i.Options&tcpinfo.OptSACK != 0
		f.WindowScaling = i.Options&tcpinfo.OptWScale != 0
	}
	if f.Timestamps {
		f.Headers += 12
	}
	f.SlowStart = i.Has(tcpinfo.FieldSndSSThresh) && i.SndSSThresh >= infiniteThreshold
	if i.Has(tcpinfo.FieldMaxPacingRateBps) && i.MaxPacingRateBps != tcpinfo.Unlimited && f.MSS > 0 {
		// TCP's own pacing counts data; that of the fq queue discipline counts
		// packets, which is a few percent less.
		f.PacedBps = float64(i.MaxPacingRateBps)
	}
}

// losses computes the figures of retransmission.
func (f *Figures) losses(a, b *tcpinfo.Info) {
	f.Timeouts = int(b.TotalRTO - a.TotalRTO)
	sent := float64(b.DataSegsOut - a.DataSegsOut)
	if !b.Has(tcpinfo.FieldDataSegsOut) || !b.Has(tcpinfo.FieldTotalRetrans) || sent <= 0 {
		return
	}
	// A SYN or a FIN without data counts as a retransmission, and not as a segment.
	again := min(float64(b.TotalRetrans-a.TotalRetrans), sent)
	if b.Has(tcpinfo.FieldBytesRetrans) && b.BytesSent > a.BytesSent && b.BytesRetrans == a.BytesRetrans {
		again = 0
	}
	f.LossShare = again / sent
	if b.Has(tcpinfo.FieldDSACKDups) && again > 0 {
		f.SpuriousShare = min(float64(b.DSACKDups-a.DSACKDups)/again, 1)
	}
	if b.Has(tcpinfo.FieldReordSeen) {
		f.Reordered = float64(b.ReordSeen-a.ReordSeen) * 1000 / sent
	}
}

// fewSegments is the number of segments in flight that makes acknowledgements regular.
const fewSegments = 20

func (f *Figures) rtts(samples []Sample) {
	var smoothed, deviations []float64
	for _, s := range samples {
		if s.Info.Has(tcpinfo.FieldRTT) {
			smoothed = append(smoothed, s.Info.RTT.Seconds())
		}
		if s.Info.Has(tcpinfo.FieldRTTVar) {
			deviations = append(deviations, s.Info.RTTVar.Seconds())
		}
		if s.Info.Has(tcpinfo.FieldMinRTT) && s.Info.MinRTT > 0 && (f.MinRTT == 0 || s.Info.MinRTT < f.MinRTT) {
			f.MinRTT = s.Info.MinRTT
		}
	}
	if len(smoothed) == 0 {
		return
	}
	slices.Sort(smoothed)
	f.RTT = time.Duration(stats.At(smoothed, 0.5) * float64(time.Second))
	f.P95RTT = time.Duration(stats.At(smoothed, 0.95) * float64(time.Second))
	if f.MinRTT == 0 {
		f.MinRTT = time.Duration(smoothed[0] * float64(time.Second))
	}
	if least := f.MinRTT.Seconds(); least > 0 {
		f.RTTSpread = (stats.At(smoothed, 0.95) - stats.At(smoothed, 0.05)) / least
		usual := f.RTT.Seconds()
		if f.Cwnd < fewSegments {
			usual = stats.At(smoothed, 0.25)
		}
		f.Queue = max(usual-least, 0) / least
		f.Steady = f.Queue
		if len(deviations) > 0 {
			deviation := median(deviations)
			f.RTTVar = time.Duration(deviation * float64(time.Second))
			f.Steady = max(usual-least-perPacket*deviation, 0) / least
		}
	}
}

// perPacket is the number of mean deviations that the variation from one packet to the next
// reaches, as the retransmission timer has it (RFC 6298).
const perPacket = 4

// windows computes the figures of windows and data in flight.
func (f *Figures) windows(samples []Sample) {
	var cwnd, inFlight, notSent, held, peer, between, used, received, announced []float64
	var cwndUsed, idle, counted float64
	for _, s := range samples {
		i := &s.Info
		flying := float64(i.Unacked) - float64(i.Sacked) - float64(i.Lost) + float64(i.Retrans)
		cwnd, inFlight = append(cwnd, float64(i.SndCwnd)), append(inFlight, float64(i.Unacked))
		counted++
		full := flying >= 0.9*float64(i.SndCwnd)-1
		if full {
			cwndUsed++
		}
		if i.Has(tcpinfo.FieldNotsentBytes) {
			notSent = append(notSent, float64(i.NotsentBytes))
			switch {
			case i.NotsentBytes >= i.SndMSS || full || i.CAState != tcpinfo.CAOpen:
			case i.NotsentBytes > 0 && i.Unacked > 0 && uint64(i.SndWnd) > uint64(i.Unacked+1)*uint64(i.SndMSS):
				held = append(held, float64(i.NotsentBytes))
			default:
				idle++
			}
		}
		if i.Has(tcpinfo.FieldSndWnd) {
			peer = append(peer, float64(i.SndWnd))
			if s.PeerWindowHigh > 0 {
				between = append(between, float64(s.PeerWindowLow), float64(s.PeerWindowHigh))
			}
		}
		if i.Has(tcpinfo.FieldReordering) {
			f.Reordering = math.Max(float64(i.Reordering), zeroIfNaN(f.Reordering))
		}
		if s.SendBuffer > 0 && s.SendQueued >= 0 {
			used = append(used, float64(s.SendQueued)/float64(s.SendBuffer))
		}
		if i.Has(tcpinfo.FieldRcvWnd) {
			announced = append(announced, float64(i.RcvWnd))
		}
		if s.RecvQueue >= 0 {
			received = append(received, float64(s.RecvQueue))
		}
	}
	f.Cwnd, f.InFlight, f.CwndUsed, f.MaxInFlight = median(cwnd), median(inFlight), cwndUsed/counted, slices.Max(inFlight)
	if len(notSent) > 0 {
		f.NotSent, f.Idle, f.Held = median(notSent), idle/counted, float64(len(held))/counted
	}
	if len(held) > 0 {
		f.HeldBytes = median(held)
	}
	if len(peer) > 0 {
		all := append(between, peer...)
		f.PeerWindow, f.PeerWindowMin, f.PeerWindowMax = median(all), slices.Min(all), slices.Max(all)
		// On a device with large segments a usual window holds less than two.
		closed, zero := min(2*float64(f.MSS), f.PeerWindowMax/2), 0.0
		for _, window := range peer {
			if window < closed || window == 0 {
				zero++
			}
		}
		f.ZeroWindow = zero / float64(len(peer))
	}
	if len(used) > 0 {
		slices.Sort(used)
		f.BufferLow, f.BufferHigh = stats.At(used, 0.1), stats.At(used, 0.9)
		f.SendBuffer = float64(samples[len(samples)-1].SendBuffer)
		f.SendBufferFixed = f.SendBuffer < 2*slices.Max(cwnd)*float64(f.MSS)
	}
	if len(announced) > 0 {
		f.Announced = median(announced)
	}
	if len(received) > 0 {
		f.RecvQueue = median(received)
	}
}

// course computes the figures over time: losses, standstills, the goodput's variation.
func (f *Figures) course(samples []Sample) {
	var rates []float64
	begin := samples[0]
	progress := samples[0]
	recovering := false
	for k := 1; k < len(samples); k++ {
		s, before := samples[k], samples[k-1]
		lost := s.Info.TotalRetrans > before.Info.TotalRetrans
		if lost && !recovering {
			f.LossEvents++
		}
		// Retransmissions in the round trip after a loss belong to it.
		recovering = lost && s.At-before.At < f.RTT || s.Info.CAState >= tcpinfo.CARecovery
		if s.Info.BytesAcked > before.Info.BytesAcked || s.Info.Unacked == 0 {
			progress = s
			f.StalledAtTheEnd = false
		} else if still := s.At - progress.At; still > f.Stalled && s.Info.Has(tcpinfo.FieldBytesAcked) {
			f.Stalled, f.StalledAtTheEnd = still, true
		}
		if s.At-begin.At >= time.Second {
			rates = append(rates, float64(s.Info.BytesAcked-begin.Info.BytesAcked)/(s.At-begin.At).Seconds())
			begin = s
		}
	}
	first, last := &samples[0].Info, &samples[len(samples)-1].Info
	if delivered := float64(last.Delivered - first.Delivered); delivered > 0 {
		f.LossEventRate = float64(f.LossEvents) / delivered
	}
	if len(rates) >= 3 {
		f.Variation = deviation(rates)
	}
}

func zeroIfNaN(v float64) float64 {
	if math.IsNaN(v) {
		return 0
	}
	return v
}

func median(values []float64) float64 {
	if len(values) == 1 { // as in most glances: thousands of flows have one each second
		return values[0]
	}
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	return stats.At(sorted, 0.5)
}

// deviation returns the standard deviation ÷ the mean.
func deviation(values []float64) float64 {
	var sum, squares float64
	for _, v := range values {
		sum += v
	}
	mean := sum / float64(len(values))
	if mean == 0 {
		return unknown
	}
	for _, v := range values {
		squares += (v - mean) * (v - mean)
	}
	return math.Sqrt(squares/float64(len(values))) / mean
}

package measure

import (
	"slices"
	"time"

	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/words/stats"
)

// Figures are what the samples of the sending ends say of the time that
// counts, over one or more streams. What is not known is -1.
type Figures struct {
	// The smoothed RTT as the senders' kernels had it at the samples, except
	// RTTMin, which is the kernel's own least over every segment.
	RTTMin, RTTMedian, RTTP99, RTTMean, RTTMax time.Duration

	CongestionEvents int64 // sum
	MaxCwndBytes     int64 // of one stream
	MaxSndWndBytes   int64 // of one stream
	// DeliveryBps is the median of the kernel's samples of the rate at which
	// the receiver acknowledged, without those in which the program offered
	// too little; the sum over the streams.
	DeliveryBps float64

	// Time with data to send, and the parts of it in which the receiver's
	// window and the send buffer held the sender back; sums.
	Busy, RwndLimited, SndbufLimited time.Duration

	SndMSS, RcvMSS    int64 // payload of a segment as the sender makes it, as the receiver sees it, bytes
	PMTU, ReversePMTU int64 // the two ends' path MTU, each towards the other, bytes
	CongestionControl string
}

// Figures are those of the streams of a direction.
func (s Summary) Figures(sends bool) Figures {
	var streams []StreamSummary
	for _, st := range s.Streams {
		if st.Sends == sends {
			streams = append(streams, st)
		}
	}
	return figures(streams...)
}

// Figures are those of the one stream.
func (s StreamSummary) Figures() Figures { return figures(s) }

func figures(streams ...StreamSummary) Figures {
	f := Figures{
		RTTMin: -1, RTTMedian: -1, RTTP99: -1, RTTMean: -1, RTTMax: -1,
		CongestionEvents: -1, MaxCwndBytes: -1, MaxSndWndBytes: -1, DeliveryBps: -1,
		Busy: -1, RwndLimited: -1, SndbufLimited: -1, SndMSS: -1, RcvMSS: -1, PMTU: -1, ReversePMTU: -1,
	}
	var rtts []time.Duration
	for _, st := range streams {
		if st.CongestionControl != "" {
			f.CongestionControl = st.CongestionControl
		}
		if r := st.Receiver; r != nil {
			if r.Info.Has(tcpinfo.FieldRcvMSS) {
				f.RcvMSS = int64(r.Info.RcvMSS)
			}
			if r.Info.Has(tcpinfo.FieldPMTU) {
				f.ReversePMTU = int64(r.Info.PMTU)
			}
		}
		if len(st.Samples) == 0 {
			continue
		}
		sum(&f.CongestionEvents, st.CongestionEvents)
		var delivery []float64
		first, last := st.Samples[0], st.Samples[len(st.Samples)-1]
		for _, one := range st.Samples {
			if one.At <= 0 {
				first = one
			}
			if one.At < 0 {
				continue
			}
			i := &one.Info
			if i.Has(tcpinfo.FieldRTT) {
				rtts = append(rtts, i.RTT)
			}
			f.MaxCwndBytes = max(f.MaxCwndBytes, int64(i.SndCwnd)*int64(i.SndMSS))
			if i.Has(tcpinfo.FieldSndWnd) {
				f.MaxSndWndBytes = max(f.MaxSndWndBytes, int64(i.SndWnd))
			}
			if i.Has(tcpinfo.FieldDeliveryRateBps) && !i.DeliveryRateAppLimited && i.DeliveryRateBps > 0 {
				delivery = append(delivery, float64(i.DeliveryRateBps))
			}
		}
		if len(delivery) > 0 {
			slices.Sort(delivery)
			sum(&f.DeliveryBps, stats.At(delivery, 0.5))
		}
		a, b := &first.Info, &last.Info
		if b.Has(tcpinfo.FieldMinRTT) && (f.RTTMin < 0 || b.MinRTT < f.RTTMin) {
			f.RTTMin = b.MinRTT
		}
		if a.Has(tcpinfo.FieldSndbufLimited) && b.Has(tcpinfo.FieldSndbufLimited) {
			sum(&f.Busy, b.BusyTime-a.BusyTime)
			sum(&f.RwndLimited, b.RwndLimited-a.RwndLimited)
			sum(&f.SndbufLimited, b.SndbufLimited-a.SndbufLimited)
		}
		f.SndMSS, f.PMTU = int64(b.SndMSS), int64(b.PMTU)
	}
	if len(rtts) > 0 {
		slices.Sort(rtts)
		f.RTTMedian, f.RTTP99, f.RTTMax = stats.At(rtts, 0.5), rtts[len(rtts)*99/100], rtts[len(rtts)-1]
		var total time.Duration
		for _, rtt := range rtts {
			total += rtt
		}
		f.RTTMean = total / time.Duration(len(rtts))
	}
	return f
}

// sum adds to what may not be known yet.
func sum[N ~int64 | ~float64](to *N, n N) { *to = max(*to, 0) + max(n, 0) }

// LimitBps is the payload that a link of a rate carries at most: the rate times
// the payload's share of a full packet. It is -1 where the sizes are not known.
func (f Figures) LimitBps(linkBps float64) float64 {
	if f.SndMSS <= 0 || f.PMTU <= 0 {
		return -1
	}
	return linkBps * float64(f.SndMSS) / float64(f.PMTU)
}

// congestionEvent reports whether a congestion event began between two samples of
// a sender: what RFC 5681 (section 3.1) answers with one reduction of the
// window, however many segments are lost in a window of data (a "loss event" of
// RFC 5348, section 5.2), so that it is not a count of retransmissions. The
// kernel counts no such events; they are seen by its state of loss recovery, by
// the slow start threshold, which it sets at each, and by retransmissions in an
// interval that began and ended outside of recovery. More than one between two
// samples is taken for one, and a tail loss probe (RFC 8985) for one too.
func congestionEvent(before, now *tcpinfo.Info) bool {
	retransmitted := now.TotalRetrans != before.TotalRetrans
	switch {
	case reducing(before.CAState):
		return retransmitted && now.SndSSThresh != before.SndSSThresh
	case reducing(now.CAState):
		return true
	}
	return retransmitted
}

// reducing reports whether a state is one that a congestion event leads into.
func reducing(s tcpinfo.CAState) bool {
	return s == tcpinfo.CACWR || s == tcpinfo.CARecovery || s == tcpinfo.CALoss
}

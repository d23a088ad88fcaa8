package pcap

import (
	"math"
	"time"

	"longhaul/internal/find/doctor"
	"longhaul/internal/sys/tcpinfo"
)

const (
	// minInterval is the interval of samples unless the round trip is longer.
	minInterval = 100 * time.Millisecond
	// maxSamples bounds the samples of a direction. At the bound, every second
	// one is removed and the interval doubles.
	maxSamples = 600
	// noSSThresh is the kernel's value before the first reduction.
	noSSThresh = 0x7fffffff
	// unknown marks the unknown fields of a sample beside Info.
	unknown = -1
)

// snapshot is the state of a half at one moment, with no field marked as known
// yet.
type snapshot struct {
	at     int64
	info   tcpinfo.Info
	window bool // SndWnd is known
}

// sampleUntil takes the samples due before t; for a pause, only the first and
// the last.
func (c *connection) sampleUntil(t int64) {
	if c.next > t {
		return
	}
	c.sampleAt(c.next)
	c.next += c.interval()
	if c.next > t {
		return
	}
	c.next = t - (t-c.next)%c.interval()
	c.sampleAt(c.next)
	c.next += c.interval()
}

func (c *connection) interval() int64 {
	return max(c.every, c.half[0].srtt, c.half[1].srtt)
}

// sampleAt samples both ends. For an end without data it keeps only the latest.
func (c *connection) sampleAt(at int64) {
	for i := range c.half {
		h := &c.half[i]
		h.run(at)
		s := c.snapshot(i, at)
		if n := len(c.samples[i]); n > 0 && h.count.bytesSent == 0 && h.dataAcknowledged() == 0 {
			c.samples[i][n-1] = s
			continue
		}
		c.samples[i] = append(c.samples[i], s)
	}
	if max(len(c.samples[0]), len(c.samples[1])) < maxSamples {
		return
	}
	c.every = 2 * c.interval()
	for i := range c.samples {
		c.samples[i] = everySecond(c.samples[i])
	}
}

func everySecond(s []snapshot) []snapshot {
	n := 0
	for i := 0; i < len(s); i += 2 {
		s[n] = s[i]
		n++
	}
	return s[:n]
}

// count32 clamps a count to 32 bits.
func count32(n int64) uint32 { return uint32(max(0, min(n, math.MaxUint32))) }

// snapshot makes the tcp_info of an end.
func (c *connection) snapshot(of int, at int64) snapshot {
	h, peer := &c.half[of], &c.half[1-of]
	n := &h.count
	segment := int64(h.sizes.segment())
	// A packet that filled a gap was sent once more than captured.
	info := tcpinfo.Info{
		State:        c.state(of),
		Options:      c.agreed(),
		SndWScale:    uint8(max(0, c.shift(1-of))),
		RcvWScale:    uint8(max(0, c.shift(of))),
		SndMSS:       count32(segment),
		RcvMSS:       count32(int64(peer.sizes.max)),
		AdvMSS:       count32(int64(h.offer.MSS - c.optionBytes())),
		Unacked:      count32(h.unacked),
		Sacked:       count32(h.sacked),
		RTT:          time.Duration(h.srtt),
		RTTVar:       time.Duration(h.rttvar),
		MinRTT:       time.Duration(h.minRTT),
		SndCwnd:      count32(max(h.flightMax, h.flightMaxBefore)),
		SndWnd:       count32(h.wnd),
		TotalRetrans: count32(n.segsResent + n.segsFilled),
		BytesAcked:   uint64(h.acknowledged()),
		SegsOut:      count32(n.segsOut + n.segsFilled),
		SegsIn:       count32(n.segsIn),
		DataSegsOut:  count32(n.dataSegsOut + n.segsFilled),
		DataSegsIn:   count32(n.dataSegsIn),
		BytesSent:    uint64(n.bytesSent + n.bytesFilled),
		BytesRetrans: uint64(n.bytesResent + n.bytesFilled),
		Delivered:    count32(n.deliveredSegs),
		DSACKDups:    count32(n.dsackSegs),
		ReordSeen:    count32(n.reordSeen),
		TotalRTO:     uint16(min(n.timeouts, math.MaxUint16)),
		BusyTime:     time.Duration(h.busy),
		RwndLimited:  time.Duration(h.rwndLimited),

		DeliveryRateBps: h.rateBps,
	}
	if n.segsResent+n.segsFilled == 0 && h.isnKnown {
		info.SndSSThresh = noSSThresh
	}
	// An end has received the bytes it acknowledged, without the peer's SYN.
	if peer.begun {
		info.BytesReceived = uint64(max(0, peer.una-peer.firstByte()))
	}
	return snapshot{at: at, info: info, window: h.wndKnown}
}

// firstByte is the number of the first data byte, or the first number in the
// capture.
func (h *half) firstByte() int64 {
	if h.isnKnown {
		return h.isn + 1
	}
	return h.began
}

// agreed returns the negotiated options.
func (c *connection) agreed() tcpinfo.Options {
	a, b := &c.half[0].offer, &c.half[1].offer
	var o tcpinfo.Options
	for _, option := range []struct {
		agreed bool
		bit    tcpinfo.Options
	}{
		{a.Timestamps && b.Timestamps, tcpinfo.OptTimestamps},
		{a.SACK && b.SACK, tcpinfo.OptSACK},
		{a.Seen && b.Seen && a.WScale >= 0 && b.WScale >= 0, tcpinfo.OptWScale},
		{a.ECN && b.ECN, tcpinfo.OptECN},
		{c.half[0].synDataAcked || c.half[1].synDataAcked, tcpinfo.OptSynData},
	} {
		if option.agreed {
			o |= option.bit
		}
	}
	return o
}

// state is the state of an end (RFC 9293, section 3.3.2), inferred from the
// packets of both ends.
func (c *connection) state(of int) tcpinfo.State {
	h, peer := &c.half[of], &c.half[1-of]
	switch {
	case c.reset, h.finAcked() && peer.finAcked() && c.closer != of:
		return tcpinfo.Closed
	case h.finAcked() && peer.finAcked():
		return tcpinfo.TimeWait
	case h.finAcked():
		return tcpinfo.FinWait2
	case h.finSent && peer.finAcked() && c.closer == of:
		return tcpinfo.Closing
	case h.finSent && peer.finAcked():
		return tcpinfo.LastAck
	case h.finSent:
		return tcpinfo.FinWait1
	case peer.finAcked():
		return tcpinfo.CloseWait
	case h.isnKnown && h.una == h.isn && !h.answers:
		return tcpinfo.SynSent
	case h.isnKnown && h.una == h.isn:
		return tcpinfo.SynReceived
	}
	return tcpinfo.Established
}

// known lists the fields that are known in every sample of an end.
func (c *connection) known(of int, place Place) []tcpinfo.Field {
	h, peer := &c.half[of], &c.half[1-of]
	var fields []tcpinfo.Field
	know := func(cond bool, f ...tcpinfo.Field) {
		if cond {
			fields = append(fields, f...)
		}
	}
	both := h.sends && peer.sends
	syns := h.offer.Seen && peer.offer.Seen
	know(both, tcpinfo.FieldState)
	know(syns, tcpinfo.FieldOptions)
	know(c.shift(of) >= 0 && c.shift(1-of) >= 0, tcpinfo.FieldSndWScale, tcpinfo.FieldRcvWScale)
	know(syns && h.offer.MSS > 0, tcpinfo.FieldAdvMSS)
	know(syns || h.sizes.size > 0, tcpinfo.FieldSndMSS)
	know(h.sends, tcpinfo.FieldSegsOut, tcpinfo.FieldDataSegsOut, tcpinfo.FieldBytesSent, tcpinfo.FieldTotalRetrans, tcpinfo.FieldBytesRetrans)
	know(h.answered, tcpinfo.FieldBytesAcked)
	know(peer.answered, tcpinfo.FieldBytesReceived)
	know(peer.sends, tcpinfo.FieldSegsIn, tcpinfo.FieldDataSegsIn)
	know(h.answered && (!syns || h.offer.SACK && peer.offer.SACK), tcpinfo.FieldDSACKDups)
	know(both && h.answered, tcpinfo.FieldDelivered, tcpinfo.FieldReordSeen)
	// A capture elsewhere misses packets in flight, and underestimates the
	// round trip.
	if place == AtSender {
		know(both, tcpinfo.FieldUnacked, tcpinfo.FieldSacked, tcpinfo.FieldTotalRTO, tcpinfo.FieldBusyTime, tcpinfo.FieldSndCwnd)
		know(both && h.wndKnown, tcpinfo.FieldRwndLimited)
	}
	return fields
}

// sample makes a doctor.Sample and marks the known fields.
func (s *snapshot) sample(known []tcpinfo.Field, place Place, toSender, start int64) doctor.Sample {
	info := s.info
	info.Know(known...)
	if info.MinRTT > 0 && place != AtSender {
		// Add the part of the path on the other side of the capture.
		info.MinRTT += time.Duration(toSender)
	}
	for _, f := range []struct {
		cond  bool
		field tcpinfo.Field
	}{
		{info.RcvMSS > 0, tcpinfo.FieldRcvMSS},
		{info.DeliveryRateBps > 0, tcpinfo.FieldDeliveryRateBps},
		{info.MinRTT > 0 && place != PlaceUnknown, tcpinfo.FieldMinRTT},
		{info.RTT > 0 && place == AtSender, tcpinfo.FieldRTT},
		{info.RTT > 0 && place == AtSender, tcpinfo.FieldRTTVar},
		{info.SndSSThresh > 0 && place == AtSender, tcpinfo.FieldSndSSThresh},
		{s.window, tcpinfo.FieldSndWnd},
	} {
		if f.cond {
			info.Know(f.field)
		}
	}
	return doctor.Sample{At: time.Duration(s.at - start), Info: info, SendBuffer: unknown, SendQueued: unknown, CPU: unknown}
}

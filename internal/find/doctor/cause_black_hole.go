package doctor

import "fmt"

var blackHoleCause = causeEntry{
	cause: BlackHole, rule: blackHole, standstill: true, remedies: blackHoleRemedies,
	sentence: func(r *Report) string {
		return "Large packets vanish on the path, and the sender gets no error: the connection stands still." + r.could()
	},
}

// blackHole: the handshake got through, and full segments never do. If path MTU
// discovery is blocked, the path drops large packets silently (RFC 2923, 2.1).
func blackHole(c *patient) *Finding {
	f, o := c.f, c.o
	if !c.stands() {
		return nil
	}
	if c.captured() {
		return c.capturedBlackHole()
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

// capturedBlackHole: full segments get no answer in a capture, although smaller ones did,
// or the peer is heard meanwhile.
func (c *patient) capturedBlackHole() *Finding {
	s, n := c.counts.Stall, &c.counts
	full := s.AtEnd && s.SegmentBytes >= smallSegment && 10*s.SegmentBytes >= 9*int64(c.f.MSS)
	if !full || c.arrived() || 10*s.AnsweredBytes >= 9*s.SegmentBytes || s.AnsweredBytes == 0 && s.Heard == 0 && !c.o.Capture.Handshake {
		return nil
	}
	finding := &Finding{Cause: BlackHole, Evidence: []string{c.stallEvidence(), ""},
		strength: Likely, doubt: "a path that went down at that moment shows the same: see whether ping -M do -s SIZE gets through, or run " + c.live() + " on the sending host"}
	switch {
	case s.AnsweredBytes > 0:
		finding.Evidence[1] = fmt.Sprintf("segments of %d bytes get no answer; %d bytes were acknowledged before", s.SegmentBytes, s.AnsweredBytes)
	default:
		finding.Evidence[1] = fmt.Sprintf("segments of %d bytes get no answer, and none of that size ever got one; the handshake did", s.SegmentBytes)
	}
	if s.Heard > 0 {
		finding.Evidence = append(finding.Evidence, fmt.Sprintf("%s of the peer arrived meanwhile: the path itself is up", plural(s.Heard, "packet")))
	}
	if s.Heard > 0 && s.AnsweredBytes > 0 && s.Retransmissions >= 4 && n.Missing == 0 {
		finding.strength, finding.doubt = Certain, ""
	}
	return finding
}

// arrived reports whether a capture shows that the data arrived, at it or at the receiver:
// it is not from the sending host, or the receiver had what was retransmitted.
func (c *patient) arrived() bool {
	capture, n := c.o.Capture, &c.counts
	return !capture.AtSender && !capture.PlaceUnknown || n.Spurious > 0 && 2*n.Spurious >= n.Retransmitted
}

// smallSegment is the data that every path carries (RFC 9293, section 3.7.1).
const smallSegment = 536

func blackHoleRemedies(c *patient) []Remedy {
	host, prefix := c.far()
	mss := 1220 // from IPv6's minimum MTU, which nearly every path carries
	if mss >= c.f.MSS {
		mss = smallSegment
	}
	if c.o.Path.MTU > 0 {
		mss = c.o.Path.MTU - c.headersOfSYN()
	}
	return []Remedy{{
		Action: fmt.Sprintf("send smaller packets there: %d bytes", mss+c.headersOfSYN()), Place: Sender,
		Command: fmt.Sprintf("longhaul route set --to %s --mtu %d", host, mss+c.headersOfSYN()),
		Apply:   []string{"route", "set", "--to", host, "--mtu", fmt.Sprint(mss + c.headersOfSYN())},
		Undo:    []string{"route", "undo", "--to", host},
		Others: []string{
			"Linux finds the size by itself with: sysctl -w net.ipv4.tcp_mtu_probing=1",
			fmt.Sprintf("for all connections that a router forwards: longhaul mss set --dev DEVICE --to %s --clamp %d", prefix, mss),
		},
	}}
}

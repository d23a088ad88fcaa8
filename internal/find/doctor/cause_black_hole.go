package doctor

import "fmt"

var blackHoleCause = causeEntry{
	cause: BlackHole, rule: blackHole, standstill: true, remedies: blackHoleRemedies,
	sentence: limited("Large packets vanish on the path, and the sender gets no error: the connection stands still at %s."),
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

func blackHoleRemedies(c *patient) []Remedy {
	host, prefix := c.far()
	mss := 1220 // from IPv6's minimum MTU, which every path carries
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

package doctor

var windowScalingCause = causeEntry{
	cause: WindowScaling, rule: windowScaling, glances: true, relayed: true, remedies: windowScalingRemedies,
	sentence: limited("The two hosts use no window scaling: over this distance that limits a connection to %s."),
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

func windowScalingRemedies(*patient) []Remedy {
	return []Remedy{{
		Action: "turn window scaling on, at both hosts", Place: Receiver,
		Command: "sysctl -w net.ipv4.tcp_window_scaling=1",
		Others: []string{"AIX: no -o rfc1323=1",
			"a firewall that strips the option from SYNs: have it pass the option"},
	}}
}

package doctor

// doubt returns how to make a verdict certain.
func (c *patient) doubt(findings []Finding) string {
	if c.readerInDoubt(findings[:1]) {
		doubt := "a program that reads slowly, and small buffers of its host (tcp_rmem), look alike"
		if c.o.Capture == nil {
			doubt += ": add --test, with longhaul measure --serve at the far end"
		}
		return doubt
	}
	if entry := findings[0].Cause.entry(); entry.doubt != nil {
		return entry.doubt(c)
	}
	return ""
}

// capacityDoubt is that of a cause that only the capacity of the path makes certain.
func capacityDoubt(c *patient) string {
	if c.o.Capacity != nil {
		return ""
	}
	switch capture := c.o.Capture; {
	case capture == nil:
		return c.capacityUnknown()
	case !capture.AtSender:
		return "the capture is not from the sending host: only one from there shows what the sender waits for"
	case !capture.Handshake:
		return "the capture lacks the handshake, and with it the windows: capture from the connection's start"
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

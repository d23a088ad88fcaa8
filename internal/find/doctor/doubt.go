package doctor

import (
	"fmt"
	"strings"
)

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

// notFromSender is the doubt about a capture of another place.
const notFromSender = "the capture is not from the sending host: only one from there shows what the sender waits for"

// Shares of the time in which a thread of the program, or any program of this host, waits for
// a CPU, above which delays and gaps may be this host's own.
const (
	maxWaited   = 0.1
	maxPressure = 0.8
)

// starved reports whether delays and gaps of a cause may be this host's own, which has no CPU
// time to spare.
func (c *patient) starved(e *causeEntry) bool {
	return (e.byTiming || e.byProgram) && c.f.Waited > maxWaited || e.byTiming && c.f.Pressure > maxPressure
}

func (c *patient) starvedDoubt() string {
	var waits []string
	if c.f.Waited > maxWaited {
		waits = append(waits, fmt.Sprintf("a thread of the program waited for a CPU %s of the time", percent(c.f.Waited)))
	}
	if c.f.Pressure > maxPressure {
		waits = append(waits, fmt.Sprintf("programs of this host waited for a CPU %s of the time", percent(c.f.Pressure)))
	}
	return strings.Join(waits, ", and ") + ": what is late may be late here, and not on the path. Look again when this host has CPU time to spare"
}

// capacityDoubt is that of a cause that only the capacity of the path makes certain.
func capacityDoubt(c *patient) string {
	if c.lacks() {
		return "the capture lacks much of the data: capture with a larger buffer (tcpdump -B), and headers alone (-s 128)"
	}
	if c.o.Capacity != nil {
		return ""
	}
	switch capture := c.o.Capture; {
	case capture == nil:
		return c.capacityUnknown()
	case capture.PlaceUnknown:
		return "no packets show at which host the capture was taken: only one from the sending host shows what the sender waits for"
	case !capture.AtSender:
		return notFromSender
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
	return "no bursts show the path's capacity: " + c.live() + " --test on the sending host measures it"
}

// live is the command that watches the connection, or the next ones to the same place.
func (c *patient) live() string {
	if service := c.service(); service == c.o.Remote && service.IsValid() {
		return "longhaul doctor --remote " + service.String()
	} else if service.IsValid() {
		return "longhaul doctor --local " + service.String()
	}
	return "longhaul doctor --remote HOST"
}

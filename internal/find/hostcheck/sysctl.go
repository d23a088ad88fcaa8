package hostcheck

import (
	"fmt"
	"math/bits"
)

// sysctl checks the sysctls that bound every connection of this host, of any program.
func (c *checker) sysctl() {
	for _, s := range []struct {
		name, off string
		state     State
		missing   string
		cost      *Cost
	}{
		{"tcp_window_scaling", "0", No, "windows end at 65535 bytes", c.windowCost(maxUnscaled)},
		{"tcp_sack", "0", Limited, "a connection finds one lost segment per round trip", c.sackCost()},
		{"tcp_timestamps", "0", Limited, "round trips of retransmitted segments stay unknown, and segments of a fast long path can be taken for old ones",
			&Cost{Unknown: "no model of it"}},
	} {
		value, ok := c.readSysctl("net.ipv4." + s.name)
		switch {
		case !ok:
			c.add(Part{Name: s.name, State: Unknown, Why: "it is not readable here"})
		case value == s.off:
			c.add(Part{Name: s.name, State: s.state, Why: s.missing, Remedy: "sysctl -w net.ipv4." + s.name + "=1", Cost: s.cost})
		default:
			c.yes(s.name, value)
		}
	}
	c.autotuning("tcp_wmem", "send")
	c.autotuning("tcp_rmem", "receive")
}

// maxUnscaled is the largest window without window scaling (RFC 7323, 2.1).
const maxUnscaled = 65535

// autotuning checks the bound of automatic buffers, which programs without a relay have.
// Half of it is for data: the kernel counts its own overhead.
func (c *checker) autotuning(name, which string) {
	t, ok := c.readTriple("net.ipv4." + name)
	if !ok {
		c.add(Part{Name: name, State: Unknown, Why: "it is not readable here"})
		return
	}
	usable, needed := t[2]/2, c.Path.way().WindowNeeded()
	if usable >= needed {
		c.yes(name, "up to "+size(t[2]))
		return
	}
	c.add(Part{Name: name, State: Limited,
		Why:    fmt.Sprintf("the %s buffer of a program grows to %s of data, and this path needs %s", which, size(usable), size(needed)),
		Remedy: fmt.Sprintf("sysctl -w net.ipv4.%s='%d %d %d', or a relay", name, t[0], t[1], 1<<bits.Len(uint(2*needed-1))),
		Cost:   c.windowCost(usable)})
}

package transport

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"longhaul/internal/words/ccnames"
)

// bestOnWAN lists the algorithms for a WAN leg, best first. BBR v1 does not
// treat random loss as congestion; every kernel has CUBIC. Haul requires an
// explicit choice: on a path with little loss it can still stall, or starve
// other flows (docs/design/haul.md).
var bestOnWAN = []string{"bbr", "cubic"}

// bestOnLAN lists the algorithms for a LAN leg if the kernel's default paces by
// a model of the path. At round trips of microseconds, pacing depends on timers
// and on idle CPUs, and BBR's estimate collapses. Reno is always available and
// allowed.
var bestOnLAN = []string{"cubic", "reno"}

// choice is a congestion control and the reason for it.
type choice struct {
	name     string
	degraded string // the wanted algorithm, in one clause; empty if it is in use
	lack     Lack   // zero if the wanted algorithm is in use
}

// chooseCC chooses the algorithm of a kind of leg: the wanted one, or the best
// for the kind. try sets an algorithm on a socket that is never connected.
func chooseCC(kind, wanted string, h host, try func(name string) error) choice {
	var candidates []string
	switch {
	case wanted != "":
		candidates = []string{wanted}
	case kind == WAN:
		candidates = bestOnWAN
	case ccnames.Paces(h.defaultCC):
		candidates = bestOnLAN
	}
	c := choice{name: h.defaultCC}
	var first error
	for _, name := range candidates {
		err := try(name)
		if err == nil {
			c.name = name
			break
		}
		if first == nil {
			first = err
		}
	}
	// On a LAN leg every algorithm except BBR is equally good, unless the
	// operator named one.
	if first != nil && (wanted != "" || kind == WAN) {
		c.degraded = fmt.Sprintf("congestion control %s instead of %s", c.name, candidates[0])
		c.lack = Lack{
			What:   fmt.Sprintf("congestion control %s on %s legs (they use %s)", candidates[0], kind, c.name),
			Remedy: ccRemedy(candidates[0], first),
		}
	}
	return c
}

func ccRemedy(name string, err error) string {
	_, isOwn := ccnames.FindOwn(name)
	switch {
	case !errors.Is(err, unix.EPERM) && isOwn:
		return "longhaul cc load " + name + " (as root), then reload the relay"
	case !errors.Is(err, unix.EPERM):
		return "modprobe tcp_" + name
	}
	allowed, readErr := readSysctl("tcp_allowed_congestion_control")
	if readErr != nil {
		allowed = "reno"
	}
	return fmt.Sprintf("sysctl -w net.ipv4.tcp_allowed_congestion_control='%s %s'", allowed, name)
}

// windowSurvivesIdle reports whether the algorithm keeps its window over an
// idle time regardless of tcp_slow_start_after_idle. The kernel exempts
// algorithms that control the rate themselves.
func windowSurvivesIdle(name string) bool { return ccnames.Paces(name) }

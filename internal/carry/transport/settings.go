package transport

import (
	"fmt"
	"math"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setting is one socket option. Accepted sockets inherit every setting from
// their listener, so an accepted leg costs no system call for it.
type setting struct {
	what     string // for errors
	level    int
	option   int
	value    uint64
	long     bool   // the option takes 64 bits
	text     string // value of an option that takes a string
	fallback bool   // the value is a new socket's default
	lasting  bool   // only long-lived connections need it
}

// forBulk reports whether the setting matters only once more than a few segments are sent.
func (s setting) forBulk() bool {
	return s.level == unix.SOL_TCP && (s.option == unix.TCP_CONGESTION || s.option == unix.TCP_NOTSENT_LOWAT)
}

func (s setting) set(fd int) error {
	var err error
	switch {
	case s.text != "":
		err = unix.SetsockoptString(fd, s.level, s.option, s.text)
	case s.long:
		err = unix.SetsockoptUint64(fd, s.level, s.option, s.value)
	default:
		err = setInt(fd, s.level, s.option, int32(s.value))
	}
	if err != nil {
		return fmt.Errorf("set %s of a socket: %w", s.what, err)
	}
	return nil
}

// setInt sets an option of int size. The call does not block, and a connection
// has many of them, so it skips unix.SetsockoptInt's scheduler bookkeeping.
func setInt(fd, level, option int, value int32) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&value)), unsafe.Sizeof(value), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// Defaults of Keepalive.
const (
	keepaliveIdle     = 60 * time.Second
	keepaliveInterval = 10 * time.Second
	keepaliveCount    = 6
)

const (
	defaultPathRateBps = 1_000_000_000
	noPacingBound      = math.MaxUint64
)

// settings lists all settings of a kind of leg in a fixed order. So two kinds
// can be compared, and a listening socket can be prepared again. It omits only
// an unset DSCP.
func (o Options) settings(kind string, cc choice, h host) []setting {
	lowat := uint64(0) // the sysctl's value
	if kind == WAN {
		lowat = notsentBound(o.PathRateBps)
	}
	pacing := uint64(noPacingBound)
	if o.PacingRateBps > 0 {
		pacing = uint64(o.PacingRateBps / 8)
	}
	list := []setting{
		{what: "the congestion control", level: unix.SOL_TCP, option: unix.TCP_CONGESTION, text: cc.name, fallback: cc.name == h.defaultCC},
		{what: "the maximum segment", level: unix.SOL_TCP, option: unix.TCP_MAXSEG, value: uint64(o.MSS), fallback: o.MSS == 0},
		{what: "the bound of unsent data", level: unix.SOL_TCP, option: unix.TCP_NOTSENT_LOWAT, value: lowat, fallback: kind == LAN},
		{what: "the pacing rate", level: unix.SOL_SOCKET, option: unix.SO_MAX_PACING_RATE, value: pacing, long: true, fallback: pacing == noPacingBound},
	}
	list = append(list, o.userTimeoutSettings(h)...)
	list = append(list, o.Keepalive.settings()...)
	if o.DSCP != nil {
		list = append(list,
			setting{what: "the dscp", level: unix.SOL_IP, option: unix.IP_TOS, value: uint64(*o.DSCP) << 2},
			setting{what: "the dscp", level: unix.SOL_IPV6, option: unix.IPV6_TCLASS, value: uint64(*o.DSCP) << 2})
	}
	return list
}

func (o Options) userTimeoutSettings(h host) []setting {
	var list []setting
	userTimeout := o.UserTimeout
	if h.canCapRTO {
		rtoMax := defaultRTOMax
		if o.UserTimeout > 0 {
			if m, ok := rtoMaxFor(o.UserTimeout, h.retries2); ok {
				rtoMax, userTimeout = m, 0
			}
		}
		list = append(list, setting{what: "the bound of the retransmission timeout", level: unix.SOL_TCP, option: rtoMaxOption,
			value: uint64(rtoMax.Milliseconds()), fallback: rtoMax == defaultRTOMax})
	}
	return append(list, setting{what: "the user timeout", level: unix.SOL_TCP, option: unix.TCP_USER_TIMEOUT,
		value: uint64(userTimeout.Milliseconds()), fallback: userTimeout == 0})
}

// endsClosedWindows reports whether the user timeout cannot distinguish a dead
// peer from one that does not read.
func (o Options) endsClosedWindows(h host) bool {
	if o.UserTimeout == 0 {
		return false
	}
	_, ok := rtoMaxFor(o.UserTimeout, h.retries2)
	return !h.canCapRTO || !ok
}

func (k Keepalive) settings() []setting {
	seconds := func(d, otherwise time.Duration) uint64 {
		if d == 0 {
			d = otherwise
		}
		return uint64((d + time.Second - 1) / time.Second)
	}
	count := uint64(k.Count)
	if count == 0 {
		count = keepaliveCount
	}
	on := uint64(1)
	if k.Disabled {
		on = 0
	}
	return []setting{
		{what: "the keepalive idle time", level: unix.SOL_TCP, option: unix.TCP_KEEPIDLE, value: seconds(k.Idle, keepaliveIdle), fallback: k.Disabled, lasting: true},
		{what: "the keepalive interval", level: unix.SOL_TCP, option: unix.TCP_KEEPINTVL, value: seconds(k.Interval, keepaliveInterval), fallback: k.Disabled, lasting: true},
		{what: "the keepalive count", level: unix.SOL_TCP, option: unix.TCP_KEEPCNT, value: count, fallback: k.Disabled, lasting: true},
		{what: "keepalive", level: unix.SOL_SOCKET, option: unix.SO_KEEPALIVE, value: on, fallback: k.Disabled, lasting: true},
	}
}

// difference returns the settings of b that are missing in a.
func difference(a, b []setting) []setting {
	has := make(map[setting]bool, len(a))
	for _, s := range a {
		has[s] = true
	}
	var list []setting
	for _, s := range b {
		if !has[s] {
			list = append(list, s)
		}
	}
	return list
}

// partition splits the settings by a test.
func partition(all []setting, test func(setting) bool) (pass, rest []setting) {
	for _, s := range all {
		if test(s) {
			pass = append(pass, s)
		} else {
			rest = append(rest, s)
		}
	}
	return pass, rest
}

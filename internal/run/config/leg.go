package config

import (
	"fmt"
	"slices"
	"time"

	"longhaul/internal/words/remedy"
	"longhaul/internal/words/units"
)

// Bounds of values; the comment names the kernel's bound if there is one.
const (
	minBuffer      = 4 << 10
	maxBuffer      = 1023 << 20 // SO_SNDBUF and SO_RCVBUF are doubled in an int
	minMSS         = 88         // TCP_MAXSEG, lower bound
	maxMSS         = 32767      // TCP_MAXSEG, upper bound
	minRate        = units.Rate(8_000)
	maxRate        = units.Rate(10_000_000_000_000)
	maxKeepalive   = 32767 * time.Second // TCP_KEEPIDLE and TCP_KEEPINTVL
	maxProbes      = 127                 // TCP_KEEPCNT
	maxUserTimeout = 24 * 24 * time.Hour // TCP_USER_TIMEOUT is an int of milliseconds
	maxCCName      = 15                  // TCP_CA_NAME_MAX less its terminator
)

// Leg holds the socket settings of one kind of leg. The zero value of a field
// means that longhaul chooses.
type Leg struct {
	CongestionControl string
	Rate              units.Rate // capacity of the path
	PacingRate        units.Rate // cap of the sending rate
	SendBuffer        units.Size
	ReceiveBuffer     units.Size
	MSS               int // bytes
	MTUProbing        bool
	Keepalive         Keepalive
	UserTimeout       time.Duration
	DSCP              *uint8
}

// Keepalive configures the detection of dead peers; zero fields mean longhaul's
// defaults.
type Keepalive struct {
	Disabled bool
	Idle     time.Duration
	Interval time.Duration
	Count    int
}

// leg decodes the `lan` or `wan` mapping.
func (d *decoder) leg(n *node, what string, l *Leg) {
	d.mapping(n, what,
		into("congestion_control", &l.CongestionControl, d.congestionControl),
		into("rate", &l.Rate, d.rate(minRate, maxRate)),
		into("pacing_rate", &l.PacingRate, d.rate(minRate, maxRate)),
		into("send_buffer", &l.SendBuffer, d.size(minBuffer, maxBuffer)),
		into("receive_buffer", &l.ReceiveBuffer, d.size(minBuffer, maxBuffer)),
		into("mss", &l.MSS, d.integer(minMSS, maxMSS)),
		into("mtu_probing", &l.MTUProbing, d.boolean),
		field{"keepalive", func(n *node) { d.keepalive(n, &l.Keepalive) }},
		into("user_timeout", &l.UserTimeout, d.duration(time.Second, maxUserTimeout, nil)),
		into("dscp", &l.DSCP, d.dscp),
	)
	if n.kind == mapping && l.Rate > 0 && l.PacingRate > l.Rate {
		at := n.lookup("pacing_rate")
		if at == nil {
			at = n
		}
		d.errorf(at, "lower pacing_rate, or raise rate to what the path carries", "pacing_rate %s is above the path's rate of %s", l.PacingRate, l.Rate)
	}
}

func (d *decoder) congestionControl(n *node, key string) (string, bool) {
	s, ok := d.text(n, key)
	if !ok {
		return "", false
	}
	valid := s != ""
	for _, c := range s {
		valid = valid && c > ' ' && c < 0x7f && c != '/'
	}
	switch {
	case !valid:
		d.errorf(n, "use a name such as bbr or cubic; `sysctl net.ipv4.tcp_available_congestion_control` lists them", "%s cannot be %q", key, s)
	case len(s) > maxCCName:
		d.errorf(n, "check the name; `sysctl net.ipv4.tcp_available_congestion_control` lists them", "%s %q has more than the %d characters the kernel allows", key, s, maxCCName)
		return "", false
	}
	if valid {
		d.checkKnownCC(n, key, s)
	}
	return s, valid
}

// checkKnownCC finds a congestion control that neither this kernel nor longhaul knows.
func (d *decoder) checkKnownCC(n *node, key, name string) {
	if d.loader.CongestionControls == nil {
		return
	}
	known := d.loader.CongestionControls()
	if slices.Contains(known, name) {
		return
	}
	fix := "longhaul cc list lists those of longhaul and this kernel"
	if meant := remedy.Nearest(name, known); meant != "" {
		fix = "did you mean " + meant + "? " + fix
	}
	if d.loader.Elsewhere {
		d.warnings = append(d.warnings, &Error{n.at, fmt.Sprintf("%s is %q, which neither this kernel nor longhaul knows", key, name), fix})
		return
	}
	d.errorf(n, fix, "%s cannot be %q: neither this kernel nor longhaul knows it", key, name)
}

func (d *decoder) keepalive(n *node, k *Keepalive) {
	if n.kind == scalar && n.text == Off {
		*k = Keepalive{Disabled: true}
		return
	}
	if n.kind == scalar {
		d.errorf(n, "write off, or a mapping such as {idle: 60s, interval: 10s, count: 6}", "keepalive cannot be %q", n.text)
		return
	}
	k.Disabled = false
	d.mapping(n, "keepalive",
		into("idle", &k.Idle, d.seconds),
		into("interval", &k.Interval, d.seconds),
		into("count", &k.Count, d.integer(1, maxProbes)),
	)
}

// seconds decodes a duration that the kernel counts in whole seconds.
func (d *decoder) seconds(n *node, key string) (time.Duration, bool) {
	v, ok := d.duration(time.Second, maxKeepalive, nil)(n, key)
	if ok && v%time.Second != 0 {
		d.errorf(n, "round it; the kernel counts keepalive in seconds", "%s cannot be %s", key, n.text)
		return 0, false
	}
	return v, ok
}

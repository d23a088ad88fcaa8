package route

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Metric is a TCP setting of a route, by its name in ip-route(8).
type Metric string

// The metrics.
const (
	MTU               Metric = "mtu"     // bytes of an IP packet
	AdvMSS            Metric = "advmss"  // MSS that local sockets announce, bytes
	CongestionControl Metric = "congctl" // a name
	InitCwnd          Metric = "initcwnd"
	InitRwnd          Metric = "initrwnd" // segments, as is InitCwnd
	Window            Metric = "window"   // initial window of local sockets, bytes
	QuickACK          Metric = "quickack" // 0 or 1
	RTOMin            Metric = "rto_min"  // milliseconds
)

// kinds are the kernel's numbers of the metrics.
var kinds = map[Metric]uint16{
	MTU: unix.RTAX_MTU, AdvMSS: unix.RTAX_ADVMSS, CongestionControl: unix.RTAX_CC_ALGO,
	InitCwnd: unix.RTAX_INITCWND, InitRwnd: unix.RTAX_INITRWND, Window: unix.RTAX_WINDOW,
	QuickACK: unix.RTAX_QUICKACK, RTOMin: unix.RTAX_RTO_MIN,
}

// Value is the value of a metric; the zero value means none.
type Value struct {
	Number uint32 `json:"number,omitempty"`
	Name   string `json:"name,omitempty"` // CongestionControl
	// Locked keeps others from overriding it: applications from choosing
	// another algorithm, path MTU discovery from learning another MTU.
	Locked bool `json:"locked,omitempty"`
	// RateBps is the rate, in bits per second, that the connections to the prefix
	// share with CongestionControl. The route does not have it: its owner sets it.
	RateBps int64 `json:"rate_bits_per_second,omitempty"`
}

func (v Value) isSet() bool { return v != Value{} }

// Text formats the value for people.
func (v Value) Text(m Metric) string {
	text := v.Name
	switch {
	case m == CongestionControl:
	case m == RTOMin:
		text = (time.Duration(v.Number) * time.Millisecond).String()
	default:
		text = strconv.FormatUint(uint64(v.Number), 10)
	}
	if v.Locked {
		text += " locked"
	}
	return text
}

// bounds returns the minimum and maximum of a metric, for the IP version of a prefix.
func bounds(m Metric, prefix netip.Prefix) (least, most uint32) {
	is6 := prefix.Addr().Is6()
	switch m {
	case MTU:
		if is6 {
			return 1280, 65535 - 15 // minimum of every link (RFC 8200, 5)
		}
		return 68, 65535 - 15 // RFC 791; the kernel's maximum
	case AdvMSS:
		if is6 {
			return 1220, 65535 - 40
		}
		return 88, 65535 - 40
	case InitCwnd, InitRwnd:
		return 1, 65535
	case Window:
		return 1, 1 << 30 // the largest window of TCP (RFC 7323, 2.3)
	case QuickACK:
		return 0, 1
	case RTOMin:
		return 1, 120_000 // the kernel's bound of the timer
	}
	return 0, 0
}

// CheckValue checks a metric's value.
func CheckValue(m Metric, v Value, prefix netip.Prefix) error {
	if m == CongestionControl {
		if v.Name == "" {
			return fmt.Errorf("missing name for %s", m)
		}
		return nil
	}
	if _, ok := kinds[m]; !ok {
		return fmt.Errorf("a route has no metric %q", m)
	}
	if least, most := bounds(m, prefix); v.Number < least || v.Number > most {
		text := func(n uint32) string { return Value{Number: n}.Text(m) }
		return fmt.Errorf("%s is %s, and must be from %s to %s for %s", m, text(v.Number), text(least), text(most), prefix)
	}
	return nil
}

// rawMetrics returns the route's metrics, each at most once.
func (m message) rawMetrics() ([]attribute, error) {
	metrics, err := parseAttributes(m.get(unix.RTA_METRICS))
	seen := map[uint16]bool{}
	for _, a := range metrics {
		if seen[a.kind] {
			return nil, fmt.Errorf("a route has the metric %d twice", a.kind)
		}
		seen[a.kind] = true
	}
	return metrics, err
}

// metric returns the value of one metric of the route.
func (m message) metric(name Metric) Value {
	all, err := m.rawMetrics()
	if err != nil {
		return Value{}
	}
	var v Value
	for _, a := range all {
		switch {
		case a.kind == kinds[name] && name == CongestionControl:
			v.Name = unix.ByteSliceToString(a.value)
		case a.kind == kinds[name] && len(a.value) >= 4:
			v.Number = binary.NativeEndian.Uint32(a.value)
		case a.kind == unix.RTAX_LOCK && len(a.value) >= 4:
			v.Locked = binary.NativeEndian.Uint32(a.value)&(1<<kinds[name]) != 0
		}
	}
	return v
}

// setMetric changes one metric of the route, and removes it if the value is zero. Other
// metrics and their locks stay.
func (m *message) setMetric(name Metric, v Value) error {
	metrics, err := m.rawMetrics()
	if err != nil {
		return err
	}
	var value []byte
	switch {
	case v.Name != "":
		value = append([]byte(v.Name), 0)
	case v.Number != 0:
		value = binary.NativeEndian.AppendUint32(nil, v.Number)
	}
	metrics = setAttribute(metrics, kinds[name], value)

	var locks uint32
	for _, a := range metrics {
		if a.kind == unix.RTAX_LOCK && len(a.value) >= 4 {
			locks = binary.NativeEndian.Uint32(a.value)
		}
	}
	locks &^= 1 << kinds[name]
	if v.Locked {
		locks |= 1 << kinds[name]
	}
	var lock []byte
	if locks != 0 {
		lock = binary.NativeEndian.AppendUint32(nil, locks)
	}
	metrics = setAttribute(metrics, unix.RTAX_LOCK, lock)

	if len(metrics) == 0 {
		m.set(unix.RTA_METRICS, nil)
		return nil
	}
	m.set(unix.RTA_METRICS, appendAttributes(nil, metrics))
	return nil
}

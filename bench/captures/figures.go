package main

import (
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"time"
)

// direction is what a program counted of the data from one end to the other.
type direction struct {
	From   netip.AddrPort `json:"from"`
	To     netip.AddrPort `json:"to"`
	Start  time.Time      `json:"start"`  // of the connection
	Stream int            `json:"stream"` // tshark's number of the connection; -1: longhaul has none
	// Figures are by the names in compared. An unknown one is missing.
	Figures map[string]float64 `json:"figures"`
}

func (d *direction) bytes() float64 { return d.Figures["bytes"] }

// The values of reset_by, in the direction of the data.
const (
	noReset = iota
	resetBySender
	resetByReceiver
)

// compared lists the figures, in the order in which they are printed.
var compared = []struct {
	name string
	// filter shows the packets in tshark; %[1]s is the sending end, %[2]s the receiving one.
	filter string
	// share and least are what two equal figures may differ by.
	share, least float64
	print        func(float64) string
}{
	{"segments", "%[1]s && tcp.len > 0", 0.02, 1, count},
	{"bytes", "%[1]s && tcp.len > 0", 0.02, 1, count},
	{"delivered", "%[2]s && tcp.flags.ack == 1", 0.02, 1, count},
	{"retransmitted", "%[1]s && tcp.len > 0 && tcp.analysis.retransmission", 0.02, 1, count},
	{"out_of_order", "%[1]s && tcp.len > 0 && tcp.analysis.out_of_order", 0.02, 1, count},
	{"again_or_late", "%[1]s && tcp.len > 0 && (tcp.analysis.retransmission || tcp.analysis.out_of_order)", 0.02, 1, count},
	{"zero_windows", "%[2]s && tcp.analysis.zero_window", 0.02, 1, count},
	{"window_full", "%[1]s && tcp.len > 0", 0.02, 1, count},
	{"dsack", "%[2]s && tcp.options.sack.dsack_le", 0.02, 1, count},
	{"keepalives", "%[1]s && tcp.analysis.keep_alive", 0.02, 1, count},
	{"probes", "%[1]s && tcp.analysis.zero_window_probe", 0.02, 1, count},
	{"mss", "tcp.flags.syn == 1", 0, 0, count},
	{"segment_bytes", "%[1]s && tcp.len > 0", 0, 0, count},
	{"min_rtt_ms", "%[2]s && tcp.analysis.ack_rtt", 0.02, 0.05, func(v float64) string { return fmt.Sprintf("%.3f", v) }},
	{"reset_by", "tcp.flags.reset == 1", 0, 0, func(v float64) string {
		return [...]string{"nobody", "sender", "receiver"}[int(v)]
	}},
}

func count(v float64) string { return strconv.FormatInt(int64(v), 10) }

// equal reports whether two figures differ by no more than a share of the larger one, or by least.
func equal(a, b, share, least float64) bool {
	return math.Abs(a-b) <= max(least, share*max(a, b))
}

// end is a display filter for packets of one end.
func end(a netip.AddrPort) string {
	family := "ip"
	if a.Addr().Is6() {
		family = "ipv6"
	}
	return fmt.Sprintf("%s.src == %s && tcp.srcport == %d", family, a.Addr(), a.Port())
}

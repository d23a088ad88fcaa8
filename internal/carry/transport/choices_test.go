package transport

import (
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestChooseCC(t *testing.T) {
	tests := []struct {
		name     string
		kind     string
		wanted   string
		host     string // the kernel's default
		errs     map[string]error
		want     string
		degraded string
		remedy   string
	}{
		{name: "wan, whatever else is loaded", kind: WAN, host: "cubic", want: "bbr"},
		{name: "wan without bbr", kind: WAN, host: "reno", errs: map[string]error{"bbr": unix.ENOENT}, want: "cubic",
			degraded: "congestion control cubic instead of bbr", remedy: "modprobe tcp_bbr"},
		{name: "wan with bbr forbidden", kind: WAN, host: "cubic", errs: map[string]error{"bbr": unix.EPERM}, want: "cubic",
			degraded: "congestion control cubic instead of bbr", remedy: "tcp_allowed_congestion_control='"},
		{name: "wan with nothing", kind: WAN, host: "reno", errs: map[string]error{"bbr": unix.ENOENT, "cubic": unix.ENOENT}, want: "reno",
			degraded: "congestion control reno instead of bbr", remedy: "modprobe tcp_bbr"},
		{name: "wan asked", kind: WAN, wanted: "reno", host: "cubic", want: "reno"},
		{name: "wan asked for haul", kind: WAN, wanted: "haul", host: "cubic", want: "haul"},
		{name: "wan asked in vain", kind: WAN, wanted: "hybla", host: "cubic", errs: map[string]error{"hybla": unix.ENOENT}, want: "cubic",
			degraded: "congestion control cubic instead of hybla", remedy: "longhaul cc load hybla"},
		{name: "lan", kind: LAN, host: "cubic", want: "cubic"},
		{name: "lan, and the default is bbr", kind: LAN, host: "bbr", want: "cubic"},
		{name: "lan, the default is bbr and cubic forbidden", kind: LAN, host: "bbr", errs: map[string]error{"cubic": unix.EPERM}, want: "reno"},
		{name: "lan, and the default is haul", kind: LAN, host: "haul", want: "cubic"},
		{name: "lan asked for bbr", kind: LAN, wanted: "bbr", host: "cubic", want: "bbr"},
		{name: "lan asked in vain", kind: LAN, wanted: "dctcp", host: "cubic", errs: map[string]error{"dctcp": unix.ENOENT}, want: "cubic",
			degraded: "congestion control cubic instead of dctcp", remedy: "modprobe tcp_dctcp"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := chooseCC(tt.kind, tt.wanted, host{defaultCC: tt.host}, func(name string) error { return tt.errs[name] })
			if c.name != tt.want || c.degraded != tt.degraded || !strings.Contains(c.lack.Remedy, tt.remedy) || (c.lack.What == "") != (tt.remedy == "") {
				t.Errorf("%+v", c)
			}
		})
	}
}

// A congestion control that is unloaded while a tunnel uses it ends no flow.
func TestUnloadedMeanwhile(t *testing.T) {
	h, err := probeHost()
	if err != nil {
		t.Fatal(err)
	}
	h.slowStartAfterIdle = false // avoid an additional lack
	there := func(string) error { return nil }
	tunnel := newTunnel(Legs{WAN: Options{CongestionControl: "was_here"}, Side: WANBoth}, h, there, slog.New(slog.DiscardHandler))
	fd, err := scratchSocket()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := tunnel.Prepare(fd, true); err != nil {
		t.Error(err)
	}
	lacks := tunnel.Lacks()
	if len(lacks) != 1 || !strings.Contains(lacks[0].What, "was_here") {
		t.Errorf("lacks: %v", lacks)
	}
	if bound, err := unix.GetsockoptInt(fd, unix.SOL_TCP, unix.TCP_NOTSENT_LOWAT); err != nil || bound == 0 {
		t.Errorf("the other settings are not there: %d, %v", bound, err)
	}
}

func TestLadder(t *testing.T) {
	const mib = 1 << 20
	w := want{size: 30 * mib, atEase: 15 * mib, fill: 15 * mib}
	tests := []struct {
		name          string
		autotuneLimit int
		plainCap      int
		canForce      bool
		want          sizing
	}{
		{"autotuning suffices", 32 * mib, 4 * mib, true, sizing{autotune, 16 * mib, false}},
		{"privileged", 6 * mib, 4 * mib, true, sizing{force, 30 * mib, false}},
		{"the cap allows all", 6 * mib, 64 * mib, false, sizing{plain, 30 * mib, false}},
		{"the cap allows enough", 6 * mib, 16 * mib, false, sizing{plain, 16 * mib, false}},
		{"the cap beats autotuning", 6 * mib, 4 * mib, false, sizing{plain, 4 * mib, true}},
		{"autotuning beats the cap", 6 * mib, 208 << 10, false, sizing{autotune, 3 * mib, true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := chooseSizing(w, tt.autotuneLimit, tt.plainCap, tt.canForce); got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestPathSize(t *testing.T) {
	for _, tt := range []struct {
		rate int64
		rtt  time.Duration
		n    int
		want int
	}{
		{0, 63 * time.Millisecond, 1, 7_875_000},
		{100_000_000, 300 * time.Millisecond, 6, 22_500_000},
		{10_000_000_000, 300 * time.Millisecond, 2, 750_000_000},
		{100_000_000_000, time.Second, 6, math.MaxInt32},
		{10_000_000, 3 * time.Millisecond, 2, minBuffer},
	} {
		if got := pathSize(tt.rate, tt.rtt, tt.n); got != tt.want {
			t.Errorf("%d × %d b/s × %v: %d, want %d", tt.n, tt.rate, tt.rtt, got, tt.want)
		}
	}
}

// A receive buffer at 100 Mb/s and 300 ms, by sender and reach of autotuning.
func TestReceiveBuffer(t *testing.T) {
	for _, tt := range []struct {
		cc            string
		autotuneLimit int
		want          sizing
	}{
		{"bbr", 32 << 20, sizing{method: autotune, size: 16 << 20}},
		{"bbr", 6 << 20, sizing{method: force, size: 15_000_000}},
		{"haul", 32 << 20, sizing{method: force, size: 22_500_000}},
		{"haul", 64 << 20, sizing{method: autotune, size: 32 << 20}},
		{"brutal", 6 << 20, sizing{method: force, size: 22_500_000}},
	} {
		got := chooseSizing(receiveWant(100e6, 300*time.Millisecond, tt.cc), tt.autotuneLimit, 4<<20, true)
		if got != tt.want {
			t.Errorf("%s, autotuning to %d MiB: %+v, want %+v", tt.cc, tt.autotuneLimit>>20, got, tt.want)
		}
	}
}

func TestRetransmissionLimit(t *testing.T) {
	for _, tt := range []struct {
		retries int
		rtoMax  time.Duration
		want    time.Duration
	}{
		{15, 120 * time.Second, 924600 * time.Millisecond}, // the kernel's documented default
		{15, time.Second, 14400 * time.Millisecond},
		{15, 4 * time.Second, 50200 * time.Millisecond},
		{3, time.Second, 2400 * time.Millisecond},
		{1, time.Second, 600 * time.Millisecond},
	} {
		if got := retransmissionLimit(tt.retries, tt.rtoMax); got != tt.want {
			t.Errorf("%d retries up to %v: %v, want %v", tt.retries, tt.rtoMax, got, tt.want)
		}
	}
}

func TestRTOMaxFor(t *testing.T) {
	for _, timeout := range []time.Duration{15400 * time.Millisecond, 20 * time.Second, time.Minute, 5 * time.Minute, 20 * time.Minute, 10 * time.Hour} {
		m, ok := rtoMaxFor(timeout, 15)
		if !ok || m < minRTOMax || m > defaultRTOMax {
			t.Fatalf("%v: %v, %v", timeout, m, ok)
		}
		if worst := retransmissionLimit(15, m) + m; worst > timeout {
			t.Errorf("%v: a bound of %v may take %v", timeout, m, worst)
		}
		if next := m + 10*time.Millisecond; m < defaultRTOMax && retransmissionLimit(15, next)+next <= timeout {
			t.Errorf("%v: the bound could be larger than %v", timeout, m)
		}
	}
	if m, ok := rtoMaxFor(15*time.Second, 15); ok {
		t.Errorf("15 s are under what can be had, but got %v", m)
	}
}

func TestLargestWindow(t *testing.T) {
	for _, tt := range []struct{ rmem, cap, want int }{
		{6291456, 212992, 65535 << 7},
		{33554432, 4194304, 65535 << 10},
		{131072, 67108864, 65535 << 11},
		{32768, 32768, 65535},
	} {
		h := host{tcpRmem: [3]int{4096, 16384, tt.rmem}, rmemMax: tt.cap}
		if got := h.maxWindow(); got != tt.want {
			t.Errorf("tcp_rmem %d, cap %d: %d, want %d", tt.rmem, tt.cap, got, tt.want)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	dscp := uint8(64)
	tests := []struct {
		name     string
		lan, wan Options
		side     WANSide
		want     string
	}{
		{"side", Options{}, Options{}, "west", `wan side "west": use auto, listen, forward, both or none`},
		{"name too long", Options{CongestionControl: "sixteen-letters-"}, Options{}, "", `lan: congestion control "sixteen-letters-": a name has up to 15 characters and no spaces`},
		{"path rate", Options{}, Options{PathRateBps: -1}, "", "wan: path rate -1 b/s: use a positive rate, or 0 for 1 Gb/s"},
		{"pacing rate", Options{}, Options{PacingRateBps: 7}, "", "wan: pacing rate 7 b/s: use 8 b/s or more, or 0 for no cap"},
		{"send buffer", Options{SendBuffer: 1 << 30}, Options{}, "", "lan: send buffer of 1073741824 bytes: use up to 1073741822, or 0 to have it sized"},
		{"receive buffer", Options{ReceiveBuffer: -1}, Options{}, "", "lan: receive buffer of -1 bytes: use up to 1073741822, or 0 to have it sized"},
		{"segment", Options{MSS: 87}, Options{MSS: 87}, "", "lan: maximum segment of 87 bytes: use 88 to 32767, or 0 for what the route says"},
		{"segments differ", Options{MSS: 1000}, Options{}, WANAuto, "maximum segments of 1000 bytes (lan) and 0 (wan): the segment is announced before " +
			"the round-trip time tells which kind of leg it is, so say which side is the wan, or set both alike"},
		{"user timeout", Options{}, Options{UserTimeout: time.Microsecond}, "", "wan: user timeout 1µs: use 1ms or more, or 0 for the kernel's limit"},
		{"dscp", Options{}, Options{DSCP: &dscp}, "", "wan: dscp 64: use 0 to 63"},
		{"keepalive idle", Options{Keepalive: Keepalive{Idle: time.Millisecond}}, Options{}, "", "lan: keepalive idle time 1ms: use 1s to 9h6m7s, or 0 for the default"},
		{"keepalive interval", Options{Keepalive: Keepalive{Interval: 10 * time.Hour}}, Options{}, "", "lan: keepalive interval 10h0m0s: use 1s to 9h6m7s, or 0 for the default"},
		{"keepalive count", Options{Keepalive: Keepalive{Count: 128}}, Options{}, "", "lan: keepalive count 128: use 1 to 127, or 0 for the default"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := New(Legs{LAN: tt.lan, WAN: tt.wan, Side: tt.side}, slog.New(slog.DiscardHandler))
			if err == nil || err.Error() != tt.want {
				t.Errorf("err = %v\nwant %s", err, tt.want)
			}
		})
	}
	if _, err := New(Legs{LAN: Options{MSS: 1000}, Side: WANForward}, nil); err != nil {
		t.Error("different segments with the sides named:", err)
	}
}

func TestFormatRTT(t *testing.T) {
	for rtt, want := range map[time.Duration]string{63 * time.Millisecond: "63 ms", 2500 * time.Microsecond: "2.5 ms"} {
		if got := formatRTT(rtt); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestEarly: only a leg of an unknown side that may have to change for each segment needs that at once.
func TestEarly(t *testing.T) {
	ef := uint8(46)
	for name, tt := range map[string]struct {
		lan, wan         Options
		side             WANSide
		accepted, dialed bool
	}{
		"no option":            {},
		"a congestion control": {wan: Options{CongestionControl: "reno"}},
		"a path rate":          {wan: Options{PathRateBps: 1e8}},
		"keepalive":            {wan: Options{Keepalive: Keepalive{Disabled: true}}},
		"a mark":               {wan: Options{DSCP: &ef}, accepted: true, dialed: true},
		"the same mark":        {lan: Options{DSCP: &ef}, wan: Options{DSCP: &ef}},
		"a pacing rate":        {wan: Options{PacingRateBps: 1e6}, accepted: true, dialed: true},
		"a user timeout":       {wan: Options{UserTimeout: time.Minute}, accepted: true, dialed: true},
		"a known side":         {wan: Options{DSCP: &ef}, side: WANForward},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTestTunnel(t, tt.lan, tt.wan, tt.side)
			if accepted, dialed := tr.Early(false), tr.Early(true); accepted != tt.accepted || dialed != tt.dialed {
				t.Errorf("accepted %t, dialed %t, want %t and %t", accepted, dialed, tt.accepted, tt.dialed)
			}
		})
	}
}

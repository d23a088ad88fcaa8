package transfers

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"longhaul/lab"
	"longhaul/lab/link"
	"longhaul/lab/linktest"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) {
	nettest.AtOnce(6) // most of them wait
	nettest.MainWithoutLeaks(m)
}

func TestBulkArrivesWhole(t *testing.T) {
	t.Parallel()
	built := linktest.TwoSites(t, linktest.Fast())
	for _, to := range []netip.Addr{lab.HostB, lab.HostB6} {
		var received atomic.Int64
		const n = 5<<20 + 7
		got, err := bulk(t.Context(), built.Host("host-a"), built.Host("host-b"), netip.AddrPortFrom(to, bulkPort), n, lab.Sockets{}, &received)
		if err != nil {
			t.Fatalf("to %s: %v", to, err)
		}
		if got.Bytes != n || received.Load() != n {
			t.Errorf("to %s: %d bytes sent and %d received, want %d", to, got.Bytes, received.Load(), n)
		}
		limit := linktest.Fast().LimitBps()
		if goodput := got.goodputBps(); goodput > limit {
			t.Errorf("to %s: goodput %.0f bit/s on a path of %.0f", to, goodput, limit)
		}
	}
	carried := built.Link(lab.WAN).Counters(link.AToB)
	if carried.BytesDelivered < 10<<20 {
		t.Errorf("the WAN carried %d bytes: the transfers went another way", carried.BytesDelivered)
	}
	// In front of an Ethernet pair, which takes the place of a TUN device that may
	// not be opened, an emulator that runs late loses packets.
	if carried.WriteErrors > 0 || carried.DeviceDrops > 0 && mayOpenTUN() {
		t.Errorf("lost outside the emulation: %+v", carried)
	}
}

func mayOpenTUN() bool {
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	f.Close()
	return true
}

// The port of a receiver is free at once, also while a child that is being started has its descriptor.
func TestEndListening(t *testing.T) {
	t.Parallel()
	l := nettest.ListenTCP(t, "127.0.0.1:0")
	child, err := l.File()
	nettest.Must(t, err)
	defer child.Close()
	endListening(l)
	again, err := net.Listen("tcp", l.Addr().String())
	nettest.Must(t, err)
	again.Close()
}

func TestBulkEndsWithItsContext(t *testing.T) {
	t.Parallel()
	built := linktest.TwoSites(t, linktest.Fast())
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the user's wish")
	var received atomic.Int64
	ended := make(chan error, 1)
	go func() {
		_, err := bulk(ctx, built.Host("host-a"), built.Host("host-b"), netip.AddrPortFrom(lab.HostB, bulkPort), 1<<40, lab.Sockets{}, &received)
		ended <- err
	}()
	nettest.Eventually(t, time.Minute, func() bool { return received.Load() > 0 }, func() string { return "nothing is received" })
	cancel(why)
	if err := <-ended; !errors.Is(err, why) && !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the reason of the cancellation", err)
	}
}

// classicPath is one on which a window per round trip is far below the rate.
func classicPath() (c lab.Conditions, windowBps float64) {
	c = lab.MitreConditions()
	c.RTT, c.RateBps = 40*time.Millisecond, 1e9
	return c, lab.ClassicWindowBytes * 8 / c.RTT.Seconds()
}

// goodput is that of a transfer from host-a to host-b.
func goodput(t *testing.T, c lab.Conditions, bytes int64) float64 {
	t.Helper()
	built := linktest.TwoSites(t, c)
	var received atomic.Int64
	got, err := bulk(t.Context(), built.Host("host-a"), built.Host("host-b"), netip.AddrPortFrom(lab.HostB, bulkPort), bytes, lab.Sockets{}, &received)
	if err != nil {
		t.Fatal(err)
	}
	return got.goodputBps()
}

// The end hosts of the report are held to one window per round trip.
func TestClassicEndHosts(t *testing.T) {
	t.Parallel()
	c, window := classicPath()
	c.ClassicEndHost = true
	if got := goodput(t, c, 2<<20); got > window {
		t.Errorf("classic hosts reach %.1f Mb/s, their window allows %.1f", got/1e6, window/1e6)
	}
}

func TestSummary(t *testing.T) {
	second := func(bytes int64, seconds float64, ratio float64) sample {
		return sample{transfer: transfer{Bytes: bytes, Elapsed: time.Duration(seconds * float64(time.Second))}, retransmitRatio: ratio, relayCPU: time.Second}
	}
	r := summarize(Case{Name: "x"}, []sample{second(1e9, 8, 0.3), second(1e9, 4, 0.1), second(1e9, 10, 0.2)}, linktest.Fast())
	if r.GoodputBps != 1e9 || r.GoodputMinBps != 0.8e9 || r.GoodputMaxBps != 2e9 || r.Seconds != 8 || r.RetransmitRatio != 0.2 || *r.RelayCPUPerGB != 1 {
		t.Errorf("got %+v", r)
	}
}

func TestExperimentsAreWellFormed(t *testing.T) {
	for _, e := range Experiments() {
		names := e.CaseNames()
		slices.Sort(names)
		if len(names) == 0 || len(slices.Compact(names)) != len(e.Cases) {
			t.Errorf("%s: cases %v", e.Name, names)
		}
		for _, c := range e.Cases {
			if c.Setup == nil || c.Bytes == 0 || c.QuickBytes == 0 || c.QuickBytes > c.Bytes || c.About == "" {
				t.Errorf("%s, case %s is incomplete", e.Name, c.Name)
			}
		}
		if err := e.Check(Options{Cases: []string{"no such case"}}); err == nil {
			t.Errorf("%s accepts a case that it does not have", e.Name)
		}
	}
}

package lab

import (
	"context"
	"errors"
	"io"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"longhaul/internal/lab/link"
	"longhaul/internal/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// fast is a WAN on which a test does not wait.
func fast() Conditions {
	c := MitreConditions()
	c.RTT, c.RateBps = 4*time.Millisecond, 200e6
	return c
}

func build(t *testing.T, c Conditions) *Lab {
	t.Helper()
	nettest.RequireSandbox(t)
	nettest.CheckLeaks(t)
	built, err := Build(TwoSites(c))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := built.Close(); err != nil {
			t.Error(err)
		}
	})
	return built
}

func TestBulkArrivesWhole(t *testing.T) {
	built := build(t, fast())
	for _, to := range []netip.Addr{HostB, HostB6} {
		var received atomic.Int64
		const n = 5<<20 + 7
		got, err := bulk(t.Context(), built.Host("host-a"), built.Host("host-b"), netip.AddrPortFrom(to, bulkPort), n, Sockets{}, &received)
		if err != nil {
			t.Fatalf("to %s: %v", to, err)
		}
		if got.Bytes != n || received.Load() != n {
			t.Errorf("to %s: %d bytes sent and %d received, want %d", to, got.Bytes, received.Load(), n)
		}
		limit := fast().LimitBps()
		if goodput := got.goodputBps(); goodput > limit {
			t.Errorf("to %s: goodput %.0f bit/s on a path of %.0f", to, goodput, limit)
		}
	}
	carried := built.Link(WAN).Counters(link.AToB)
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

func TestBulkEndsWithItsContext(t *testing.T) {
	built := build(t, fast())
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the user's wish")
	var received atomic.Int64
	ended := make(chan error, 1)
	go func() {
		_, err := bulk(ctx, built.Host("host-a"), built.Host("host-b"), netip.AddrPortFrom(HostB, bulkPort), 1<<40, Sockets{}, &received)
		ended <- err
	}()
	nettest.Eventually(t, time.Minute, func() bool { return received.Load() > 0 }, func() string { return "nothing is received" })
	cancel(why)
	if err := <-ended; !errors.Is(err, why) && !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the reason of the cancellation", err)
	}
}

// classicPath is one on which a window per round trip is far below the rate.
func classicPath() (c Conditions, windowBps float64) {
	c = MitreConditions()
	c.RTT, c.RateBps = 40*time.Millisecond, 1e9
	return c, ClassicWindowBytes * 8 / c.RTT.Seconds()
}

// goodput is that of a transfer from host-a to host-b.
func goodput(t *testing.T, c Conditions, bytes int64) float64 {
	t.Helper()
	built := build(t, c)
	var received atomic.Int64
	got, err := bulk(t.Context(), built.Host("host-a"), built.Host("host-b"), netip.AddrPortFrom(HostB, bulkPort), bytes, Sockets{}, &received)
	if err != nil {
		t.Fatal(err)
	}
	return got.goodputBps()
}

// The end hosts of the report are held to one window per round trip.
func TestClassicEndHosts(t *testing.T) {
	c, window := classicPath()
	c.ClassicEndHost = true
	if got := goodput(t, c, 2<<20); got > window {
		t.Errorf("classic hosts reach %.1f Mb/s, their window allows %.1f", got/1e6, window/1e6)
	}
}

func TestProgramsReachHostsByName(t *testing.T) {
	ping := nettest.RequireProgram(t, "ping", "iputils-ping")
	built := build(t, fast())
	for range 2 { // as a second lab of the same sandbox does
		if err := built.NameHosts(); err != nil {
			t.Fatal(err)
		}
	}
	for _, to := range built.HostNames() {
		status, out := execute(t, built, "host-a", ping, "-c", "1", "-W", "60", to)
		if status != 0 {
			t.Errorf("ping %s: status %d: %s", to, status, out)
		}
	}
}

// serve serves the lab on a socket of its own until the test ends.
func serve(t *testing.T, built *Lab) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "l", "lab.sock")
	listener, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	server := Server{
		Lab:  built,
		Set:  func(map[string]string) error { return errors.New("nothing can be set here") },
		Show: func() (any, error) { return map[string]int{"answer": 42}, nil },
	}
	go func() { served <- server.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return socket
}

// execute runs a program through a socket and returns its status and output.
func execute(t *testing.T, built *Lab, host string, args ...string) (int, string) {
	t.Helper()
	out, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	reply, err := Call(serve(t, built), Request{Exec: &ExecRequest{Host: host, Args: args, Env: os.Environ(), Dir: "/"}}, []*os.File{in, out, out}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	said, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	return reply.Status, string(said)
}

func TestExec(t *testing.T) {
	built := build(t, fast())
	for _, test := range []struct {
		args   []string
		status int
		output string
	}{
		{[]string{"sh", "-c", "echo hello; exit 5"}, 5, "hello\n"},
		{[]string{"sh", "-c", "kill -9 $$"}, 128 + 9, ""},
		{[]string{"cat", "/proc/sys/net/ipv4/ip_forward"}, 0, "1\n"}, // which relay-a has on, and host-a off
	} {
		if status, output := execute(t, built, "relay-a", test.args...); status != test.status || output != test.output {
			t.Errorf("%q: status %d and %q, want %d and %q", test.args, status, output, test.status, test.output)
		}
	}
}

func TestExecErrors(t *testing.T) {
	built := build(t, fast())
	socket := serve(t, built)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	streams := []*os.File{null, null, null}
	for _, test := range []struct {
		request Request
		want    string
	}{
		{Request{Exec: &ExecRequest{Host: "host-c", Args: []string{"true"}}}, `no host "host-c"`},
		{Request{Exec: &ExecRequest{Host: "host-a", Args: []string{"no-such-program"}}}, "executable file not found"},
		{Request{Exec: &ExecRequest{Host: "host-a"}}, "are needed"},
		{Request{Set: map[string]string{"loss": "1"}}, "nothing can be set here"},
		{Request{}, "empty request"},
	} {
		if _, err := Call(socket, test.request, streams, nil); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: error %v, want %q", test.request, err, test.want)
		}
	}
	if _, err := Listen(socket); err == nil || !strings.Contains(err.Error(), "a lab is up already") {
		t.Errorf("a second lab on the socket: error %v", err)
	}
	if _, err := Call(filepath.Join(t.TempDir(), "none"), Request{Show: true}, nil, nil); !errors.Is(err, ErrNoLab) {
		t.Errorf("without a lab: error %v, want %v", err, ErrNoLab)
	}
}

// A client that goes away takes its program with it.
func TestExecEndsWithItsClient(t *testing.T) {
	built := build(t, fast())
	socket := serve(t, built)
	mark := filepath.Join(t.TempDir(), "pid")
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	signals := make(chan os.Signal, 1)
	gone := make(chan Reply, 1)
	go func() {
		reply, _ := Call(socket, Request{Exec: &ExecRequest{
			Host: "host-a", Dir: "/", Env: os.Environ(),
			Args: []string{"sh", "-c", "echo $$ > " + mark + "; exec sleep 1000"},
		}}, []*os.File{null, null, null}, signals)
		gone <- reply
	}()
	var pid string
	nettest.Eventually(t, time.Minute, func() bool {
		data, _ := os.ReadFile(mark)
		pid = strings.TrimSpace(string(data))
		return pid != ""
	}, func() string { return "the program did not start" })
	signals <- os.Interrupt
	if reply := <-gone; reply.Status != 128+2 {
		t.Errorf("an interrupted program's status is %d, want %d", reply.Status, 128+2)
	}
	if _, err := os.Stat("/proc/" + pid); err == nil {
		t.Errorf("process %s is still there", pid)
	}
}

func TestLimit(t *testing.T) {
	tenth := link.Loss{Probability: 0.1}
	for _, test := range []struct {
		c    Conditions
		want float64
	}{
		{Conditions{MTUAB: 1500}, 0},
		{Conditions{RateBps: 100e6, MTUAB: 1500}, 100e6 * 1448 / 1500},
		{Conditions{RateBps: 100e6, MTUAB: 9180, ATM: true}, 100e6 * 9128 / (192 * 53)},
		{Conditions{RateBps: 100e6, MTUAB: 1500, PacketsPerSecond: 1000}, 1000 * 1448 * 8},
		{Conditions{RateBps: 1e6, MTUAB: 1500, PacketsPerSecond: 1000}, 1e6 * 1448 / 1500.},
		{Conditions{RateBps: 1e9, MTUAB: 1500, Loss: tenth}, 1e9 * 1448 / 1500},
		{Conditions{RateBps: 1e9, MTUAB: 1500, Loss: tenth, LossPlace: link.LossAfter}, 0.9 * 1e9 * 1448 / 1500},
	} {
		if got := test.c.LimitBps(); math.Abs(got-test.want) > 1 {
			t.Errorf("%+v: the limit is %.0f, want %.0f", test.c, got, test.want)
		}
	}
}

func TestBurstsKeepTheMean(t *testing.T) {
	for _, p := range []float64{0, 0.001, 0.1, 0.5, 1} {
		for _, length := range []float64{1, 2, 10} {
			got := inBursts(link.Loss{Probability: p}, length).Share()
			// Bursts of a length cannot be so frequent that nothing lies between.
			if want := p; math.Abs(got-want) > 1e-9 {
				t.Errorf("loss %g in bursts of %g: mean %g", p, length, got)
			}
		}
	}
}

func TestSummary(t *testing.T) {
	second := func(bytes int64, seconds float64, ratio float64) sample {
		return sample{transfer: transfer{bytes, time.Duration(seconds * float64(time.Second))}, retransmitRatio: ratio, relayCPU: time.Second}
	}
	r := summarize(Case{Name: "x"}, []sample{second(1e9, 8, 0.3), second(1e9, 4, 0.1), second(1e9, 10, 0.2)}, fast())
	if r.GoodputBps != 1e9 || r.GoodputMinBps != 0.8e9 || r.GoodputMaxBps != 2e9 || r.Seconds != 8 || r.RetransmitRatio != 0.2 || *r.RelayCPUPerGB != 1 {
		t.Errorf("got %+v", r)
	}
	for _, test := range []struct {
		values []float64
		want   float64
	}{{[]float64{3}, 3}, {[]float64{1, 3}, 2}, {[]float64{1, 2, 9}, 2}} {
		if got := median(test.values); got != test.want {
			t.Errorf("median of %v is %v, want %v", test.values, got, test.want)
		}
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
		if err := e.Check(RunOptions{Cases: []string{"no such case"}}); err == nil {
			t.Errorf("%s accepts a case that it does not have", e.Name)
		}
	}
}

package faults

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"longhaul/test/nettest"
	"longhaul/test/tcpscript"
)

// resourcesStatus is what the cases need of the resources in a status.
type resourcesStatus struct {
	At       time.Time `json:"sampled_at"`
	Shedding []string  `json:"shedding"`
	Tight    []string  `json:"tight"`
	Figures  []struct {
		Resource string  `json:"resource"`
		Used     float64 `json:"used"`
		Limit    float64 `json:"limit"`
		Capacity float64 `json:"capacity"`
	} `json:"figures"`
}

func (s resourcesStatus) of(resource string) (used, limit, capacity float64) {
	for _, f := range s.Figures {
		if f.Resource == resource {
			return f.Used, f.Limit, f.Capacity
		}
	}
	return -1, -1, -1
}

// flood opens so many flows as fast as it can, and holds those that are served.
func flood(dial dialFunc, n int) (served []held, reset int, others []error) {
	var mu sync.Mutex
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			h, err := tryHold(context.Background(), dial, patience)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				served = append(served, h)
			case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
				reset++
			default:
				others = append(others, err)
			}
		})
	}
	all.Wait()
	return served, reset, others
}

// shedTimes is how long things took while new flows were shed; the timed tests judge
// it.
type shedTimes struct {
	flood    time.Duration   // until every client was served or reset
	recovery time.Duration   // until new flows were admitted once there was room
	echoes   []time.Duration // through flows that stood, the quickest first
}

// Case 20: descriptors run short. New flows are reset before they are used up,
// as many are served as there is room for, flows that stand go on, and when
// descriptors are given back all is as before.
func TestCase20ShedsBeforeDescriptorsAreUsedUp(t *testing.T) {
	t.Parallel()
	shedBeforeDescriptorsAreUsedUp(t)
}

func shedBeforeDescriptorsAreUsedUp(t *testing.T) (times shedTimes) {
	t.Helper()
	const most, standing, clients = 512, 8, 600
	listen, web := nettest.FreeAddress(t, "127.0.0.1"), nettest.FreeAddress(t, "127.0.0.1")
	relay := startDaemon(t, nil, unsupervised, fmt.Sprintf("limits: {descriptors: 80%%}\nhttp_listen: %s\n", web)+single(listen, echo(t, "127.0.0.1:0"), ""))
	if err := unix.Prlimit(relay.cmd.Process.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: most}, nil); err != nil {
		t.Fatal(err)
	}
	dial := tcpscript.DialTo(listen)
	steady := openTraffic(t, dial, standing)
	nettest.Eventually(t, patience, func() bool {
		_, limit, capacity := relay.status().Resources.of("descriptors")
		return capacity == most && limit > 0
	}, func() string { return "the limit is not seen" })
	expectHealth(t, "before the flood", web, "/readyz/main", http.StatusOK)

	begin := time.Now()
	served, reset, others := flood(dial, clients)
	times.flood = time.Since(begin)
	for _, err := range others {
		t.Error("a client that was neither served nor reset: ", err)
	}
	s := relay.status()
	used, limit, _ := s.Resources.of("descriptors")
	t.Logf("%d of %d clients served, %d reset; %v descriptors in use, limit %v of %d", len(served), clients, reset, s.Process.Descriptors, limit, most)
	// Two descriptors each. Those that wait for a moment, for pipes or for
	// status, are a few.
	if room := int(limit)/2 - standing; len(served) < room-30 || len(served) > room {
		t.Errorf("%d clients were served, and there was room for about %d", len(served), room)
	}
	if s.Process.Descriptors > most*9/10 {
		t.Errorf("%d descriptors of %d are in use (%v as sampled)", s.Process.Descriptors, most, used)
	}
	if tun := s.tunnel("main"); tun.Shed != int64(reset) || tun.Errors != 0 {
		t.Errorf("%d clients were reset: %+v", reset, tun)
	}
	// What was open for a moment when the room was measured is free now.
	nettest.Repeatedly(t, patience, func() bool {
		h, err := tryHold(t.Context(), dial, patience)
		if err == nil {
			served = append(served, h)
		} else {
			reset++
		}
		return relay.log.count(`msg="shedding new flows: a limit is reached" resource=descriptors`) > 0
	}, func() string { return "the log does not say that it sheds" })
	relay.expectLog(`level=WARN .* resource=descriptors used=4\d\d limit=410 .*remedy=`)
	relay.expectLog(`level=WARN msg="connection refused" tunnel=main .*reason=shed error="the source has \d+ of the \d+ flows that there is room for \(descriptors\); what is left is for others"`)
	if n := relay.log.count("accepting is paused"); n != 0 {
		t.Error("descriptors were used up nevertheless")
	}
	expectHealth(t, "while it sheds", web, "/readyz/main", http.StatusServiceUnavailable)
	expectHealth(t, "while it sheds", web, "/readyz/main?ignore=shedding", http.StatusOK)
	expectHealth(t, "while it sheds", web, "/healthz", http.StatusOK)

	// Who has taken all that there is has not taken it from others.
	other, err := tryHold(t.Context(), func(ctx context.Context) (net.Conn, error) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
		d.SetMultipathTCP(false)
		return d.DialContext(ctx, "tcp", listen)
	}, patience)
	if err != nil {
		t.Fatal("a client from another address is refused: ", err)
	}
	served = append(served, other)

	begin = time.Now()
	for _, h := range served {
		h.Close()
	}
	expectHealth(t, "after the flood", web, "/readyz/main", http.StatusOK)
	times.recovery = time.Since(begin)
	hold(t, dial).release(t)
	relay.expectLog(`level=INFO msg="a limit is no longer reached" resource=descriptors`)
	times.echoes = steady.release(t)
	if s := relay.status(); len(s.Resources.Shedding) != 0 || s.tunnel("main").Shed != int64(reset) {
		t.Errorf("after the flood, in which %d clients were reset: %+v, %+v", reset, s.Resources, s.tunnel("main"))
	}
	return times
}

// A flood of short connections at the limit: as many as fit are served all the
// time; shedding does not stop the service.
func TestCase20ServesWhileItSheds(t *testing.T) {
	t.Parallel()
	const most = 256
	listen := nettest.FreeAddress(t, "127.0.0.1")
	relay := startDaemon(t, nil, unsupervised, "limits: {descriptors: 50%}\n"+single(listen, echo(t, "127.0.0.1:0"), ""))
	if err := unix.Prlimit(relay.cmd.Process.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: most}, nil); err != nil {
		t.Fatal(err)
	}
	nettest.Eventually(t, patience, func() bool { _, limit, _ := relay.status().Resources.of("descriptors"); return limit == most/2 }, func() string { return "the limit is not seen" })
	dial := tcpscript.DialTo(listen)
	long, _, others := flood(dial, most)
	for _, err := range others {
		t.Error(err)
	}
	if len(long) < 20 {
		t.Fatalf("only %d flows fit", len(long))
	}
	// Those who go make room for as many at once, without waiting for a look.
	for round := range 5 {
		for range 5 {
			long[0].release(t)
			long = long[1:]
		}
		nettest.Eventually(t, patience, func() bool { return relay.status().FlowsNow == int64(len(long)) }, func() string { return "flows that were released are still there" })
		released := time.Now()
		try := func() error {
			h, err := tryHold(t.Context(), dial, patience)
			if err == nil {
				long = append(long, h)
			}
			return err
		}
		if err := try(); err != nil {
			t.Fatalf("round %d: 5 flows were released, and the next is not served: %v", round, err)
		}
		// What the relay had open for status when it looked may be the room of a flow until
		// the next look; what it keeps open, such as a pipe, may be that of one from now on.
		for i := range 4 {
			var err error
			var used, limit float64
			nettest.Eventually(t, patience, func() bool {
				if err = try(); err == nil {
					return true
				}
				s := relay.status().Resources
				used, limit, _ = s.of("descriptors")
				return s.At.After(released) && used+2 > limit
			}, func() string {
				return fmt.Sprintf("round %d: 5 flows were released, and flow %d after them is not served, with %v of %v descriptors in use: %v", round, i+2, used, limit, err)
			})
		}
	}
	for _, h := range long {
		h.Close()
	}
}

// tcpPages reads how many pages the machine's TCP sockets hold.
func tcpPages(t *testing.T) int64 {
	t.Helper()
	proc, err := procfs.NewDefaultFS()
	nettest.Must(t, err)
	sockstat, err := proc.NetSockstat()
	nettest.Must(t, err)
	for _, p := range sockstat.Protocols {
		if p.Protocol == "TCP" {
			return int64(*p.Mem)
		}
	}
	t.Fatal("/proc/net/sockstat says nothing of TCP")
	return 0
}

// Case 21: the memory that the kernel has for TCP runs short. New flows are
// reset, and those that stand move on.
func TestCase21ShedsWhenTCPMemoryRunsShort(t *testing.T) {
	// Not parallel: the figure is the machine's.
	shedWhenTCPMemoryRunsShort(t, 160<<20)
}

// shedWhenTCPMemoryRunsShort has a limit with room for what other programs may take
// meanwhile.
func shedWhenTCPMemoryRunsShort(t *testing.T, others int64) (times shedTimes) {
	t.Helper()
	const flows = 24
	base := tcpPages(t) * int64(os.Getpagesize())
	limit := base + base/4 + others // nine tenths of it are above what there was
	listen := nettest.FreeAddress(t, "127.0.0.1")
	silent := nettest.FreeAddress(t, "127.0.0.1")
	relay := startDaemon(t, nil, unsupervised, fmt.Sprintf("limits: {tcp_memory: %d}\nreset_drain_timeout: 500ms\n", limit)+single(listen, echo(t, "127.0.0.1:0"), "")+
		fmt.Sprintf("  - {name: silent, listen: %q, forward: %q}\n", silent, listener(t)))
	dial := tcpscript.DialTo(listen)
	steady := openTraffic(t, dial, 4)
	// Senders to a target that does not read fill every queue on the way.
	var filling sync.WaitGroup
	var senders []net.Conn
	for range flows {
		c, err := tcpscript.DialTo(silent)(t.Context())
		if errors.Is(err, syscall.ECONNRESET) {
			break // it is short already
		}
		if err != nil {
			t.Fatal(err)
		}
		senders = append(senders, c)
		filling.Go(func() {
			block := make([]byte, 1<<20)
			for {
				if _, err := c.Write(block); err != nil {
					return // closed below
				}
			}
		})
	}
	relay.expectLog(`level=WARN msg="shedding new flows: a limit is reached" resource=tcp_memory .*remedy="set memory_limit, or raise net.ipv4.tcp_mem"`)
	t.Logf("TCP memory %d MiB at the beginning, %d now, limit %d", base>>20, tcpPages(t)*int64(os.Getpagesize())>>20, limit>>20)
	expectReset(t, dial, patience)
	s := relay.status()
	if s.tunnel("main").Shed == 0 || len(s.Resources.Shedding) != 1 || s.Resources.Shedding[0] != "tcp_memory" {
		t.Errorf("TCP memory is short, and the relay has %+v, %+v; want it to shed for tcp_memory", s.Resources, s.tunnel("main"))
	}
	begin := time.Now()
	for _, c := range senders {
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
	filling.Wait()
	relay.expectLog(`level=INFO msg="a limit is no longer reached" resource=tcp_memory`)
	times.recovery = time.Since(begin)
	hold(t, dial).release(t)
	times.echoes = steady.release(t)
	return times
}

// listener takes connections and reads nothing from them.
func listener(t *testing.T) string {
	t.Helper()
	return serve(t, "127.0.0.1:0", func(c net.Conn) {
		_ = c.(*net.TCPConn).SetReadBuffer(4 << 10)
		<-t.Context().Done()
	})
}

// Case 22: the process's own memory runs short, since very many receivers are
// slow: what the relay has read for them and cannot hand over is in its memory.
func TestCase22ShedsWhenTheProcessRunsShortOfMemory(t *testing.T) {
	t.Parallel()
	shedWhenTheProcessRunsShortOfMemory(t)
}

func shedWhenTheProcessRunsShortOfMemory(t *testing.T) (times shedTimes) {
	t.Helper()
	const (
		limit   = 16 << 20
		atOnce  = 100
		clients = 5000
	)
	listen, slow := nettest.FreeAddress(t, "127.0.0.1"), nettest.FreeAddress(t, "127.0.0.1")
	// Small buffers in the kernel: the relay copies, and soon cannot go on.
	relay := startDaemon(t, nil, unsupervised, fmt.Sprintf("limits: {memory: %d, descriptors: off}\nreset_drain_timeout: 500ms\n", limit)+
		single(listen, echo(t, "127.0.0.1:0"), "")+
		fmt.Sprintf("  - {name: slow, listen: %q, forward: %q, wan_side: none, lan: {send_buffer: 4KiB, receive_buffer: 8KiB}}\n", slow, listener(t)))
	dial := tcpscript.DialTo(listen)
	steady := openTraffic(t, dial, 4)
	memory := func() float64 {
		used, _, _ := relay.status().Resources.of("memory")
		return used / (1 << 20)
	}
	before := memory()

	var mu sync.Mutex
	var taken []*net.TCPConn
	refused := 0 // before connect had returned
	fill := func() {
		c, err := tcpscript.DialTo(slow)(t.Context())
		if err == nil {
			mu.Lock()
			taken = append(taken, c.(*net.TCPConn))
			mu.Unlock()
			c.(*net.TCPConn).SetWriteBuffer(4 << 10)
			c.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
			_, err = c.Write(make([]byte, 1<<20))
		} else if errors.Is(err, syscall.ECONNRESET) {
			mu.Lock()
			refused++
			mu.Unlock()
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
			t.Errorf("a client was neither reset nor held up: %v", err)
		}
	}
	reset := func() (n int) {
		for _, c := range taken {
			if isReset(t, c) {
				n++
			}
		}
		return n + refused
	}
	fillMore := func() {
		var all sync.WaitGroup
		for range atOnce {
			all.Go(fill)
		}
		all.Wait()
		filled := time.Now()
		nettest.Eventually(t, patience, func() bool { return relay.status().Resources.At.After(filled) },
			func() string { return "the relay does not look at its memory" })
	}
	admitted := func() bool {
		h, err := tryHold(t.Context(), dial, patience)
		if err == nil {
			h.Close()
		}
		return err == nil
	}
	// A limit that is reached makes the relay return memory, after which there may be room
	// for some flows more.
	for reset() == 0 || admitted() {
		if fillMore(); len(taken) > clients {
			t.Fatalf("%d slow receivers do not use up the memory: %.1f MiB of %d", len(taken), memory(), limit>>20)
		}
	}
	var s daemonStatus
	nettest.Eventually(t, patience, func() bool {
		s = relay.status()
		return s.tunnel("slow").Shed > 0 && s.tunnel("slow").Shed == int64(reset())
	}, func() string {
		return fmt.Sprintf("%d clients were reset: %+v, %+v", reset(), s.Resources, s.tunnel("slow"))
	})
	t.Logf("%d clients were taken, %d reset; the process's memory %.1f MiB at the beginning, %.1f now, limit %d", len(taken)+refused-reset(), reset(), before, memory(), limit>>20)
	// What comes between two looks may exceed the limit a little.
	if now := memory(); now > 3*limit/2/(1<<20) {
		t.Errorf("%.1f MiB are used, and the limit is %d", now, limit>>20)
	}
	relay.expectLog(`level=WARN msg="shedding new flows: a limit is reached" resource=memory `)
	begin := time.Now()
	for _, c := range taken {
		c.SetLinger(0)
		c.Close()
	}
	nettest.Eventually(t, patience, func() bool {
		return relay.log.count(`msg="a limit is no longer reached" resource=memory `) == relay.log.count(`msg="shedding new flows: a limit is reached" resource=memory `)
	}, func() string { return "the memory's limit stays reached without the slow receivers" })
	times.recovery = time.Since(begin)
	hold(t, dial).release(t)
	times.echoes = steady.release(t)
	return times
}

// isReset reports whether the other end has reset a connection.
func isReset(t *testing.T, c *net.TCPConn) (reset bool) {
	t.Helper()
	raw, err := c.SyscallConn()
	nettest.Must(t, err)
	var info *unix.TCPInfo
	nettest.Must(t, raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO) }))
	nettest.Must(t, err)
	return info.State == unix.BPF_TCP_CLOSE
}

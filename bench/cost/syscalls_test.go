package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"longhaul/bench/peers"
	"longhaul/test/nettest"
)

// maxCalls bounds the system calls of a loop for a connection with 64 bytes each way, both legs, apart from
// epoll_wait, of which one has the events of many. They are accept4, epoll_ctl for each leg; socket, SO_LINGER,
// SO_OOBINLINE, TCP_DEFER_ACCEPT, connect; a read and a write for each direction, a read of each end; shutdown,
// SO_LINGER off, SIOCOUTQ and close for each leg. Mostly it is one less: a FIN that came before its last bytes
// were read needs no read.
const maxCalls = 20

// TestSystemCalls counts the system calls of a relay's event loop for short connections.
func TestSystemCalls(t *testing.T) {
	strace := nettest.RequireProgram(t, "strace", "strace")
	nettest.RequireSandbox(t)
	nettest.Must(t, prepareHost())
	t.Setenv("COST_TEST_ROLE", "program")
	runtime.LockOSThread() // which peers.Start asks for
	defer runtime.UnlockOSThread()

	listen, target := peers.Address{Host: "127.79.0.1", Port: 6000}, peers.Address{Host: "127.79.0.2", Port: 6000}
	server, err := startTarget(t.Context(), target)
	nettest.Must(t, err)
	defer server.stop()
	p, err := peers.Longhaul(nettest.Longhaul(t)).Prepare(t.Context(), t.TempDir())
	nettest.Must(t, err)
	argv, err := p.Command(t.TempDir(), peers.Setup{Listen: listen, Target: target, Threads: 1})
	nettest.Must(t, err)
	relay, err := peers.Start(t.Context(), argv, listen)
	nettest.Must(t, err)
	defer relay.Kill()

	file := filepath.Join(t.TempDir(), "calls")
	trace := exec.Command(strace, "-f", "-o", file, "-p", strconv.Itoa(relay.Pid()))
	stderr, err := trace.StderrPipe()
	nettest.Must(t, err)
	nettest.Must(t, trace.Start())
	says := bufio.NewReader(stderr)
	if said, err := says.ReadString('\n'); !strings.Contains(said, "attached") {
		t.Fatalf("strace says %q, %v", said, err)
	}
	c, err := connect(load{clients: 64, reply: requestSize, renew: true}, listen)
	nettest.Must(t, err)
	defer c.close()
	for c.requests < 1000 {
		nettest.Must(t, c.turn(time.Second))
	}
	nettest.Must(t, trace.Process.Signal(os.Interrupt))
	_, _ = io.Copy(io.Discard, says)
	_ = trace.Wait() // it reports the signal

	content, err := os.ReadFile(file)
	nettest.Must(t, err)
	calls := loopCalls(string(content))
	sum := 0
	var each strings.Builder
	for _, name := range slices.Sorted(maps.Keys(calls)) {
		fmt.Fprintf(&each, " %s %.2f", name, float64(calls[name])/float64(c.requests))
		if name != "epoll_wait" {
			sum += calls[name]
		}
	}
	if mean := float64(sum) / float64(c.requests); mean > maxCalls || calls["accept4"] < int(c.requests) {
		t.Errorf("%.2f system calls for a connection, want at most %d:%s", mean, maxCalls, &each)
	}
	t.Logf("%.2f for a connection:%s", float64(sum)/float64(c.requests), &each)
}

var (
	tracedCall = regexp.MustCompile(`^(\d+) +(\w+)\((.*)`)
	// notOfConnections are calls of the Go runtime, and of the measurement of memory once in a while.
	notOfConnections = regexp.MustCompile(`^(futex|nanosleep|tgkill|getpid|rt_sig\w+|sched_yield|madvise|mmap|read|write|clone3?)$`)
)

// loopCalls counts the calls of the thread that accepts, by name.
func loopCalls(trace string) map[string]int {
	byThread := map[string]map[string]int{}
	for line := range strings.Lines(trace) {
		m := tracedCall.FindStringSubmatch(line)
		if m == nil || notOfConnections.MatchString(m[2]) || strings.Contains(m[3], "SO_MEMINFO") || m[2] == "accept4" && strings.Contains(m[3], "EAGAIN") {
			continue
		}
		name := strings.Replace(m[2], "epoll_pwait", "epoll_wait", 1)
		calls := byThread[m[1]]
		if calls == nil {
			calls = map[string]int{}
			byThread[m[1]] = calls
		}
		switch {
		case strings.Contains(m[3], "TCP_CONGESTION") && name == "getsockopt":
			// The figures of 200 flows in a second are read for their records: of each leg this, and TCP_INFO
			// for the record and the leg's setup.
			calls[name] -= 2
		default:
			calls[name]++
		}
	}
	for _, calls := range byThread {
		if calls["accept4"] > 0 {
			return calls
		}
	}
	return nil
}

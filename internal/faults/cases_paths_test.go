package faults

import (
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/nettest"
)

// Case 13: an idle peer vanishes, and keepalive finds it. The other side is
// reset.
func TestCase13IdlePeerVanishes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, script, end string }{
		{"client", `
			target listens
			client connects
			client sends 1K
			target accepts
			target expects 1K
			target sends 1K
			client expects 1K
			waits 3s                      # idle, alive, and answering probes
			does cut-near
			target expects silence within 1s
			target expects reset within 10s
		`, "client-timeout"},
		{"target", `
			target listens
			client connects
			client sends 1K
			target accepts
			target expects 1K
			target sends 1K
			client expects 1K
			waits 3s
			does cut-far
			client expects silence within 1s
			client expects reset within 10s
		`, "target-timeout"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := newPath(t)
			leg := "{keepalive: {idle: 1s, interval: 1s, count: 3}}"
			relay := p.relay(p.config("lan: " + leg + "\n    wan: " + leg))
			p.run(tt.script)
			relay.expectLog(`end=` + tt.end + ` `)
		})
	}
}

// Case 14: a peer vanishes with data on the way to it. The user timeout finds
// that within its time, keepalive or not, and the other side is reset.
func TestCase14PeerVanishesWithData(t *testing.T) {
	t.Parallel()
	const towardsClient = `
		target listens
		client connects
		client sends 1K
		target accepts
		target expects 1K
		does cut-near
		target sends 64K
	`
	const towardsTarget = `
		target listens
		client connects
		client sends 1K
		target accepts
		target expects 1K
		does cut-far
		client sends 64K
	`
	for _, tt := range []struct {
		name, timeout, script, end string
		long                       bool
	}{
		// Below 15.4 s it is the kernel's own TCP_USER_TIMEOUT.
		{"client, 2 s", "2s", towardsClient + "target expects silence within 1s\ntarget expects reset within 4s", "client-timeout", false},
		{"target, 2 s", "2s", towardsTarget + "client expects silence within 1s\nclient expects reset within 4s", "target-timeout", false},
		// From there on it is the bound of the retransmission timeout.
		{"client, 16 s", "16s", towardsClient + "target expects silence within 8s\ntarget expects reset within 10s", "client-timeout", true},
		{"target, 16 s", "16s", towardsTarget + "client expects silence within 8s\nclient expects reset within 10s", "target-timeout", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if tt.long && testing.Short() {
				t.Skip("takes 16 s")
			}
			p := newPath(t)
			leg := "{keepalive: off, user_timeout: " + tt.timeout + "}"
			relay := p.relay(p.config("lan: " + leg + "\n    wan: " + leg))
			began := time.Now()
			p.run(tt.script)
			t.Logf("found after %.1f s", time.Since(began).Seconds())
			relay.expectLog(`end=` + tt.end + ` `)
		})
	}
}

// userTimeout is the shortest with which a closed window may live, where the
// kernel can bound the retransmission timeout (TCP_RTO_MAX_MS, Linux 6.15).
const userTimeout = 16 * time.Second

// closedWindow is a flow whose target does not read, while the client sends
// all it can.
type closedWindow struct {
	t       *testing.T
	relay   *daemon
	target  *net.TCPConn
	written atomic.Int64 // by the client
	ended   chan [sha256.Size]byte
	finish  chan struct{} // closed: the client is to end
	content *rand.ChaCha8
}

// newClosedWindow opens the flow, with the wan_side auto or none.
func newClosedWindow(t *testing.T, wanSide string) *closedWindow {
	t.Helper()
	p := newPath(t)
	leg := fmt.Sprintf("{user_timeout: %v}", userTimeout)
	if !canBoundRTO(t) {
		t.Logf("this kernel cannot bound the retransmission timeout: without a user timeout")
		leg = "{}"
	}
	legs := fmt.Sprintf("wan_side: %s\n    lan: %s", wanSide, leg)
	if wanSide == "auto" {
		legs += "\n    wan: " + leg
	}
	w := &closedWindow{
		t: t, relay: p.relay(p.config(legs)),
		ended: make(chan [sha256.Size]byte, 1), finish: make(chan struct{}), content: rand.NewChaCha8([32]byte{15}),
	}
	client, target := p.connect()
	w.target = target
	go w.send(client)
	return w
}

func (w *closedWindow) send(client *net.TCPConn) {
	hash := sha256.New()
	buf := make([]byte, 64<<10)
	for {
		select {
		case <-w.finish:
			client.CloseWrite()
			w.ended <- [sha256.Size]byte(hash.Sum(nil))
			return
		default:
		}
		w.content.Read(buf)
		n, err := client.Write(buf)
		hash.Write(buf[:n])
		w.written.Add(int64(n))
		if err != nil {
			return // the test sees that the hash is missing
		}
	}
}

// stayClosed waits until the client is paused, and sees for some time that it
// stays so, and that the relay keeps the flow, holds no more than
// its queues may and uses no CPU.
func (w *closedWindow) stayClosed(long time.Duration) {
	t := w.t
	t.Helper()
	const silence = 3 * time.Second // longer than a busy machine holds anybody up
	paused, began := int64(-1), time.Now()
	nettest.Eventually(t, 2*patience, func() bool {
		if now := w.written.Load(); now != paused {
			paused, began = now, time.Now()
		}
		return time.Since(began) > silence
	}, func() string { return "the sender does not pause" })
	cpu := cpuTime(t, w.relay.cmd.Process.Pid)
	first := w.relay.status()
	for time.Since(began) < long {
		time.Sleep(2 * time.Second) // an answer costs the relay some ms
		s := w.relay.status()
		switch {
		case s.FlowsNow != 1:
			t.Fatalf("the flow is gone after %v\n%s", time.Since(began), w.relay.log)
		case s.Memory.UsedBytes > mostHeld(s.Flows[0]):
			t.Fatalf("the relay's sockets and pipes hold %d bytes, of a %s and a %s leg",
				s.Memory.UsedBytes, s.Flows[0].ClientLeg.Side, s.Flows[0].TargetLeg.Side)
		case s.Process.ResidentBytes > first.Process.ResidentBytes+8<<20: // the status calls leave garbage
			t.Fatalf("the relay's resident memory has grown from %d to %d bytes", first.Process.ResidentBytes, s.Process.ResidentBytes)
		case w.written.Load() != paused:
			t.Fatalf("the sender went on, from %d to %d bytes, and nobody had read", paused, w.written.Load())
		}
	}
	used := cpuTime(t, w.relay.cmd.Process.Pid) - cpu
	t.Logf("%.1f MiB written, %.1f MiB in the relay's queues, %.0f ms of CPU in %v", float64(paused)/(1<<20),
		float64(w.relay.status().Memory.UsedBytes)/(1<<20), used.Seconds()*1e3, long)
	// A look at its resources each second, and the answers above, are some 2 %; a
	// relay that asks again and again whether the window is open would take 100.
	if used > long/8 {
		t.Errorf("the relay used %v of CPU time in %v of waiting", used, long)
	}
}

// mostHeld is the most that the queues of a flow's relay may hold of what goes
// to its target, in bytes as the kernel counts them. Where wan_side is auto, a
// busy machine makes WAN legs of these links, which are carried by a process:
// the round trip of a handshake waits for the CPU (docs/design/transport.md).
func mostHeld(f flowStatus) int64 {
	const widest = 2 * 64 << 20 // of a WAN leg, for each direction
	received, sent := int64(mostReceived), int64(mostSent)
	if f.ClientLeg.Side == "wan" {
		received = widest
	}
	if f.TargetLeg.Side == "wan" {
		sent = widest
	}
	return received + sent + 1<<20
}

// Case 15: a window that stays closed. The sender is paused, what the relay
// holds is bounded, and no timeout takes the flow for a dead one.
func TestCase15WindowClosedForEver(t *testing.T) {
	t.Parallel()
	w := newClosedWindow(t, "auto")
	w.stayClosed(userTimeout + 5*time.Second)
}

// Case 16: a window that opens after several times the user timeout. The
// transfer completes, and at once where the relay has not announced more than
// it can hold.
//
// With wan_side: auto and the privilege to enlarge buffers it has: a leg may
// turn out to be a WAN leg, and a LAN leg is announced a window that it is not
// given (docs/design/transport.md). What does not fit is sent again by the
// client's retransmission timer, which has backed off meanwhile, at most by as
// much as the window was closed.
func TestCase16WindowOpensLate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		wanSide      string
		closed, late time.Duration
	}{
		{"none", 3*userTimeout + 2*time.Second, patience},
		{"auto", userTimeout + 2*time.Second, userTimeout + 2*time.Second + patience},
	} {
		t.Run(tt.wanSide, func(t *testing.T) {
			t.Parallel()
			if testing.Short() {
				tt.closed = userTimeout + 2*time.Second
			}
			w := newClosedWindow(t, tt.wanSide)
			w.stayClosed(tt.closed)
			close(w.finish)
			hash := sha256.New()
			opened := time.Now()
			w.target.SetReadDeadline(opened.Add(tt.late))
			n, err := io.Copy(hash, w.target)
			if err != nil {
				t.Fatalf("after %d bytes: %v", n, err)
			}
			t.Logf("complete %.1f s after the window had opened", time.Since(opened).Seconds())
			select {
			case sum := <-w.ended:
				if n != w.written.Load() || [sha256.Size]byte(hash.Sum(nil)) != sum {
					t.Errorf("%d bytes of %d came, or others", n, w.written.Load())
				}
			case <-time.After(patience):
				t.Error("the client could not send all")
			}
			w.target.CloseWrite()
			w.relay.expectLog(`bytes_up=` + strconv.FormatInt(n, 10) + ` .*end=end ended_by=both`)
		})
	}
}

// canBoundRTO says whether the kernel knows TCP_RTO_MAX_MS.
func canBoundRTO(t *testing.T) bool {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	const rtoMaxMS = 44
	return unix.SetsockoptInt(fd, unix.SOL_TCP, rtoMaxMS, 1000) == nil
}

// cpuTime is the processor time of a process, to 10 ms.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	var sum time.Duration
	for _, field := range strings.Fields(after)[11:13] { // utime and stime
		ticks, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		sum += time.Duration(ticks) * 10 * time.Millisecond
	}
	return sum
}

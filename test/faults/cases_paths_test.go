package faults

import (
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/test/nettest"
)

// Case 13: an idle peer vanishes, and keepalive finds it. The other side is
// reset.
func TestCase13IdlePeerVanishes(t *testing.T) {
	t.Parallel()
	for _, v := range idleVanishings {
		t.Run(v.peer, func(t *testing.T) {
			t.Parallel()
			v.run(t)
		})
	}
}

// idleVanishing is a peer that vanishes with nothing on the way to it.
type idleVanishing struct{ peer, other, link string }

var idleVanishings = []idleVanishing{{"client", "target", "near"}, {"target", "client", "far"}}

// run returns how long after the peer has vanished the other side was reset.
func (v idleVanishing) run(t *testing.T) (found time.Duration) {
	t.Helper()
	p := newPath(t)
	leg := "{keepalive: {idle: 1s, interval: 1s, count: 3}}"
	relay := p.relay(p.config("lan: " + leg + "\n    wan: " + leg))
	p.run(fmt.Sprintf(`
		target listens
		client connects
		client sends 1K
		target accepts
		target expects 1K
		target sends 1K
		client expects 1K
		waits 3s                      # idle, alive, and answering probes
		does cut-%s
		%s expects reset
	`, v.link, v.other))
	if found = time.Since(p.cutAt); found < time.Second {
		t.Errorf("the %s was reset %v after the %s had vanished, before a probe could fail", v.other, found, v.peer)
	}
	relay.expectLog(`end=` + v.peer + `-timeout `)
	return found
}

// Case 14: a peer vanishes with data on the way to it. The user timeout finds
// that, keepalive or not, and the other side is reset.
func TestCase14PeerVanishesWithData(t *testing.T) {
	t.Parallel()
	for _, v := range vanishings {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			v.run(t)
		})
	}
}

// vanishing is a peer that vanishes with data on the way to it.
type vanishing struct {
	name, peer, other string
	link              string // to the peer
	timeout           time.Duration
}

var vanishings = []vanishing{
	// Below 15.4 s it is the kernel's own TCP_USER_TIMEOUT.
	{"client, 2 s", "client", "target", "near", 2 * time.Second},
	{"target, 2 s", "target", "client", "far", 2 * time.Second},
	// Above, it is the bound of the retransmission timeout.
	{"client, 16 s", "client", "target", "near", 16 * time.Second},
	{"target, 16 s", "target", "client", "far", 16 * time.Second},
}

// run returns how long after the peer has vanished the other side was reset.
func (v vanishing) run(t *testing.T) (found time.Duration) {
	t.Helper()
	p := newPath(t)
	leg := fmt.Sprintf("{keepalive: off, user_timeout: %v}", v.timeout)
	relay := p.relay(p.config("lan: " + leg + "\n    wan: " + leg))
	p.run(fmt.Sprintf(`
		target listens
		client connects
		client sends 1K
		target accepts
		target expects 1K
		does cut-%s
		%s sends 64K
		%[2]s expects reset
	`, v.link, v.other))
	if found = time.Since(p.cutAt); found < v.timeout/2 {
		t.Errorf("the %s was reset %v after the %s had vanished, long before %v", v.other, found, v.peer, v.timeout)
	}
	relay.expectLog(`end=` + v.peer + `-timeout `)
	return found
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

// stayClosed waits until the queues on the way are full, and sees for some time that
// the relay keeps the flow, holds no more than its queues may, takes no more than that
// from the client, and sleeps.
func (w *closedWindow) stayClosed(long time.Duration) {
	t := w.t
	t.Helper()
	const least = 1 << 20 // what the queues on the way hold at least
	began := time.Now()
	nettest.Eventually(t, patience, func() bool { return w.written.Load() >= least }, func() string {
		return fmt.Sprintf("the client wrote %d bytes, and the queues on the way hold %d", w.written.Load(), least)
	})
	w.relay.expectAsleep("while the window is closed")
	first := w.relay.status()
	for {
		s := w.relay.status()
		if s.FlowsNow != 1 || len(s.Flows) != 1 {
			t.Fatalf("the flow is gone after %v\n%s", time.Since(began), w.relay.log)
		}
		most := mostHeld(s.Flows[0])
		switch {
		case s.Memory.UsedBytes > most:
			t.Fatalf("the relay's sockets and pipes hold %d bytes, more than %d, of a %s and a %s leg",
				s.Memory.UsedBytes, most, s.Flows[0].ClientLeg.Side, s.Flows[0].TargetLeg.Side)
		case s.Process.ResidentBytes > first.Process.ResidentBytes+8<<20: // the status calls leave garbage
			t.Fatalf("the relay's resident memory has grown from %d to %d bytes", first.Process.ResidentBytes, s.Process.ResidentBytes)
		case w.written.Load() > mostSent+most+mostReceived: // in the queues of the client, the relay and the target
			t.Fatalf("the client wrote %d bytes to a target that does not read, more than %d", w.written.Load(), mostSent+most+mostReceived)
		}
		if time.Since(began) > long {
			break
		}
		select {
		case <-t.Context().Done():
		case <-time.After(2 * time.Second): // the window has to stay closed for longer than the user timeout
		}
	}
	w.relay.expectAsleep("after the window was closed for long")
	t.Logf("%.1f MiB written, %.1f MiB in the relay's queues after %v", float64(w.written.Load())/(1<<20),
		float64(w.relay.status().Memory.UsedBytes)/(1<<20), long)
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

// closedFor is how long the window stays closed: longer than the user timeout.
const closedFor = userTimeout + 2*time.Second

// Case 15: a window that stays closed. The sender is paused, what the relay
// holds is bounded, and no timeout takes the flow for a dead one.
func TestCase15WindowClosedForEver(t *testing.T) {
	t.Parallel()
	newClosedWindow(t, "auto").stayClosed(closedFor)
}

// Case 16: a window that opens after the user timeout. The transfer completes.
//
// With wan_side: auto and the privilege to enlarge buffers it has: a leg may
// turn out to be a WAN leg, and a LAN leg is announced a window that it is not
// given (docs/design/transport.md). What does not fit is sent again by the
// client's retransmission timer, which has backed off meanwhile, at most by as
// much as the window was closed.
func TestCase16WindowOpensLate(t *testing.T) {
	t.Parallel()
	for _, wanSide := range []string{"none", "auto"} {
		t.Run(wanSide, func(t *testing.T) {
			t.Parallel()
			w := newClosedWindow(t, wanSide)
			w.stayClosed(closedFor)
			w.open()
		})
	}
}

// open has the target read all, and the client end. It returns how long the rest of
// the transfer took.
func (w *closedWindow) open() (took time.Duration) {
	t := w.t
	t.Helper()
	close(w.finish)
	hash := sha256.New()
	opened := time.Now()
	w.target.SetReadDeadline(opened.Add(2 * patience))
	n, err := io.Copy(hash, w.target)
	if err != nil {
		t.Fatalf("the transfer does not complete: %d bytes came, and then %v", n, err)
	}
	took = time.Since(opened)
	select {
	case sum := <-w.ended:
		if n != w.written.Load() || [sha256.Size]byte(hash.Sum(nil)) != sum {
			t.Errorf("the target got %d bytes of %d, or others", n, w.written.Load())
		}
	case <-time.After(patience):
		t.Error("the client could not send all")
	}
	w.target.CloseWrite()
	w.relay.expectLog(`bytes_up=` + strconv.FormatInt(n, 10) + ` .*end=end ended_by=both`)
	return took
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

package relay

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	report "longhaul/internal/carry/flow"
	"longhaul/test/nettest"
)

const mib = 1 << 20

// TestMemoryLimit stops the readers of many flows. The relay's memory stays
// below the limit, the source above its share gets no new flow, and another
// source is served. Once the readers continue, every byte arrives.
func TestMemoryLimit(t *testing.T) {
	nettest.CheckLeaks(t)
	const limit, flows, each = 16 * mib, 96, mib / 2
	g := newRig(t, func(o *rigOptions) { o.MemoryLimitBytes, o.StallTimeout = limit, -1 })
	ethernet(t, g.target)
	data := pattern(each)
	want := sha256.Sum256(data)

	clients, targets := make([]*net.TCPConn, flows), make([]*net.TCPConn, flows)
	for i := range targets {
		clients[i] = dialAsOnEthernet(t, g.addr)
		targets[i] = g.accept()
		clients[i].SetWriteBuffer(16 << 10)
	}
	var most int64
	memory := func() MemorySnapshot {
		g.look()
		m := *g.relay.Snapshot().Memory
		most = max(most, m.UsedBytes)
		return m
	}
	// All senders write a little, and the loops measure before any sender
	// writes more. So no clock decides how much arrives between two
	// measurements.
	var written [flows]int
	var m MemorySnapshot
	total, idle := 0, 0
	nettest.Repeatedly(t, 6*patience, func() bool {
		before := total
		for i, c := range clients {
			n := writeSome(t, c, data[written[i]:min(written[i]+4<<10, each)])
			written[i] += n
			total += n
		}
		m = memory()
		if idle++; total != before {
			idle = 0
		}
		return m.Short && idle == 20 || total == flows*each
	}, func() string {
		return fmt.Sprintf("the senders do not pause: they wrote %d of %d bytes, and the relay has %+v", total, flows*each, m)
	})
	if !m.Short || m.LimitBytes != limit {
		t.Errorf("%+v; want it to be short of %d bytes", m, limit)
	}
	t.Logf("%d flows: %.1f MiB of %d MiB, at most %.1f; the senders wrote %.1f MiB",
		flows, float64(m.UsedBytes)/mib, limit/mib, float64(most)/mib, float64(total)/mib)
	if most > limit*5/4 {
		t.Errorf("the flows held %d bytes, the limit is %d", most, limit)
	}
	if total >= flows*each {
		t.Fatal("nobody was paused")
	}
	var senders sync.WaitGroup
	defer senders.Wait()
	for i, c := range clients {
		senders.Go(func() {
			if _, err := c.Write(data[written[i]:]); err != nil {
				t.Error(err)
			}
			c.CloseWrite()
		})
	}

	// A limit far below the held memory.
	g.relay.SetMemoryLimit(2 * mib)
	g.look()
	expectResetOf(t, g.addr)
	if r := g.expectReason(report.EndShed); r.Err == nil || !strings.Contains(r.Err.Error(), "what is left is for others") {
		t.Errorf("refused for %v", r.Err)
	}
	late := dialFrom(t, netip.MustParseAddr("127.0.0.2"), g.addr)
	write(t, late, []byte("late"))
	expect(t, g.accept(), []byte("late"))

	var readers sync.WaitGroup
	for i, c := range targets {
		readers.Go(func() {
			hash := sha256.New()
			n, err := io.Copy(hash, c)
			if err != nil || n != each || !bytes.Equal(hash.Sum(nil), want[:]) {
				t.Errorf("flow %d: %d of %d bytes, %v", i, n, int64(each), err)
			}
			c.CloseWrite()
		})
	}
	readers.Wait()
	nettest.Eventually(t, patience, func() bool { return !memory().Short && !g.relay.Snapshot().AcceptPaused },
		func() string { return fmt.Sprintf("memory is still short: %+v", memory()) })
}

// TestMemoryGivenBack: after memory was short, a flow's queues have their old
// bounds, and autotuning where it was on.
func TestMemoryGivenBack(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, nil)
	c, _ := g.pair()
	if !tellsLocks(t, c) {
		t.Skip("needs SO_BUF_LOCK (Linux 5.14)")
	}
	before := g.sockets()
	g.relay.SetMemoryLimit(mib)
	go c.Write(make([]byte, 64*mib)) // fails when the test ends
	nettest.Eventually(t, patience, func() bool { m := g.relay.Snapshot().Memory; return m != nil && m.Short },
		func() string { return "memory does not become short" })
	// Each loop acts at its next measurement. Another loop may find that memory
	// is short, or no longer, before the flow's own loop changes its queues.
	var short, after [2]queueSizes
	nettest.Eventually(t, patience, func() bool {
		short = g.sockets()
		const both = unix.SOCK_SNDBUF_LOCK | unix.SOCK_RCVBUF_LOCK
		return short[client].locks == both && short[target].locks == both
	}, func() string { return fmt.Sprintf("queues are not bounded: %+v, before %+v", short, before) })
	g.relay.SetMemoryLimit(0)
	nettest.Eventually(t, patience, func() bool {
		after = g.sockets()
		for s, q := range after {
			if q.locks != before[s].locks || q.receive < short[s].receive || q.send < short[s].send {
				return false
			}
		}
		return !g.relay.memory.short.Load()
	}, func() string {
		return fmt.Sprintf("queues are not given back: %+v, while short %+v, before %+v", after, short, before)
	})
}

// look makes every loop measure its flows and act.
func (g *rig) look() {
	g.relay.measureMemory()
	g.turn()
}

// writeSome writes the bytes that a socket takes at once.
func writeSome(t *testing.T, c *net.TCPConn, p []byte) (n int) {
	t.Helper()
	if len(p) == 0 {
		return 0
	}
	control(t, c, func(fd int) {
		var err error
		if n, err = unix.Write(fd, p); err == unix.EAGAIN {
			n = 0
		} else if err != nil {
			t.Fatal(err)
		}
	})
	return n
}

func TestSocketMemory(t *testing.T) {
	m := meminfo{skReceived: 1000, skReceiveBound: 1 << 20, skSendQueued: 200, skForward: 30, skBacklog: 4, skDrops: 99}
	if got := m.held(); got != 1234 {
		t.Errorf("held %d bytes, want 1234", got)
	}
	reserve := int32(-4096) // observed with busy sockets
	m[skForward] = uint32(reserve)
	if got := m.held(); got != 1204 {
		t.Errorf("with a reserve below zero: held %d bytes, want 1204", got)
	}
}

// dialAsOnEthernet connects with segments of 1460 bytes. Those of the loopback
// device have 64 KiB, and no queue is bounded below a few segments.
func dialAsOnEthernet(t *testing.T, to netip.AddrPort) *net.TCPConn {
	t.Helper()
	d := net.Dialer{Timeout: patience, Control: func(_, _ string, raw syscall.RawConn) error {
		return smallSegments(raw)
	}}
	d.SetMultipathTCP(false)
	c, err := d.DialContext(t.Context(), "tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(6 * patience))
	return c.(*net.TCPConn)
}

// ethernet makes a listener accept connections with segments of 1460 bytes.
func ethernet(t *testing.T, l *net.TCPListener) {
	t.Helper()
	raw, err := l.SyscallConn()
	if err == nil {
		err = smallSegments(raw)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func smallSegments(raw syscall.RawConn) (err error) {
	controlErr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_MAXSEG, 1460) })
	return errors.Join(err, controlErr)
}

// tellsLocks reports whether the kernel tells which queues of a socket are fixed.
func tellsLocks(t *testing.T, c syscall.Conn) bool {
	t.Helper()
	raw, err := c.SyscallConn()
	nettest.Must(t, err)
	var optionErr error
	nettest.Must(t, raw.Control(func(fd uintptr) {
		_, optionErr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BUF_LOCK)
	}))
	return !errors.Is(optionErr, unix.ENOPROTOOPT)
}

// sockets returns the bounds of the only flow's queues.
func (g *rig) sockets() (sizes [2]queueSizes) {
	g.t.Helper()
	for _, w := range g.relay.workers {
		w.do(func() {
			w.eachFlow(func(f *flow) {
				for s := client; s <= target; s++ {
					fd := int(f.legs[s].fd)
					m, _ := socketMemory(fd)
					locks, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BUF_LOCK)
					if err != nil {
						g.t.Error(err)
					}
					sizes[s] = queueSizes{send: m[skSendBound], receive: m[skReceiveBound], locks: locks}
				}
			})
		})
	}
	return sizes
}

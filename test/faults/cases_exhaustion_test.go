package faults

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/test/nettest"
	"longhaul/test/tcpscript"
)

// single is the configuration of a relay with one tunnel.
func single(listen, forward, more string) string {
	return fmt.Sprintf("control_socket: SOCKET\ntunnels:\n  - name: main\n    listen: %q\n    forward: %q\n    %s\n", listen, forward, more)
}

// Case 20: descriptors are used up, as they may be without a limit, or by
// something else between two looks. Accepting pauses, running flows live, and
// those who wait are served as soon as descriptors are given back.
func TestCase20OutOfDescriptors(t *testing.T) {
	t.Parallel()
	outOfDescriptors(t, func(*daemon) {})
}

// outOfDescriptors calls paused while the relay waits for descriptors.
func outOfDescriptors(t *testing.T, paused func(*daemon)) {
	t.Helper()
	listen := nettest.FreeAddress(t, "127.0.0.1")
	relay := startDaemon(t, nil, unsupervised, "limits: {descriptors: off}\n"+single(listen, echo(t, "127.0.0.1:0"), "connect_timeout: 10m"))
	dial := tcpscript.DialTo(listen)
	running := []held{hold(t, dial), hold(t, dial)}
	before := relay.status()
	files := uint64(before.Process.Descriptors + 10)
	if err := unix.Prlimit(relay.cmd.Process.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: files}, nil); err != nil {
		t.Fatal(err)
	}

	const clients = 30
	var served atomic.Int64
	release := make(chan struct{})
	failed := make(chan error, clients)
	for range clients {
		go func() {
			h, err := tryHold(context.Background(), dial, patience)
			if err == nil {
				served.Add(1)
				<-release
				err = h.ping(patience)
				h.Close()
			}
			failed <- err
		}()
	}
	relay.expectLog(`msg="accepting is paused: there is no room for more connections" error="too many open files"`)
	for _, h := range running {
		h.alive(t, "while descriptors are used up")
	}
	relay.expectAsleep("while descriptors are used up")
	paused(relay)
	// Two descriptors each; a few more than ten are free, since those of a pipe
	// and of the question itself were counted.
	nettest.Eventually(t, patience, func() bool { return served.Load() > 0 }, func() string { return "no client is served with 10 more descriptors" })
	if n := served.Load(); n > 8 {
		t.Errorf("%d clients were served with 10 more descriptors", n)
	}
	if n := relay.log.count("accepting is paused"); n != 1 {
		t.Errorf("the log has %d lines about the pause, want 1", n)
	}
	close(release)
	for range clients {
		if err := <-failed; err != nil {
			t.Error("a client that waited: ", err)
		}
	}
	relay.expectLog(`msg="accepting goes on"`)
	for _, h := range running {
		h.release(t)
	}
	nettest.Eventually(t, patience, func() bool { return relay.status().FlowsNow == 0 }, func() string { return "flows are left" })
	if s := relay.status(); s.AcceptPaused || s.tunnel("main").Errors > 0 || s.tunnel("main").FlowsTotal != clients+2 {
		t.Errorf("after the pause: accepting paused %v, %+v; want %d flows in all, and no errors", s.AcceptPaused, s.tunnel("main"), clients+2)
	}
}

// Case 21: the kernel has no buffers or no memory for a further socket. Only
// new flows are shed, and only once their time to connect is over.
//
// These errors cannot be had from a healthy kernel without harm to others (a
// memory limit of a control group kills instead, and tcp_mem is the whole
// machine's), so they are put in between the program and the kernel: see
// supervisor.
func TestCase21NoBuffers(t *testing.T) {
	t.Parallel()
	for _, errno := range []unix.Errno{unix.ENOBUFS, unix.ENOMEM} {
		for _, tt := range []struct {
			name  string
			call  uintptr
			waits bool // new clients wait; else they are reset
		}{
			{"socket", unix.SYS_SOCKET, false},
			{"connect", unix.SYS_CONNECT, false},
			{"accept", unix.SYS_ACCEPT4, true},
			{"epoll_ctl", unix.SYS_EPOLL_CTL, false},
		} {
			t.Run(tt.name+" "+unix.ErrnoName(errno), func(t *testing.T) {
				t.Parallel()
				listen := nettest.FreeAddress(t, "127.0.0.1")
				relay := startDaemon(t, nil, errorsSupervised, single(listen, echo(t, "127.0.0.1:0"), "connect_timeout: 2s"))
				dial := tcpscript.DialTo(listen)
				running := hold(t, dial)
				relay.supervisor.fail(tt.call, errno)
				waited := make(chan error, 1)
				if tt.waits {
					go func() {
						h, err := tryHold(context.Background(), dial, patience)
						if err == nil {
							h.Close()
						}
						waited <- err
					}()
					relay.expectLog(`msg="accepting is paused`)
				} else {
					expectReset(t, dial, patience)
					relay.expectLog(`level=WARN msg=flow .*end=no-resources ended_by=relay`)
				}
				if relay.supervisor.failures(tt.call) == 0 {
					t.Error("the call never failed")
				}
				running.alive(t, "meanwhile")
				relay.supervisor.fail(tt.call, 0)
				if tt.waits {
					if err := <-waited; err != nil {
						t.Error("a client that waited: ", err)
					}
				}
				hold(t, dial).release(t)
				running.release(t)
			})
		}
	}
}

// Case 21 for the memory that moving bytes takes: where there is none for
// pipes or for splicing, running flows copy.
func TestCase21NoMemoryToSplice(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		call  uintptr
		errno unix.Errno
	}{
		{"pipe2 ENFILE", unix.SYS_PIPE2, unix.ENFILE},
		{"pipe2 ENOMEM", unix.SYS_PIPE2, unix.ENOMEM},
		{"splice ENOMEM", unix.SYS_SPLICE, unix.ENOMEM},
		{"splice ENOBUFS", unix.SYS_SPLICE, unix.ENOBUFS},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			const size = 64 << 20
			listen := nettest.FreeAddress(t, "127.0.0.1")
			relay := startDaemon(t, nil, errorsSupervised, single(listen, echo(t, "127.0.0.1:0"), ""))
			h := hold(t, tcpscript.DialTo(listen))
			h.SetDeadline(time.Now().Add(2 * patience))
			sent, got := sha256.New(), sha256.New()
			var sending sync.WaitGroup
			sending.Go(func() {
				source := rand.NewChaCha8([32]byte{21})
				if _, err := io.CopyN(io.MultiWriter(h, sent), source, size); err != nil {
					t.Error(err)
				}
				h.CloseWrite()
			})
			// With bytes in the pipes.
			if _, err := io.CopyN(got, h, size/4); err != nil {
				t.Fatal(err)
			}
			relay.supervisor.fail(tt.call, tt.errno)
			n, err := io.Copy(got, h)
			sending.Wait()
			if err != nil || size/4+n != size || !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
				t.Errorf("%d of %d bytes came back, or others: %v", size/4+n, size, err)
			}
			if tt.call == unix.SYS_SPLICE && relay.supervisor.failures(tt.call) == 0 {
				t.Error("the call never failed")
			}
		})
	}
}

// Case 21, provoked for real: the pages of pipes that an ordinary user may have
// are used up, so that every new pipe has two. Flows copy, and go back to
// splicing when there are pages again.
func TestCase21PipePagesUsedUp(t *testing.T) {
	nettest.RequireRoot(t) // to be somebody else
	free := usePipePages(t)
	listen := nettest.FreeAddress(t, "127.0.0.1")
	relay := startDaemon(t, nil, ordinaryUser, single(listen, echo(t, "127.0.0.1:0"), ""))
	bulk := func() {
		t.Helper()
		const size = 32 << 20
		h := hold(t, tcpscript.DialTo(listen))
		h.SetDeadline(time.Now().Add(2 * patience))
		sent, got := sha256.New(), sha256.New()
		var sending sync.WaitGroup
		sending.Go(func() {
			if _, err := io.CopyN(io.MultiWriter(h, sent), rand.NewChaCha8([32]byte{21}), size); err != nil {
				t.Error(err)
			}
			h.CloseWrite()
		})
		n, err := io.Copy(got, h)
		sending.Wait()
		if err != nil || n != size || !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
			t.Errorf("%d of %d bytes came back, or others: %v", n, size, err)
		}
	}
	bulk()
	if n := relay.status().PipesOpen; n != 0 {
		t.Errorf("%d pipes are open; the pages were not used up", n)
	}
	free()
	nettest.Eventually(t, patience, func() bool {
		bulk()
		return relay.status().PipesOpen > 0
	}, func() string { return "the relay does not go back to splicing" })
}

// usePipePages takes all pages of pipes that nobody may have, until the
// returned function is called.
func usePipePages(t *testing.T) (free func()) {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/fs/pipe-user-pages-soft")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if pages == 0 {
		t.Skip("fs.pipe-user-pages-soft is 0: no bound")
	}
	var fds []int
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread, which becomes nobody, ends with the goroutine
		done <- func() error {
			// Go's own Setuid would take every thread along.
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
				return errno
			}
			for taken := 0; taken < pages; {
				var p [2]int
				if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
					return err
				}
				fds = append(fds, p[0], p[1])
				size, err := unix.FcntlInt(uintptr(p[0]), unix.F_SETPIPE_SZ, 1<<20)
				if err != nil { // there are not so many left
					if size, err = unix.FcntlInt(uintptr(p[0]), unix.F_GETPIPE_SZ, 0); err != nil {
						return err
					}
				}
				taken += size / os.Getpagesize()
			}
			return nil
		}()
	}()
	err = <-done
	free = sync.OnceFunc(func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	})
	t.Cleanup(free)
	if err != nil {
		t.Fatal("use up the pages of pipes: ", err)
	}
	return free
}

// Case 22: the memory limit is reached. Windows shrink, accepting stops, and
// not a byte that was accepted is dropped.
func TestCase22MemoryLimit(t *testing.T) {
	t.Parallel()
	const limit, flows, each = 8 << 20, 24, 2 << 20
	p := newPath(t)
	relay := p.relay(fmt.Sprintf("control_socket: SOCKET\nmemory_limit: %d\nstall_timeout: off\ntunnels:\n  - {name: main, listen: %s:%d, forward: %s:%d}\n",
		limit, relayNear, listenPort, targetAddress, targetPort))
	resident := relay.status().Process.ResidentBytes
	listener := p.listen(targetPort)
	dial := p.dialTo(listenPort)

	data := make([]byte, each)
	rand.NewChaCha8([32]byte{22}).Read(data)
	want := sha256.Sum256(data)
	var written atomic.Int64
	var senders sync.WaitGroup
	defer senders.Wait()
	var targets []*net.TCPConn
	// A sender writes with each tick, and after a look at the relay comes the next: they
	// are no faster than the relay, on whatever machine.
	var ticks []chan struct{}
	tick := func() {
		for _, c := range ticks {
			select {
			case c <- struct{}{}:
			default: // it is held up
			}
		}
	}
	freely := sync.OnceFunc(func() {
		for _, c := range ticks {
			close(c)
		}
	})
	defer freely()
	for range flows {
		c, err := dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		targets = append(targets, accept(t, listener))
		c.SetDeadline(time.Now().Add(2 * patience))
		_ = c.(*net.TCPConn).SetWriteBuffer(16 << 10)
		ticked := make(chan struct{}, 1)
		ticks = append(ticks, ticked)
		senders.Go(func() {
			for rest := data; len(rest) > 0; <-ticked {
				n, err := c.Write(rest[:min(len(rest), 16<<10)])
				if err != nil {
					t.Error(err)
					return
				}
				written.Add(int64(n))
				rest = rest[n:]
			}
			c.(*net.TCPConn).CloseWrite()
		})
	}
	var most int64
	const rounds = 100 // in which no sender moves, of one that is paused
	last, still := int64(-1), 0
	var s daemonStatus
	nettest.Repeatedly(t, patience, func() bool {
		s = relay.status()
		most = max(most, s.Memory.UsedBytes)
		if now := written.Load(); now != last || !s.Memory.Short {
			last, still = now, 0
		}
		still++
		tick()
		return still > rounds
	}, func() string {
		return fmt.Sprintf("the senders, which wrote %d of %d bytes, do not pause for want of memory: %+v", last, int64(flows*each), s.Memory)
	})
	t.Logf("%.1f of %d MiB, at most %.1f; the clients wrote %.1f of %d MiB; resident memory %+.1f MiB",
		float64(s.Memory.UsedBytes)/(1<<20), limit>>20, float64(most)/(1<<20), float64(last)/(1<<20), flows*each>>20,
		float64(s.Process.ResidentBytes-resident)/(1<<20))
	if most > limit*5/4 || last >= flows*each {
		t.Errorf("the relay held up to %d bytes with a limit of %d, and the clients wrote %d: %+v", most, limit, last, s.Memory)
	}
	relay.expectLog(`msg="memory is short: senders are slowed down"`)

	// A limit below what is held: the source that holds it gets no new flow.
	relay.reload(fmt.Sprintf("control_socket: SOCKET\nmemory_limit: 4MiB\nstall_timeout: off\ntunnels:\n  - {name: main, listen: %s:%d, forward: %s:%d}\n",
		relayNear, listenPort, targetAddress, targetPort))
	nettest.Eventually(t, patience, func() bool { return relay.status().Memory.LimitBytes == 4<<20 },
		func() string { return "the reload has no effect" })
	if h, err := tryHold(t.Context(), dial, patience); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		h.Close()
		t.Errorf("a source that holds all there is gets a new flow: %v", err)
	}
	relay.expectLog(`reason=shed error="the source's flows hold \d+ of 4194304 bytes \(memory_limit\); what is left is for others"`)

	freely()
	var readers sync.WaitGroup
	for i, c := range targets {
		readers.Go(func() {
			c.SetDeadline(time.Now().Add(2 * patience))
			hash := sha256.New()
			n, err := io.Copy(hash, c)
			if err != nil || n != each || !bytes.Equal(hash.Sum(nil), want[:]) {
				t.Errorf("flow %d: %d of %d bytes, or others: %v", i, n, int64(each), err)
			}
			c.CloseWrite()
		})
	}
	readers.Wait()
	nettest.Eventually(t, patience, func() bool { s := relay.status(); return !s.Memory.Short && !s.AcceptPaused },
		func() string { return fmt.Sprintf("memory is still short: %+v", relay.status().Memory) })
}

// Case 23: the local ports towards a target are used up. That has an error of
// its own, only further flows to that very target have it, and a port is taken
// for each target anew: sockets are not bound before they connect.
func TestCase23OutOfLocalPorts(t *testing.T) {
	t.Parallel()
	const ports = 16
	p := newPath(t)
	if err := p.Host("relay").Sysctl("net.ipv4.ip_local_port_range", "40000 40015"); err != nil {
		t.Fatal(err)
	}
	relay := p.relay(fmt.Sprintf(`control_socket: SOCKET
tunnels:
  - {name: first, listen: %s:6000, forward: %s:5000}
  - {name: second, listen: %[1]s:6001, forward: %s:5001}
`, relayNear, targetAddress, targetAddress))
	for _, port := range []uint16{5000, 5001} {
		serveEcho(t, p.listen(port))
	}
	first, second := p.dialTo(6000), p.dialTo(6001)
	var running []held
	for range ports {
		running = append(running, hold(t, first))
	}
	expectReset(t, first, patience)
	relay.expectLog(`level=WARN msg=flow tunnel=first .*end=no-local-port ended_by=relay error="connect to 10.2.0.2:5000: cannot assign requested address"`)
	if n := relay.status().tunnel("first").Errors; n != 1 {
		t.Errorf("%d errors counted, want 1", n)
	}
	for range ports {
		running = append(running, hold(t, second))
	}
	for _, h := range running {
		h.alive(t, "with all ports in use")
	}
	// A port that is given back can be used; the side that ends first keeps it
	// for a while, so the target does.
	running[0].SetLinger(0)
	running[0].Close()
	nettest.Eventually(t, patience, func() bool {
		h, err := tryHold(t.Context(), first, patience)
		if err != nil {
			return false
		}
		h.Close()
		return true
	}, func() string { return "a free port is not used\n" + relay.log.String() })
}

// Case 24: a tunnel has all the flows it may. Further ones are reset and
// counted, and there is room again when one ends.
func TestCase24FlowLimit(t *testing.T) {
	t.Parallel()
	listen := nettest.FreeAddress(t, "127.0.0.1")
	relay := startDaemon(t, nil, unsupervised, single(listen, echo(t, "127.0.0.1:0"), "max_flows: 2"))
	dial := tcpscript.DialTo(listen)
	a, b := hold(t, dial), hold(t, dial)
	for range 3 {
		expectReset(t, dial, patience)
	}
	relay.expectLog(`level=WARN msg="connection refused" tunnel=main .*reason=flow-limit`)
	if s := relay.status().tunnel("main"); s.Limited != 3 || s.FlowsNow != 2 || s.FlowsTotal != 2 {
		t.Errorf("the tunnel has %+v; want 3 limited, 2 flows", s)
	}
	a.alive(t, "at the limit")
	a.release(t)
	nettest.Eventually(t, patience, func() bool { return relay.status().FlowsNow == 1 }, func() string { return "the flow is still there" })
	hold(t, dial).release(t)
	b.release(t)
}

// listen opens a socket on the target's host.
func (p *path) listen(port uint16) *net.TCPListener {
	p.t.Helper()
	var l net.Listener
	err := p.Host("target").Do(func() (err error) {
		l, err = tcpscript.ListenOn(netip.AddrPortFrom(targetAddress, port).String())(p.t.Context())
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { l.Close() })
	return l.(*net.TCPListener)
}

// dialTo returns a function that connects from the client's host to a port of
// the relay.
func (p *path) dialTo(port uint16) dialFunc {
	return func(ctx context.Context) (net.Conn, error) { return p.dial(ctx, netip.AddrPortFrom(relayNear, port)) }
}

func accept(t *testing.T, l *net.TCPListener) *net.TCPConn {
	t.Helper()
	l.SetDeadline(time.Now().Add(patience))
	c, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

//go:build timed

package faults

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
)

// TestTimedHoarders measures what 1000 clients from 10 addresses that ask for
// much, read nothing, and come again when they are reset, do to one from
// another address that asks for little, in the same tunnel and in another. The
// same machine is clients, target and relay: how much of a delay is the relay's
// is known from who asks the target without it at the same time.
func TestTimedHoarders(t *testing.T) {
	const (
		hoarders, sources = 1000, 10
		within            = 100 * time.Millisecond
		lasts             = 20 * time.Second
	)
	l, err := listenAsEthernet("127.0.0.1:0")(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tcpserver.Serve(l, func(c net.Conn) {
		first := make([]byte, 1)
		if _, err := io.ReadFull(c, first); err != nil {
			return
		}
		if first[0] == '?' {
			_, _ = c.Write([]byte("!"))
			return
		}
		for page := make([]byte, 64<<10); ; {
			if _, err := c.Write(page); err != nil {
				return
			}
		}
	}))
	for _, limit := range []string{"16MiB", "64MiB", "256MiB"} {
		t.Run(limit, func(t *testing.T) {
			var tunnels [2]string
			for i := range tunnels {
				tunnels[i] = nettest.FreeAddress(t, "127.0.0.1")
			}
			relay := startDaemon(t, nil, unsupervised, fmt.Sprintf("control_socket: SOCKET\nmemory_limit: %s\ntunnels:\n  - {name: a, listen: %q, forward: %q}\n  - {name: b, listen: %q, forward: %q}\n",
				limit, tunnels[0], l.Addr(), tunnels[1], l.Addr()))
			// Without a deadline, which a dial would take for its own.
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			time.AfterFunc(lasts, stop)
			var resets atomic.Int64
			var clients sync.WaitGroup
			for n := range hoarders {
				clients.Go(func() {
					d := net.Dialer{Control: ethernet, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(n%sources))}}
					d.SetMultipathTCP(false)
					// At once they would measure how long two CPUs take for 1000
					// connections, of which they make half the work.
					pause(ctx, time.Duration(n)*2*time.Millisecond)
					for ctx.Err() == nil {
						c, err := d.DialContext(ctx, "tcp", tunnels[0])
						if err == nil {
							_, _ = c.Write([]byte("more"))
							hungUp(ctx, c.(*net.TCPConn))
							c.Close()
							resets.Add(1)
						}
						pause(ctx, 200*time.Millisecond)
					}
				})
			}
			asked := []struct {
				name, address string
				slowest       time.Duration
			}{{name: "no relay", address: l.Addr().String()}, {name: "same tunnel", address: tunnels[0]}, {name: "other tunnel", address: tunnels[1]}}
			for i := range asked {
				a := &asked[i]
				clients.Go(func() {
					d := net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 2, 1)}}
					var took []time.Duration
					for ctx.Err() == nil {
						began := time.Now()
						if err := ask(ctx, d, a.address); err != nil && ctx.Err() == nil {
							t.Errorf("%s: after %d answers: %v", a.name, len(took), err)
							return
						}
						took = append(took, time.Since(began))
						pause(ctx, 10*time.Millisecond)
					}
					slices.Sort(took)
					n := len(took)
					t.Logf("%s: %d answers, median %v, 99 %% within %v, the slowest %v", a.name, n, took[n/2], took[n*99/100], took[n-1])
					a.slowest = took[n-1]
				})
			}
			clients.Wait()
			for _, a := range asked[1:] {
				if most := asked[0].slowest + within; a.slowest > most {
					t.Errorf("%s: an answer took %v, want at most %v", a.name, a.slowest, most)
				}
			}
			s := relay.status()
			t.Logf("%d connections of hoarders ended; memory at the end %+v", resets.Load(), s.Memory)
		})
	}
}

// ask connects, asks, and has the answer.
func ask(ctx context.Context, d net.Dialer, to string) error {
	c, err := d.DialContext(ctx, "tcp", to)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := c.Write([]byte("?")); err != nil {
		return err
	}
	answer := make([]byte, 1)
	_, err = io.ReadFull(c, answer)
	return err
}

// hungUp waits, without reading, until a connection is reset or the context
// ends.
func hungUp(ctx context.Context, c *net.TCPConn) {
	raw, err := c.SyscallConn()
	for err == nil && ctx.Err() == nil {
		var gone int
		err = raw.Control(func(fd uintptr) {
			info, infoErr := unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO)
			if infoErr != nil || info.State == unix.BPF_TCP_CLOSE {
				gone = 1
			}
		})
		if gone != 0 {
			return
		}
		pause(ctx, 200*time.Millisecond)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

package relay

import (
	"bytes"
	"fmt"
	"net"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/socket"
	"longhaul/test/nettest"
)

// sendUrgent sends the last byte as urgent data.
func sendUrgent(c *net.TCPConn, p []byte) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		failed = unix.Sendto(int(fd), p, unix.MSG_OOB, nil)
		return failed != unix.EAGAIN
	})
	if err != nil {
		return err
	}
	return failed
}

// eachWay runs a test for the bytes of the client and for those of the target.
func eachWay(t *testing.T, test func(t *testing.T, g *rig, from, to *net.TCPConn)) {
	for s, name := range []string{up: "up", down: "down"} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, nil)
			from, to := g.pair()
			if side(s) == down {
				from, to = to, from
			}
			test(t, g, from, to)
		})
	}
}

// TestUrgentThenEnd: splice stops at the urgent mark, and after the end it does
// not report the bytes behind the mark. No byte may be lost, for readers with
// urgent data in line or out of line, as on a direct connection. It failed at
// 1818be3.
func TestUrgentThenEnd(t *testing.T) {
	nettest.CheckLeaks(t)
	before := []int{0, 1, 1000, smallRead - 1, smallRead, 300_000}
	after := []int{0, 1, 100_000, 3_000_000}
	for _, inline := range []bool{true, false} {
		for _, b := range before {
			for _, a := range after {
				t.Run(fmt.Sprintf("%t/%d/%d", inline, b, a), func(t *testing.T) {
					eachWay(t, func(t *testing.T, g *rig, from, to *net.TCPConn) {
						data := pattern(b + 1 + a)
						want := data
						if inline {
							control(t, to, socket.KeepUrgentInLine)
						} else {
							want = slices.Concat(data[:b], data[b+1:])
						}
						sent := make(chan error, 1)
						go func() {
							err := sendUrgent(from, data[:b+1])
							if err == nil && a > 0 {
								_, err = from.Write(data[b+1:])
							}
							if err == nil {
								err = from.CloseWrite()
							}
							sent <- err
						}()
						read := <-readAll(to)
						if err := <-sent; err != nil {
							t.Fatal(err)
						}
						if read.err != nil || !bytes.Equal(read.got, want) {
							t.Fatalf("read %d bytes of %d, %v; the same: %t", len(read.got), len(want), read.err, bytes.Equal(read.got, want))
						}
					})
				})
			}
		}
	}
}

// TestUrgencyIsCarried: the peer can read the urgent byte out of line, as
// Oracle Net does with its breaks, and again after ordinary bytes. It failed at
// 1818be3.
func TestUrgencyIsCarried(t *testing.T) {
	nettest.CheckLeaks(t)
	eachWay(t, func(t *testing.T, g *rig, from, to *net.TCPConn) {
		for round := range 3 {
			plain, urgent := pattern(1000), []byte{byte('a' + round)}
			write(t, from, plain)
			if err := sendUrgent(from, urgent); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 1)
			nettest.Eventually(t, patience, func() (came bool) {
				control(t, to, func(fd int) {
					n, _, err := unix.Recvfrom(fd, got, unix.MSG_OOB) // EINVAL: not announced
					came = n == 1 && err == nil
				})
				return came
			}, func() string { return "the urgent byte did not arrive" })
			if !bytes.Equal(got, urgent) {
				t.Fatalf("urgent byte %q, want %q", got, urgent)
			}
			write(t, from, plain)
			expect(t, to, plain)
			expect(t, to, plain)
		}
	})
}

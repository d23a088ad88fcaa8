package pair

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/descriptor"
	"longhaul/test/nettest"
)

// TestShutAfterReset holds what the end of a stream to a peer that has reset is: nothing that the peer
// lacks if it has ended its own stream and has every byte, and a reset in other cases.
func TestShutAfterReset(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		dialed, ended bool
		bytes         int
		read          bool // the peer reads them
		want          error
	}{
		{"dialed, every byte and both ends", true, true, 1000, true, nil},
		{"accepted, every byte and both ends", false, true, 1000, true, nil},
		{"every byte, but the peer has not ended", true, false, 1000, true, unix.ECONNRESET},
		{"bytes are lacking", true, true, 8 << 20, false, unix.ECONNRESET},
		{"bytes are lacking, accepted", false, true, 8 << 20, false, unix.ECONNRESET},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			nettest.Must(t, err)
			defer l.Close()
			own, err := net.Dial("tcp", l.Addr().String())
			nettest.Must(t, err)
			peer, err := l.Accept()
			nettest.Must(t, err)
			if !c.dialed {
				own, peer = peer, own
			}
			fd, err := descriptor.Duplicate(own.(*net.TCPConn))
			nettest.Must(t, err)
			own.Close()
			defer unix.Close(fd)
			nettest.Must(t, unix.SetNonblock(fd, true))
			left := make([]byte, c.bytes)
			for len(left) > 0 {
				n, err := send(fd, left)
				if err == unix.EAGAIN {
					break
				}
				nettest.Must(t, err)
				left = left[n:]
			}
			if c.read {
				_, err := io.ReadFull(peer, make([]byte, c.bytes))
				nettest.Must(t, err)
			}
			leg := &leg{num: int32(fd)}
			if c.read {
				nettest.Eventually(t, time.Minute, func() bool { return leg.delivered(c.dialed) }, func() string { return "the bytes are not acknowledged" })
			}
			if c.ended {
				nettest.Must(t, peer.(*net.TCPConn).CloseWrite())
			}
			nettest.Must(t, peer.(*net.TCPConn).SetLinger(0))
			peer.Close()
			nettest.Eventually(t, time.Minute, leg.isClosed, func() string { return "the connection was not reset" })
			if err := leg.shut(c.ended, c.dialed); !errors.Is(err, c.want) {
				t.Errorf("shut: %v, want %v", err, c.want)
			}
		})
	}
}

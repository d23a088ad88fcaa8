package measure

import (
	"fmt"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"longhaul/test/nettest"
)

// TestLowWater: a receiver is woken for more once its buffer has room for many
// times that, and a buffer that was asked for stays as it is.
func TestLowWater(t *testing.T) {
	t.Parallel()
	nettest.RequireRoot(t) // to ask for more than net.core.rmem_max
	for _, test := range []struct {
		name   string
		buffer int // bytes, as SO_RCVBUF reads; half of it is asked for
		want   int // bytes
	}{
		{"ample", 2 * amplyBuffered, maxLowWater},
		{"small", amplyBuffered / 2, minLowWater},
	} {
		t.Run(test.name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			must(t, err)
			defer l.Close()
			conn, err := net.Dial("tcp", l.Addr().String())
			must(t, err)
			peer, err := l.Accept()
			must(t, err)
			defer peer.Close()
			s, err := newStream(1, false, conn, Parameters{Length: 128 << 10, Time: 1})
			must(t, err)
			option := func(name int) (value int) {
				must(t, s.raw.Control(func(fd uintptr) { value, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, name) }))
				must(t, err)
				return value
			}
			must(t, s.raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, test.buffer/2)
			}))
			must(t, err)
			if got := option(unix.SO_RCVBUF); got != test.buffer {
				t.Fatalf("a receive buffer of %d bytes, want %d", got, test.buffer)
			}
			ended := make(chan error, 1)
			go func() { ended <- s.run() }()
			const amount = 2*lookAgain + 100 // its end is too little to wake for
			_, err = peer.Write(make([]byte, amount))
			must(t, err)
			nettest.Eventually(t, patience, func() bool { return s.bytes.Load() >= amount-maxLowWater },
				func() string { return fmt.Sprintf("%d bytes were read of %d", s.bytes.Load(), amount) })
			if got := option(unix.SO_RCVLOWAT); got != test.want {
				t.Errorf("woken for %d bytes, want %d", got, test.want)
			}
			if got := option(unix.SO_RCVBUF); got != test.buffer {
				t.Errorf("the receive buffer has become %d bytes of %d", got, test.buffer)
			}
			s.stop()
			must(t, <-ended)
			if s.bytes.Load() != amount {
				t.Errorf("%d bytes were read of %d", s.bytes.Load(), amount)
			}
			conn.Close()
		})
	}
}

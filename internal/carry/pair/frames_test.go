package pair_test

import (
	"io"
	"math/rand/v2"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/pair"
	"longhaul/test/nettest"
)

// halves is a box that passes on what comes in two pieces.
type halves struct{}

func (halves) before(_ *hop, w io.Writer, _ bool) io.Writer { return halved{w} }

type halved struct{ io.Writer }

func (h halved) Write(b []byte) (n int, err error) {
	if n, err = h.Writer.Write(b[:len(b)/2]); err == nil {
		var more int
		more, err = h.Writer.Write(b[len(b)/2:])
		n += more
	}
	return n, err
}

// TestFramesArrive holds that a relay that waits for many bytes of a fast lane passes on each frame
// without any behind it, on a socket with a small buffer too, and one that comes in pieces.
func TestFramesArrive(t *testing.T) {
	t.Parallel()
	for _, m := range modes {
		if m.older || m.noResume || m.lanes > 1 {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t, m.in(), func(s *stand, _ *pair.Options, l *pair.LinkOptions) {
				s.path.box = halves{}
				l.Established = func(fd int) { _ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 32<<10) }
			})
			s.serve(func(c *net.TCPConn) {
				random, buffer := rand.New(rand.NewPCG(1, 2)), make([]byte, 1)
				for i := range 100 {
					if _, err := io.ReadFull(c, buffer); err != nil {
						return
					}
					_, _ = c.Write(pattern(frameSize(random, i), byte(i)))
				}
			})
			c := s.dial()
			defer c.Close()
			random := rand.New(rand.NewPCG(1, 2))
			for i := range 100 {
				_, err := c.Write([]byte{1})
				nettest.Must(t, err)
				got := make([]byte, frameSize(random, i))
				if n, err := io.ReadFull(c, got); err != nil {
					t.Fatalf("message %d: %d bytes of %d, %v: %s", i, n, len(got), err, s.dump())
				}
				checkEqual(t, got, pattern(len(got), byte(i)))
			}
		})
	}
}

// frameSize is the size of a message: of one that fills many reads, or of one that fills none.
func frameSize(random *rand.Rand, i int) int {
	if i%3 == 0 {
		return 1 + random.IntN(2000)
	}
	return 1 + random.IntN(128<<10)
}

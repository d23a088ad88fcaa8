package relay

import (
	"net"
	"testing"

	"longhaul/internal/sys/socket"
	"longhaul/test/nettest"
)

// control calls do with a connection's descriptor.
func control(t testing.TB, c *net.TCPConn, do func(fd int)) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { do(int(fd)) })
	}
	if err != nil {
		t.Fatal(err)
	}
}

// awaitSent waits until the peer's kernel has acknowledged every byte, so that
// a reset sent next overtakes nothing.
func awaitSent(t testing.TB, c *net.TCPConn) {
	t.Helper()
	left := 0
	nettest.Eventually(t, 6*patience, func() bool {
		control(t, c, func(fd int) { left = socket.Unacknowledged(fd) })
		return left == 0
	}, func() string { return "the peer does not acknowledge" })
}

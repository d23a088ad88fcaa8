package relay

import (
	"errors"
	"net"
	"time"
)

// awaitSent waits until the peer's kernel has acknowledged every byte, so that
// a reset sent next overtakes nothing.
func awaitSent(c *net.TCPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	deadline := time.Now().Add(6 * patience)
	for {
		left := 0
		if err := raw.Control(func(fd uintptr) { left = unacknowledged(int(fd)) }); err != nil {
			return err
		}
		if left == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.New("the peer does not acknowledge")
		}
		time.Sleep(200 * time.Microsecond)
	}
}

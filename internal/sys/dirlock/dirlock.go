// Package dirlock gives one process at a time the right to change the files of a
// directory.
package dirlock

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// patience bounds the wait for another process, which holds the lock for milliseconds.
const patience = 5 * time.Second

// Lock locks an existing directory until unlock. It writes nothing. The kernel releases
// the lock when the process ends.
func Lock(dir string) (unlock func(), err error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(patience); ; {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { unix.Close(fd) }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Now().After(deadline) {
			unix.Close(fd)
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, fmt.Errorf("lock %s: another process has held it for 5 s (fuser %[1]s names it)", dir)
			}
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

package process

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
)

// Handle follows one process. It is not mistaken for a later one with the same PID.
type Handle struct{ fd int }

// Open returns a handle of a process. The error is [ErrNoProcess] if it has ended.
func Open(pid int) (Handle, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		err = ErrNoProcess
	}
	return Handle{fd}, err
}

// Wait returns when the process or ctx has ended, with the cause of ctx.
func (h Handle) Wait(ctx context.Context) error {
	for ctx.Err() == nil {
		poll := []unix.PollFd{{Fd: int32(h.fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, 100)
		if n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return nil
		}
	}
	return context.Cause(ctx)
}

// Close releases the handle.
func (h Handle) Close() { unix.Close(h.fd) }

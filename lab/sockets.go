package lab

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Sockets are options of a connection's two sockets. Zero options are not set.
type Sockets struct {
	PacingBps         int64  // maximum rate of the sender, bits per second
	WindowBytes       int    // maximum that the receiver advertises
	BufferBytes       int    // of both, overhead included
	CongestionControl string // of the sender
}

// Sender sets the options of a sending socket.
func (o Sockets) Sender(fd int) error {
	var errs []error
	if o.PacingBps > 0 {
		errs = append(errs, unix.SetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, uint64(o.PacingBps/8)))
	}
	if o.BufferBytes > 0 {
		errs = append(errs, setBuffer(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, o.BufferBytes))
	}
	if o.CongestionControl != "" {
		err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, o.CongestionControl)
		if err != nil {
			err = fmt.Errorf("use congestion control %s: %w", o.CongestionControl, err)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Receiver sets the options of a listening socket. A buffer of fixed size keeps
// autotuning from lifting the bound. It leaves room for the overhead of small
// packets.
func (o Sockets) Receiver(fd int) error {
	if o.BufferBytes > 0 {
		return setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, o.BufferBytes)
	}
	if o.WindowBytes == 0 {
		return nil
	}
	err := setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, 8*o.WindowBytes)
	return errors.Join(err, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP, o.WindowBytes))
}

// setBuffer sets a buffer's size, by the usual option without privilege over the machine.
func setBuffer(fd, force, usual, bytes int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, bytes); err == nil {
		return nil
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, usual, bytes)
}

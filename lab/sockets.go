package lab

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Sockets are options of a connection's two sockets. Zero options are not set.
type Sockets struct {
	PacingBps   int64 // maximum rate of the sender, bits per second
	WindowBytes int   // maximum that the receiver advertises
}

// Sender sets the options of a sending socket.
func (o Sockets) Sender(fd int) error {
	if o.PacingBps == 0 {
		return nil
	}
	return unix.SetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, uint64(o.PacingBps/8))
}

// Receiver sets the options of a listening socket. A buffer of fixed size keeps
// autotuning from lifting the bound. It leaves room for the overhead of small
// packets.
func (o Sockets) Receiver(fd int) error {
	if o.WindowBytes == 0 {
		return nil
	}
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8*o.WindowBytes)
	if err != nil { // no privilege over the machine
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 8*o.WindowBytes)
	}
	return errors.Join(err, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP, o.WindowBytes))
}

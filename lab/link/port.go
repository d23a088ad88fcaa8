package link

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Port is the place at which packets leave a host for the link and enter it. It
// is a network device of the host, held by the emulator. OpenTUN and OpenVeth
// make one.
type Port interface {
	// Name is the name of the network device in the host's namespace.
	Name() string
	// Index is the index of the network device in the host's namespace.
	Index() int
	// Close removes the device. A Link closes its own ports.
	Close() error

	// descriptor is polled for packets to receive.
	descriptor() int
	// receive reads one packet into the buffer, which has receiveRoom bytes. It
	// uses n bytes of it; the IP packet begins after skip. The error is
	// errAgain if no packet waits.
	receive(buffer []byte) (h vnetHeader, skip, n int, err error)
	// send passes the IP packet head+body to the host's kernel. Only one thread
	// may send at a time; another may receive meanwhile.
	send(h vnetHeader, head, body []byte) error
	// drops counts the packets lost between the kernel and the emulator since
	// the port was opened.
	drops() uint64
}

// receiveRoom has space for a vnetHeader, a link-layer header and the largest
// IP packet.
const receiveRoom = 65535 + 64

var errAgain = errors.New("no packet waits")

// frameWriter sends packets through a descriptor with a prefix: a vnetHeader
// and, on Ethernet, the link-layer header.
type frameWriter struct {
	fd     int
	prefix []byte // precedes the copy of head
	frame  []byte // memory of prefix and head
	iov    [2]unix.Iovec
}

func newFrameWriter(fd, prefixLen int) *frameWriter {
	frame := make([]byte, prefixLen+maxHeaderLen)
	return &frameWriter{fd: fd, frame: frame, prefix: frame[:prefixLen]}
}

func (w *frameWriter) send(head, body []byte) error {
	start := w.frame[:len(w.prefix)+copy(w.frame[len(w.prefix):], head)]
	w.iov[0].Base = &start[0]
	w.iov[0].SetLen(len(start))
	w.iov[1].Base = &body[0]
	w.iov[1].SetLen(len(body))
	for {
		err := writev(w.fd, &w.iov)
		switch err {
		case unix.EINTR:
		case unix.EAGAIN: // the send buffer is full and drains by itself
			poll := []unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLOUT}}
			if n, err := unix.Poll(poll, sendTimeoutMs); n == 0 && err == nil {
				return unix.EAGAIN
			}
		default:
			return err
		}
	}
}

// sendTimeoutMs bounds the time that a full send buffer may block a direction.
const sendTimeoutMs = 20

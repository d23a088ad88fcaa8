package link

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Port is where packets leave a host for the link, and enter it again: a
// network device of the host, as the emulator holds it. OpenTUN and OpenVeth
// make one.
type Port interface {
	// Name is that of the network device in the host's namespace.
	Name() string
	// Index is that of the network device in the host's namespace.
	Index() int
	// Close removes the device. A Link closes its ports itself.
	Close() error

	// descriptor is polled for packets to receive.
	descriptor() int
	// receive reads one packet into the buffer, which has receiveRoom bytes.
	// It uses n bytes of it, of which the IP packet begins after skip. The
	// error is errAgain if no packet waits.
	receive(buffer []byte) (h vnetHeader, skip, n int, err error)
	// send hands the IP packet head+body to the host's kernel. Several
	// threads must not send at once; one may receive meanwhile.
	send(h vnetHeader, head, body []byte) error
	// drops is how many packets were lost between the kernel and the
	// emulator since the port was opened.
	drops() uint64
}

// receiveRoom holds a vnetHeader, a link-layer header and the largest IP packet.
const receiveRoom = 65535 + 64

var errAgain = errors.New("no packet waits")

// frameWriter sends packets through one descriptor with a prefix of its own:
// a vnetHeader and, on Ethernet, the link-layer header.
type frameWriter struct {
	fd     int
	prefix []byte // ends where the copy of head begins
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
		case unix.EAGAIN: // the socket's send buffer is full: it drains by itself
			poll := []unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLOUT}}
			if n, err := unix.Poll(poll, sendPatienceMs); n == 0 && err == nil {
				return unix.EAGAIN
			}
		default:
			return err
		}
	}
}

// sendPatienceMs bounds how long a full send buffer may hold up a direction.
const sendPatienceMs = 20

package pair

import (
	"time"

	"golang.org/x/sys/unix"
)

// A reader of a fast lane is to be woken about once in batchTime. The kernel wakes it for
// each segment otherwise.
const (
	batchTime = time.Millisecond
	batchMax  = 128 << 10 // bytes
)

// batch is the number of bytes for which a reader waits. It never waits for bytes that
// the other end has not sent yet.
type batch struct {
	size int       // bytes that come in about batchTime
	last time.Time // of wait
	set  int       // SO_RCVLOWAT of the socket; 0: 1, as it is at first
}

// wait prepares the socket for a reader that waits. It can do nothing with less than
// lacking bytes; sent bytes will come for certain.
func (b *batch) wait(fd, lacking, sent int) {
	if sent > lacking {
		b.adapt(time.Now())
	}
	n := max(lacking, min(b.size, sent))
	if n == max(b.set, 1) {
		return
	}
	// The kernel holds it to half the buffer, and wakes the reader also if the
	// buffer or the memory of all sockets is short (tcp_epollin_ready).
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, n) == nil {
		b.set = n
	}
}

func (b *batch) adapt(now time.Time) {
	switch since := now.Sub(b.last); {
	case since < batchTime/2:
		b.size = min(max(2*b.size, 4<<10), batchMax)
	case since > 2*batchTime:
		b.size = int(int64(b.size) * int64(batchTime) / int64(since))
	}
	b.last = now
}

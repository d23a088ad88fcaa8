package pair

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A goroutine that parks until a socket is ready costs several wakeups of threads, each time.
// One that was busy just now waits with its thread for a moment before it parks.

const (
	lingerMillis = 1
	// maxLingering bounds the threads that wait at the same time.
	maxLingering = 8
)

// linger counts the threads that wait.
type linger struct{ now atomic.Int32 }

// wait waits a moment for events of a socket, and reports whether they came. A nil linger
// does not wait.
func (l *linger) wait(fd int, events int16) bool {
	if l == nil {
		return false
	}
	defer l.now.Add(-1)
	if l.now.Add(1) > maxLingering {
		return false
	}
	return hasEvents(fd, events, lingerMillis)
}

// hasEvents reports whether a socket has one of these events within so many milliseconds.
func hasEvents(fd int, events int16, millis int) bool {
	look := []unix.PollFd{{Fd: int32(fd), Events: events}}
	n, err := unix.Poll(look, millis)
	return n > 0 && err == nil
}

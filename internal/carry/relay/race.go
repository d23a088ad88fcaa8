package relay

import (
	"math"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/eyeballs"
)

// A flow whose target has several addresses races (RFC 8305): while an attempt has no answer, the
// next one begins beside it. The latest attempt is the flow's target leg, and those before it are in
// opening.beside. The handshake's ACK of each waits until one has won, so that the others end
// with RST in its place, and no target sees a connection that is not used.

// attempt is a connection that is being made.
type attempt struct {
	leg   leg
	to    netip.AddrPort
	began time.Duration
}

// inFlight reports whether an attempt at the current hop waits for its answer.
func (o *opening) inFlight(f *flow) bool { return f.legs[target].fd >= 0 || len(o.beside) > 0 }

// setAside makes room for the next attempt beside the latest.
func (w *worker) setAside(f *flow) {
	o := f.opening
	if f.legs[target].fd < 0 {
		return
	}
	if o.beside == nil {
		o.beside = o.fewBeside[:0]
	}
	o.beside = append(o.beside, attempt{f.legs[target], f.target(), o.began})
	f.legs[target] = leg{fd: -1}
	o.raced = true
}

// putBack makes the latest of the attempts that are left the target leg, if there is none.
func (w *worker) putBack(f *flow) {
	o := f.opening
	if last := len(o.beside) - 1; f.legs[target].fd < 0 && last >= 0 {
		f.legs[target], o.began = o.beside[last].leg, o.beside[last].began
		f.setTarget(o.beside[last].to)
		o.beside = o.beside[:last]
	}
}

// attemptBegan notes that an attempt has begun, and when the next one follows beside it.
func (w *worker) attemptBegan(f *flow) {
	o := f.opening
	if len(o.beside) == 0 {
		o.attempt = o.share(w.now)
	}
	o.began, o.nextAt = w.now, 0
	if len(o.addrs) > 0 {
		o.nextAt = w.now + o.host.Next(f.target(), len(o.beside)+1, len(o.addrs), o.attempt-w.now)
	}
	w.scheduleAttempt(f)
}

// scheduleAttempt puts the time of the attempts' next deadline into the heap.
func (w *worker) scheduleAttempt(f *flow) {
	o := f.opening
	at := o.attempt
	if o.nextAt != 0 {
		at = min(at, o.nextAt)
	}
	w.timers.schedule(f, at)
}

// nextBeside begins the next attempt beside those that have no answer yet.
func (w *worker) nextBeside(f *flow) {
	o := f.opening
	o.nextAt = 0
	if len(o.beside)+1 == eyeballs.MaxBeside {
		oldest := &o.beside[0]
		closeFD(int(oldest.leg.fd))
		o.failed(oldest.to, unix.ETIMEDOUT)
		o.beside = o.beside[1:]
	}
	w.dialNext(f)
}

// raced looks which of several attempts have an answer. An event does not say of which it is.
func (w *worker) raced(f *flow) {
	o := f.opening
	w.setAside(f)
	var fds [eyeballs.MaxBeside]unix.PollFd
	for i := range o.beside {
		fds[i] = unix.PollFd{Fd: o.beside[i].leg.fd, Events: unix.POLLIN | unix.POLLOUT | unix.POLLRDHUP | unix.POLLPRI}
	}
	if _, err := unix.Poll(fds[:len(o.beside)], 0); err != nil && err != unix.EINTR {
		clear(fds[:]) // without memory the deadline decides
	}
	failed := false
	left := o.beside[:0]
	for i, a := range o.beside {
		events := uint32(uint16(fds[i].Revents))
		done, errno := w.connectResult(&a.leg, a.to, events)
		switch {
		case !done:
			left = append(left, a)
		case errno != 0:
			failed = true
			closeFD(int(a.leg.fd))
			o.failed(a.to, errno)
		default:
			o.beside = append(left, o.beside[i+1:]...)
			f.legs[target], o.began = a.leg, a.began
			f.setTarget(a.to)
			w.raceWon = append(w.raceWon, f)
			w.won(f, events)
			return
		}
	}
	o.beside = left
	w.putBack(f)
	if failed {
		w.dialNext(f)
	}
}

// won goes on with the attempt that has connected first, and takes the others back.
func (w *worker) won(f *flow, events uint32) {
	o := f.opening
	if o.host != nil {
		o.host.Connected(f.target(), w.now-o.began)
		for i := range o.beside {
			if a := &o.beside[i]; a.began <= o.began {
				o.host.Outrun(a.to, w.now-a.began)
			}
		}
		if !o.ackHeld {
			setsockoptInt(int(f.legs[target].fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1)
		}
	}
	f.connectUS = uint32(min(max((w.now-o.began).Microseconds(), 1), math.MaxUint32))
	o.dropBeside()
	w.established(f, events)
}

// dropAttempts takes back all attempts.
func (w *worker) dropAttempts(f *flow) {
	f.opening.dropBeside()
	if f.legs[target].fd >= 0 {
		w.dropAttempt(f)
	}
}

// dropBeside takes back the attempts beside the target leg.
func (o *opening) dropBeside() {
	for i := range o.beside {
		closeFD(int(o.beside[i].leg.fd))
	}
	o.beside = nil
}

package relay

import (
	"golang.org/x/sys/unix"

	"longhaul/internal/sys/socket"
	"longhaul/internal/sys/splice"
)

const (
	smallRead = 16 << 10  // bytes of a read at or above which a direction splices
	largeRead = 128 << 10 // bytes of a read if no pipe is available
	turnBytes = 1 << 20   // bytes a direction moves before other flows get their turn

	oneSegment = 536 // bytes that fit one segment unless its receiver announces less (RFC 9293, section 3.7.1)
)

// run moves bytes in both directions of an established flow.
func (w *worker) run(f *flow) {
	more := (f.phase == phaseMoving || w.recognize(f)) && w.pump(f, up, turnBytes)
	if f.connected() {
		more = w.pump(f, down, turnBytes) || more
	}
	if f.connected() {
		for s := client; s <= target; s++ {
			if f.dirs[s].corked { // no FIN followed the last bytes
				f.dirs[s].corked = false
				f.legs[s.other()].nagle = false
				setNoDelay(int(f.legs[s.other()].fd))
			}
		}
		if more || f.needsTurn() {
			w.again(f)
		}
	}
}

// needsTurn reports whether pumping one direction made work for the other,
// which had been found idle.
func (f *flow) needsTurn() bool {
	for s := client; s <= target; s++ {
		if f.end.broken[s] && f.end.in[s] == inputOpen && f.legs[s].readable && f.legs[s.other()].writable {
			return true
		}
	}
	return false
}

// pump moves bytes of one direction until nothing is readable, the receiver has
// no room, or the turn is over; it returns true in the last case. The turn is
// over after budget bytes; with 0 it writes held bytes and reads none.
//
// A direction reads only after all earlier bytes are written. So the pipe is
// empty before each splice into it, and EAGAIN can only mean an empty socket. A
// flow never holds more than one pipe or buffer per direction.
func (w *worker) pump(f *flow, s side, budget int) (more bool) {
	src, dst, dir := &f.legs[s], &f.legs[s.other()], &f.dirs[s]
	for {
		if !f.connected() || f.end.discarded[s] || f.end.drained[s] {
			return false
		}
		if dir.held > 0 {
			if !dst.writable {
				return false
			}
			dst.noDelay(dir.bytes, int(dir.held))
			n, errno := w.flush(dir, dst)
			if errno != 0 && dir.own == nil && splice.Unsupported(errno) && w.unsplice(dir) {
				src.urgent = true // copy from now on
				continue
			}
			if errno != 0 {
				w.writeFailed(f, s.other(), errno)
				return false
			}
			budget -= w.moved(f, s, n)
			continue
		}
		if f.end.in[s] != inputOpen {
			w.release(dir)
			w.apply(f, f.end.step(eventDrained, s))
			return false
		}
		if !src.readable || !dst.writable || budget <= 0 {
			w.release(dir)
			return src.readable && dst.writable
		}

		var n int
		var errno unix.Errno
		if w.borrow(dir, src) {
			n, errno = splice.Move(int(src.fd), dir.pipe.W, min(dir.pipe.Size, w.maxSplice))
			if n > 0 && errno == 0 {
				dir.held = int32(n)
				dir.bulk = n >= smallRead
				continue
			}
		} else {
			limit := smallRead
			if dir.bulk {
				limit = largeRead
			}
			// A read stops before the urgent byte, which is then sent alone as
			// urgent. If its announcement has not been seen yet, it travels as
			// an ordinary byte; most programs read it as one.
			var flags uintptr
			if src.urgent {
				var urgent bool
				if n, urgent, errno = socket.RecvToMark(int(src.fd), w.buf[:limit]); urgent {
					limit, flags = 1, unix.MSG_OOB
				}
			} else {
				n, errno = socket.Recv(int(src.fd), w.buf[:limit])
			}
			if n > 0 && errno == 0 {
				if n >= smallRead {
					dir.bulk = true
					w.setUpLegs(f) // before more follows than the first window
				} else {
					dir.bulk = false
				}
				if n < limit && !src.hungUp && !src.urgent {
					src.readable = false // a short read means an empty socket
				}
				if src.fin && n < limit {
					// These are the last bytes: they share a segment, and a
					// wakeup of the peer, with the FIN behind them.
					flags = unix.MSG_MORE
					dir.corked = true
				}
				dst.noDelay(dir.bytes, n)
				sent, errno := socket.Send(int(dst.fd), w.buf[:n], flags)
				if errno == unix.EAGAIN {
					sent, errno = 0, 0
				}
				if errno != 0 {
					w.writeFailed(f, s.other(), errno)
					return false
				}
				if sent < n {
					dst.writable = false
					dir.own = w.buffer()
					*dir.own = append(*dir.own, w.buf[sent:n]...)
					dir.held = int32(n - sent)
					dir.oob = flags == unix.MSG_OOB
				}
				budget -= w.moved(f, s, sent)
				if src.fin && n < limit && !src.urgent {
					w.readEnded(f, s) // the FIN had come before this read, and it stopped at nothing else
				}
				continue
			}
		}
		switch {
		case errno == 0 && dir.pipe != nil:
			// splice does not pass the urgent mark. There, once the peer has
			// ended its stream, it returns 0 as at the end.
			src.urgent = true // a read tells the two apart
		case errno == 0:
			w.readEnded(f, s)
		case errno == unix.EAGAIN:
			src.readable = false
		case errno == unix.EINTR:
		case dir.pipe != nil && splice.Unsupported(errno):
			src.urgent = true // copying may still work
		default:
			w.readFailed(f, s, errno)
		}
	}
}

// flush writes held bytes and returns their number.
func (w *worker) flush(dir *direction, dst *leg) (int, unix.Errno) {
	var n int
	var errno unix.Errno
	if dir.own != nil {
		var flags uintptr
		if dir.oob {
			flags = unix.MSG_OOB
		}
		n, errno = socket.Send(int(dst.fd), dir.unwritten(), flags)
	} else {
		n, errno = splice.Move(dir.pipe.R, int(dst.fd), int(dir.held))
	}
	switch errno {
	case 0:
	case unix.EAGAIN:
		dst.writable = false
		return 0, 0
	case unix.EINTR:
		return 0, 0
	default:
		return 0, errno
	}
	dir.held -= int32(n)
	if dir.held == 0 && dir.own != nil {
		w.recycle(dir.own)
		dir.own, dir.oob = nil, false
	}
	return n, 0
}

// unwritten are the held bytes of a copied read.
func (dir *direction) unwritten() []byte { return (*dir.own)[len(*dir.own)-int(dir.held):] }

// unsplice moves the pipe's content into a buffer. It returns false if bytes
// were lost.
func (w *worker) unsplice(dir *direction) bool {
	own := make([]byte, dir.held)
	for got := 0; got < len(own); {
		n, err := unix.Read(dir.pipe.R, own[got:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return false // the bytes are lost: the flow must fail
		}
		got += n
	}
	dir.own = &own
	w.pipes.put(dir.pipe)
	dir.pipe = nil
	return true
}

func (w *worker) moved(f *flow, s side, n int) int {
	if n > 0 {
		w.count(f, s, f.dirs[s].bytes+int64(n))
		f.active = w.now
		if f.dirs[s].bytes >= smallRead {
			w.setUpLegs(f)
		}
	}
	return n
}

// borrow gets a pipe for a direction that should splice, and reports whether it
// has one.
func (w *worker) borrow(dir *direction, src *leg) bool {
	if !dir.bulk || src.urgent {
		w.release(dir)
		return false
	}
	if dir.pipe == nil {
		dir.pipe = w.pipes.get(w.now)
	}
	return dir.pipe != nil
}

// release returns an empty pipe to the pool.
func (w *worker) release(dir *direction) {
	if dir.pipe != nil && dir.held == 0 {
		w.pipes.put(dir.pipe)
		dir.pipe = nil
	}
}

// discard drops the bytes that the direction holds.
func (w *worker) discard(dir *direction) {
	switch {
	case dir.pipe != nil && dir.held > 0 && dir.own == nil:
		w.pipes.discard(dir.pipe)
		dir.pipe = nil
	case dir.own != nil:
		w.recycle(dir.own)
		dir.own, dir.oob = nil, false
	}
	dir.held = 0
	w.release(dir)
}

func (w *worker) readEnded(f *flow, s side) {
	f.active = w.now
	ev := eventEnd
	if l := &f.legs[s]; l.failed != 0 && !l.fin {
		// A failed write or a peek consumed the error that this read would have
		// returned. So this may not be an end.
		errno := unix.Errno(l.failed)
		f.fail(legFailure(s, errno), errno)
		ev = eventReset
	}
	w.apply(f, f.end.step(ev, s))
	if f.connected() && f.end.halfDone() {
		w.schedule(f)
	}
}

func (w *worker) readFailed(f *flow, s side, errno unix.Errno) {
	f.fail(legFailure(s, errno), errno)
	w.apply(f, f.end.step(eventReset, s))
}

func (w *worker) writeFailed(f *flow, s side, errno unix.Errno) {
	l := &f.legs[s]
	if l.failed == 0 {
		l.failed = errorNumber(errno)
	}
	l.readable = true // until the rest of its bytes has been read
	f.fail(legFailure(s, errno), errno)
	w.apply(f, f.end.step(eventBroken, s))
}

// apply executes the actions of the state machine.
func (w *worker) apply(f *flow, a action) {
	w.stir(f)
	for a != 0 {
		if a&(actionCloseClean.on(client)|actionCloseReset.on(client)) != 0 {
			w.closeFlow(f, a)
			return
		}
		var next action
		if a.has(actionDeadline) {
			f.close().deadline = w.now + w.relay.opts.ResetDrainTimeout
			w.schedule(f)
		}
		for s := client; s <= target; s++ {
			if a.hasOn(actionDiscard, s) {
				w.discard(&f.dirs[s])
			}
			if a.hasOn(actionShutdown, s) {
				f.dirs[s.other()].corked = false
				if f.legs[s].fin || f.end.in[s] == inputEnded {
					f.legs[s].entrust()
				}
				if !w.relay.keepsEnds.Load() && f.lacksOnlyEnd(a, s) {
					a = f.end.step(eventAcked, s.other()) | f.end.step(eventAcked, s)
					w.closeFlow(f, a)
					return
				}
				if errno := shutdownWrite(int(f.legs[s].fd)); errno != 0 {
					f.legs[s].readable = true
					next |= f.end.step(eventBroken, s)
				}
			}
			if a.hasOn(actionAwaitAck, s) {
				if f.end.finished(s) {
					f.legs[s].endArrived()
				}
				if f.legs[s].unacknowledged() == 0 {
					next |= f.end.step(eventAcked, s)
				} else {
					f.close().ackDelay = firstAckDelay
					w.schedule(f)
				}
			}
		}
		a = next
	}
}

// lacksOnlyEnd reports whether, of all that both peers are to get, only the end for leg s is not
// acknowledged. To close the leg sends that, and the kernel repeats it.
func (f *flow) lacksOnlyEnd(a action, s side) bool {
	o := s.other()
	return f.end.in[s] == inputEnded && a.hasOn(actionAwaitAck, s) && a.hasOn(actionAwaitAck, o) && !a.hasOn(actionShutdown, o) &&
		f.legs[s].unacknowledged() == 0 && f.legs[o].unacknowledged() == 0
}

// closeFlow closes both legs and writes the flow's record.
func (w *worker) closeFlow(f *flow, a action) {
	w.settleReason(f)
	w.endPaired(f)
	w.account(f) // who sees the answer sees the count
	w.endHeld(f)
	for s := client; s <= target; s++ {
		w.discard(&f.dirs[s])
		fd := int(f.legs[s].fd)
		if fd < 0 {
			continue
		}
		if a.hasOn(actionCloseClean, s) {
			f.legs[s].entrust()
		} else if f.legs[s].left {
			setLinger(fd, true)
		}
	}
	for s := client; s <= target; s++ {
		if fd := int(f.legs[s].fd); fd >= 0 {
			closeFD(fd)
			f.legs[s].fd = -1
		}
	}
	w.forget(f)
}

// settleReason finds the cause of a failure that showed only as an error event,
// not in a read or write.
func (w *worker) settleReason(f *flow) {
	for s := client; s <= target; s++ {
		if f.end.broken[s] && (f.closing == nil || f.closing.reason == "") {
			errno := socketError(int(f.legs[s].fd))
			f.fail(legFailure(s, errno), errnoOrNil(errno))
		}
	}
}

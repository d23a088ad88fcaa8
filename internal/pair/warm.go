package pair

import (
	"sync/atomic"
	"time"

	"longhaul/internal/pair/wire"
	"longhaul/internal/tcpinfo"
)

// A lane's congestion window is open in the directions that its flows have used. Both ends
// open it in the other directions while the lane rests, if it is the one that the next
// flow gets: up to the window that lanes of the session have had there of late.

const (
	// padSize is what opens the window of a new lane for the pool, in bytes: beyond it a
	// flow's first 64 kB need no second round trip. A PAD has no more.
	padSize = 128 << 10
	// maxWindow bounds the window that an end opens, in bytes.
	maxWindow = 16 << 20
	// maxWarmHour bounds the bytes that an end sends in an hour to open windows.
	maxWarmHour = 8 * maxWindow
	windowLasts = 10 * time.Minute
	warmAfter   = 500 * time.Millisecond // of rest in the pool
	warmWithin  = 10 * time.Second       // an end gives up
)

// zeros are the bytes of PAD.
var zeros [padSize]byte

// warmth is what an end of a session knows of windows in its direction.
type warmth struct {
	window atomic.Int64 // bytes that a lane has delivered in a round trip, the most of late
	noted  atomic.Int64 // stamp of window

	// The lane whose window this end opens, under the session's lock; nil: none.
	lane  *lane
	since time.Time
	left  int64 // bytes that may still be sent for it

	hour  time.Time // the present hour's begin
	spent int64     // bytes in it
}

// filledWindow is the number of bytes that a connection has delivered in a round trip of
// late; 0: not known.
func filledWindow(i *tcpinfo.Info) int64 {
	if !i.Has(tcpinfo.FieldDeliveryRateBps) || !i.Has(tcpinfo.FieldMinRTT) {
		return 0
	}
	return min(int64(float64(i.DeliveryRateBps)/8*i.MinRTT.Seconds()), windowOf(i), maxWindow)
}

// note takes the window of a lane over which a flow has sent so many bytes. The kernel
// keeps the rate of former flows while one sends little.
func (w *warmth) note(window, sent int64) {
	if sent >= window && (window >= w.window.Load() || w.isOld()) {
		w.window.Store(window)
		w.noted.Store(int64(stampNow()))
	}
}

func (w *warmth) isOld() bool { return stamp(w.noted.Load()).since() > windowLasts }

// goal is the window that a lane should have, in bytes; 0: none is known.
func (w *warmth) goal() int64 {
	if w.isOld() {
		return 0
	}
	return w.window.Load()
}

func windowOf(i *tcpinfo.Info) int64 { return int64(i.SndCwnd) * int64(i.SndMSS) }

// warmNext has both ends open the window of the lane that the next flow gets.
func (s *session) warmNext(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.warm) == 0 {
		return
	}
	l := s.warm[len(s.warm)-1]
	l.mu.Lock()
	due := l.warm && !l.asked && now.Sub(l.since) > warmAfter
	l.asked = l.asked || due
	l.mu.Unlock()
	if due {
		s.node.tasks.Go(func() { _ = l.pad(0, wire.FlagWarm) })
		s.beginWarming(l, now)
	}
}

// asked takes the near end's wish that this end opens a lane's window.
func (s *session) asked(l *lane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.near {
		s.beginWarming(l, time.Now())
	}
}

// beginWarming makes a lane whose window is small the one whose window this end opens. The
// caller holds s.mu.
func (s *session) beginWarming(l *lane, now time.Time) {
	w := &s.warmth
	if now.Sub(w.hour) > time.Hour {
		w.hour, w.spent = now, 0
	}
	w.lane = nil
	goal := w.goal()
	if window, _ := l.bulk.window(); window < goal-goal/4 { // a flow notices no less
		w.lane, w.since = l, now
		w.left = min(2*goal, maxWarmHour-w.spent) // slow start takes twice the window
	}
}

// warmLane goes on to open the window of a lane.
func (s *session) warmLane(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &s.warmth
	l := w.lane
	if l == nil {
		return
	}
	window, room := l.bulk.window()
	n := min(room, w.left)
	switch {
	case window == 0, l.bound() != nil, window >= w.goal(), w.left <= 0, now.Sub(w.since) > warmWithin:
		w.lane = nil
	case n > 0:
		w.left -= n
		w.spent += n
		s.node.tasks.Go(func() { l.padIdle(n) })
	}
}

// window is the congestion window in bytes, and how many more the kernel sends at once; 0:
// the connection is closed.
func (c *bulkConn) window() (window, room int64) {
	c.control(func(fd int) {
		if info, err := tcpinfo.Get(fd); err == nil {
			window = windowOf(&info)
			room = window - int64(unacknowledged(fd))
		}
	})
	return window, room
}

// padIdle sends n bytes that the other end skips, until a flow takes the lane.
func (l *lane) padIdle(n int64) {
	for ; n > 0 && l.bound() == nil; n -= padSize {
		if l.pad(int(min(n, padSize)), 0) != nil {
			return
		}
	}
}

// pad sends a PAD of n bytes.
func (l *lane) pad(n int, flags byte) error {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	var head [wire.HeadSize]byte
	wire.Frame{Type: wire.FramePad, Flags: flags, Length: n}.Put(head[:])
	_, err := l.conn.Write(head[:])
	if err == nil {
		_, err = l.conn.Write(zeros[:n])
	}
	if err == nil {
		err = l.bulk.flush()
	}
	if err != nil {
		l.close()
	}
	return err
}

package pair

import (
	"time"

	"longhaul/internal/sys/tcpinfo"
)

// A queue that stands on the path may be the flow's own: BBR keeps one where its estimate of the
// rate is too high. To find that out, the flow stops sending for a moment. Its own queue is empty
// after the time that it stood for. If others fill it as well, it drains more slowly, at the
// flow's share of the rate. Where that share is large, several lanes could not take tuneSome
// times as much.

const (
	// hushFactor and hushSlack give the time after which the queue has to be empty. The slack
	// is half of it at most.
	hushFactor = 1.2
	hushSlack  = 20 * time.Millisecond
	// hushLate is how late the PING may be.
	hushLate = 5 * time.Millisecond
	// hushMost bounds the time without a byte.
	hushMost = 400 * time.Millisecond
	// hushFor is how long an answer counts. After one that shows others, the next question
	// waits for hushAgain, twice as long after each further one, hushRarely at most.
	hushFor    = 10 * time.Second
	hushAgain  = 5 * time.Second
	hushRarely = 80 * time.Second
)

// hush finds out whether a queue is the flow's own.
type hush struct {
	began time.Time     // zero: none runs
	until time.Time     // a round trip that begins here sees no queue if that is the flow's own
	queue time.Duration // that the measurement before has seen; 0: it counts no more
	own   time.Time     // of the latest queue that was
	next  time.Time     // the earliest moment for the next one
	wait  time.Duration
}

// owns reports whether a queue counts as the flow's own.
func (h *hush) owns(now time.Time) bool { return !h.own.IsZero() && now.Sub(h.own) < hushFor }

// begin has the flow fall silent, if that may show whose queue it is.
func (h *hush) begin(s sight, queue time.Duration, rates laneRates) bool {
	if s.hush == nil || len(rates) == 0 || s.now.Before(h.next) {
		return false
	}
	until, ok := s.hush(queue, rates[0].rate)
	if ok {
		h.began, h.until, h.queue = s.now, until, queue
	}
	return ok
}

// runs reports whether the flow is silent, or the answer still under way.
func (h *hush) runs(s sight, rtt time.Duration) bool {
	if h.began.IsZero() {
		return false
	}
	if s.now.Sub(h.until) < 2*rtt {
		return true
	}
	if s.drained(h.began, h.until.Add(hushLate)) {
		h.own, h.wait, h.queue = s.now, 0, 0
	} else {
		h.wait = min(max(2*h.wait, hushAgain), hushRarely)
		h.next = s.now.Add(h.wait)
	}
	h.began = time.Time{}
	return false
}

// hushNow stops what is sent from here until a queue of the flow's own has drained, and has a
// PING look for it then. The caller holds f.mu.
func (f *Flow) hushNow(queue time.Duration, rate float64) (until time.Time, ok bool) {
	if f.lane == nil || rate <= 0 || f.s.link.several() {
		return until, false
	}
	var unsent float64
	kernelSays(f.lane.bulk, func(i *tcpinfo.Info) bool {
		unsent = float64(i.NotsentBytes)
		return true
	})
	queue = max(queue, f.s.delays.latest())
	lasts := time.Duration(hushFactor*float64(queue)+unsent/rate*float64(time.Second)) + min(hushSlack, queue/2)
	if lasts > hushMost {
		return until, false
	}
	f.auto.hushed = true
	time.AfterFunc(lasts, func() {
		f.mu.Lock()
		if f.auto != nil {
			f.auto.hushed = false
		}
		f.feed()
		f.cond.broadcast()
		f.mu.Unlock()
		if ctl := f.s.control(); ctl != nil {
			f.s.sendPing(ctl)
		}
	})
	return time.Now().Add(lasts), true
}

// hushes reports whether nothing is to be sent for a moment.
func (f *Flow) hushes() bool { return f.auto != nil && f.auto.hushed }

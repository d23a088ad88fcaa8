package pair

import (
	"fmt"
	"testing"
	"time"

	"longhaul/internal/nettest"
	"longhaul/internal/tcpinfo"
)

// TestFilledWindow holds what counts as the window of a connection.
func TestFilledWindow(t *testing.T) {
	for _, c := range []struct {
		name string
		info tcpinfo.Info
		want int64
	}{
		{"rate times round trip", tcpinfo.Info{DeliveryRateBps: 80e6, MinRTT: 100 * time.Millisecond, SndCwnd: 2000, SndMSS: 1000}, 1_000_000},
		{"a burst at the rate of the link", tcpinfo.Info{DeliveryRateBps: 80e6, MinRTT: 100 * time.Millisecond, SndCwnd: 10, SndMSS: 1000}, 10_000},
		{"a very long path", tcpinfo.Info{DeliveryRateBps: 80e6, MinRTT: 10 * time.Second, SndCwnd: 1e6, SndMSS: 1000}, maxWindow},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.info.Know(tcpinfo.FieldDeliveryRateBps, tcpinfo.FieldMinRTT)
			if got := filledWindow(&c.info); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
}

// TestWindowOfLate holds which window lanes are to have.
func TestWindowOfLate(t *testing.T) {
	var w warmth
	for _, step := range []struct {
		why          string
		window, sent int64
		later        time.Duration // than the step before
		want         int64
	}{
		{"bulk", 1000, 1000, 0, 1000},
		{"a smaller window", 500, 1000, 0, 1000},
		{"a few bytes on a lane of former bulk", 2000, 100, 0, 1000},
		{"more", 3000, 4000, 0, 3000},
		{"nothing for long", 0, -1, windowLasts + time.Second, 0},
		{"a smaller window after long", 400, 1000, 0, 400},
	} {
		w.noted.Add(-int64(step.later))
		w.note(step.window, step.sent)
		if got := w.goal(); got != step.want {
			t.Errorf("%s: %d, want %d", step.why, got, step.want)
		}
	}
}

// TestLaneIsWarmed holds that both ends open the window of the lane that the next flow
// gets, that this costs a bounded number of bytes, and that a flow may take it meanwhile.
func TestLaneIsWarmed(t *testing.T) { eachMode(t, testLaneIsWarmed) }

func testLaneIsWarmed(t *testing.T, in standOption) {
	t.Parallel()
	s := newStand(t, in)
	s.serve(echo)
	once := func() {
		c := s.dial()
		defer c.Close()
		s.roundTrip(c, "ping")
	}
	once()
	const goal = 6 << 20 // no lane over loopback has that window
	near, far := s.link.current(), s.farNode().sessions()[0]
	for _, w := range []*warmth{&near.warmth, &far.warmth} {
		w.window.Store(goal)
		w.noted.Store(int64(stampNow()))
	}
	once()
	once()
	for name, session := range map[string]*session{"near": near, "far": far} {
		nettest.Eventually(t, 30*time.Second, func() bool { return session.mostSent() > goal/2 },
			func() string { return fmt.Sprintf("the %s end has sent %d bytes", name, session.mostSent()) })
	}
	once()
	for name, session := range map[string]*session{"near": near, "far": far} {
		if n := session.mostSent(); n > 4*goal {
			t.Errorf("the %s end has sent %d bytes", name, n)
		}
	}
}

// mostSent is the number of bytes on the lane that has carried most.
func (s *session) mostSent() (most int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.lanes {
		c, _, _ := l.counters()
		most = max(most, c.Sent)
	}
	return most
}

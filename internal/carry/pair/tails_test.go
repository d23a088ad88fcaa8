package pair

import (
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/test/nettest"
)

// patient has sessions take no lane for dead, so that only a second one can carry what a silent one
// has.
func patient(sessions ...*session) {
	for _, s := range sessions {
		s.rttvar.Store(int64(time.Minute))
	}
}

// TestDoubledTail holds that what a lane carries that falls silent goes out on another one, which a
// flow with one lane gets for that, from either relay.
func TestDoubledTail(t *testing.T) {
	t.Parallel()
	needsDeaf(t)
	for _, c := range []struct {
		name    string
		lanes   int    // of the flow
		after   uint64 // so many bytes
		fromFar bool   // the far relay's bytes wait
	}{
		{"of two lanes", 2, 1, false},
		{"of two lanes, from the far relay", 2, 1, true},
		{"of one lane", 1, 1 << 30, false},
		{"of one lane, from the far relay", 1, 1 << 30, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t, direct, func(_ *stand, o *Options, l *LinkOptions) { o.StripeAfter, l.Lanes = c.after, 2 })
			s.serve(echo)
			client := s.dial()
			defer client.Close()
			s.roundTrip(client, "before")
			s.awaitWarm(1)
			near, far := s.near.sessions()[0], s.farNode().sessions()[0]
			nettest.Eventually(t, 30*time.Second, func() bool {
				return settled(near, c.lanes) && settled(far, c.lanes)
			}, s.dump)
			patient(near, far)
			deaf, sender := far, near
			if c.fromFar {
				deaf, sender = near, far
			}
			before := sender.tails.doubled.Load() // acknowledgements may be late
			deaf.allFlows()[0].mainLane().bulk.control(deafen)
			s.roundTrip(client, "behind")
			if n := sender.tails.doubled.Load() - before; n != int64(len("behind")) {
				t.Errorf("%d bytes went out twice", n)
			}
			nettest.Must(t, client.CloseWrite())
			s.ends(flow.EndClean)
		})
	}
}

// settled reports whether the session's flow has so many lanes, and everything is acknowledged.
func settled(s *session, lanes int) bool {
	f := s.allFlows()[0]
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.readyStrands() == lanes && !f.sf.Out.Unacknowledged()
}

func (f *Flow) mainLane() *lane {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lane
}

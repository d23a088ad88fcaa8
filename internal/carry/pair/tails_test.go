package pair_test

import (
	"testing"
	"time"

	"longhaul/internal/carry/pair"

	"longhaul/internal/carry/flow"
	"longhaul/test/nettest"
)

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
			s := newStand(t, direct, func(_ *stand, o *pair.Options, l *pair.LinkOptions) { o.StripeAfter, l.Lanes = c.after, 2 })
			s.serve(echo)
			client := s.dial()
			defer client.Close()
			s.roundTrip(client, "before")
			s.awaitWarm(1)
			near, far := s.near, s.farNode()
			nettest.Eventually(t, 30*time.Second, func() bool {
				return near.Settled(c.lanes) && far.Settled(c.lanes)
			}, s.dump)
			near.BePatient()
			far.BePatient()
			deaf, sender := far, near
			if c.fromFar {
				deaf, sender = near, far
			}
			before := sender.Doubled() // acknowledgements may be late
			deaf.MainLane(deafenFD)
			s.roundTrip(client, "behind")
			if n := sender.Doubled() - before; n != int64(len("behind")) {
				t.Errorf("%d bytes went out twice", n)
			}
			nettest.Must(t, client.CloseWrite())
			s.ends(flow.EndClean)
		})
	}
}

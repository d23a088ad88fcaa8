package pair_test

import (
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/test/nettest"
)

// TestForgedReasons has each end of a session give reasons that are not its own, with a
// text that would turn a line around. The other end records what it may believe, and that
// it is the other's word.
func TestForgedReasons(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		byNear bool
		code   flow.EndReason
		want   flow.EndReason
	}{
		{"near relay says target-refused", true, flow.EndTargetRefused, flow.EndWANLost},
		{"near relay says no-hop", true, flow.EndNoHop, flow.EndWANLost},
		{"near relay says client-reset", true, flow.EndClientReset, flow.EndClientReset},
		{"far relay says client-reset", false, flow.EndClientReset, flow.EndWANLost},
		{"far relay says client-timeout", false, flow.EndClientTimeout, flow.EndWANLost},
		{"far relay of a chain says peer-restarted", false, flow.EndPeerRestarted, flow.EndPeerRestarted},
		{"far relay says target-reset", false, flow.EndTargetReset, flow.EndTargetReset},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t)
			s.begin("x")
			from, ends := s.near, s.farEnds
			if !c.byNear {
				from, ends = s.far, s.nearEnds
			}
			from.SayReset(c.code, "e\u202evil\x1b[2J")
			select {
			case e := <-ends:
				if e.Reason != c.want || !e.ByPeer || e.Err == nil || e.Err.Error() != "e?vil?[2J" {
					t.Errorf("recorded as %s, %v, by the peer: %v; want %s", e.Reason, e.Err, e.ByPeer, c.want)
				}
			case <-time.After(patience):
				t.Fatal("the flow does not end\n" + s.dump())
			}
		})
	}
}

// TestOwnReasons holds that what an end finds itself is not the other's word.
func TestOwnReasons(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.serve(echo)
	client := s.dial()
	s.roundTrip(client, "x")
	nettest.Must(t, client.SetLinger(0))
	client.Close()
	for name, ends := range map[string]chan flow.End{"near": s.nearEnds, "far": s.farEnds} {
		e := <-ends
		if e.Reason != flow.EndClientReset || e.ByPeer != (name == "far") {
			t.Errorf("%s: %s, by the peer: %v", name, e.Reason, e.ByPeer)
		}
	}
}

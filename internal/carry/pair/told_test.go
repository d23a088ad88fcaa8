package pair

import (
	"slices"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/wire"
	"longhaul/test/nettest"
)

// TestTold holds which reasons a near and a far relay may give, for each code.
func TestTold(t *testing.T) {
	both := []flow.EndReason{flow.EndNoLocalPort, flow.EndNoResources, flow.EndIdle, flow.EndHalfClosed, flow.EndStalled, flow.EndDrain,
		flow.EndDenied, flow.EndFlowLimit, flow.EndRateLimit, flow.EndShed, flow.EndWANLost, flow.EndDamaged}
	ofNear := []flow.EndReason{flow.EndClientReset, flow.EndClientTimeout, flow.EndBadProxyHeader, flow.EndPairDown}
	ofFar := []flow.EndReason{flow.EndTargetReset, flow.EndTargetTimeout, flow.EndTargetRefused, flow.EndTargetUnreached, flow.EndTargetUnknown,
		flow.EndLoop, flow.EndNoHop}
	for code := range 256 {
		for _, near := range []bool{true, false} { // the end that is told
			r, err := reasonOf(told(near, wire.Message{Reason: byte(code), Text: "why"}))
			want := flow.EndWANLost
			if code < len(codes) && code > 0 {
				may := slices.Concat(both, ofNear)
				if near {
					may = slices.Concat(both, ofFar)
				}
				if slices.Contains(may, codes[code]) {
					want = codes[code]
				}
			}
			if r != want || err == nil || err.Error() != "why" {
				t.Errorf("code %d at the end that is near: %v counts as %s, %v, want %s", code, near, r, err, want)
			}
		}
	}
}

func TestToldProblem(t *testing.T) {
	for text, want := range map[string]flow.PairProblem{"denied": flow.PairDenied, "encrypt": flow.PairEncrypt, "version": flow.PairVersion, "<b>": flow.PairDenied, "": flow.PairDenied} {
		if got := toldProblem(text); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

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
		{"far relay says peer-restarted", false, flow.EndPeerRestarted, flow.EndWANLost},
		{"far relay says target-reset", false, flow.EndTargetReset, flow.EndTargetReset},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t)
			s.serve(echo)
			client := s.dial()
			defer client.Close()
			s.roundTrip(client, "x")
			from, ends := s.near, s.farEnds
			if !c.byNear {
				from, ends = s.far, s.nearEnds
			}
			session := from.sessions()[0]
			f := session.allFlows()[0]
			session.message(wire.Message{Type: wire.MessageReset, Flow: f.id, Reason: cause(c.code, nil).Code, Text: "e\u202evil\x1b[2J"})
			select {
			case e := <-ends:
				if e.Reason != c.want || !e.ByPeer || e.Err == nil || e.Err.Error() != "e?vil?[2J" {
					t.Errorf("recorded as %s, %v, by the peer: %v; want %s", e.Reason, e.Err, e.ByPeer, c.want)
				}
			case <-time.After(30 * time.Second):
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

package pair

import (
	"slices"
	"testing"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/wire"
)

// TestTold holds which reasons a near and a far relay may give, for each code.
func TestTold(t *testing.T) {
	both := []flow.EndReason{flow.EndNoLocalPort, flow.EndNoResources, flow.EndIdle, flow.EndHalfClosed, flow.EndStalled, flow.EndDrain,
		flow.EndDenied, flow.EndFlowLimit, flow.EndRateLimit, flow.EndShed, flow.EndWANLost, flow.EndDamaged,
		flow.EndPairDown, flow.EndPeerRefused, flow.EndPeerRestarted}
	ofNear := []flow.EndReason{flow.EndClientReset, flow.EndClientTimeout, flow.EndBadProxyHeader}
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

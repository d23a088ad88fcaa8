package pair_test

import (
	"fmt"
	"testing"

	"longhaul/internal/carry/pair"
	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/carry/pair/wire"
	"longhaul/test/nettest"
)

// TestTrouble holds that the near relay knows why the far tunnel takes no flows, also after the control
// connection was lost, and that the far relay sends TROUBLE to no near relay of an older release.
func TestTrouble(t *testing.T) {
	t.Parallel()
	for name, without := range map[string]wire.Features{"both know": 0, "older": wire.FeatureTrouble} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t, func(_ *stand, o *pair.Options, _ *pair.LinkOptions) { o.Without = without })
			s.serve(echo)
			s.awaitWarm(2)
			is := func(want string) {
				t.Helper()
				if without != 0 {
					want = ""
				}
				got := func() string { return s.link.Taking().Trouble }
				nettest.Eventually(t, patience, func() bool { return s.link.Taking().Takes && got() == want },
					func() string { return fmt.Sprintf("the trouble is %q, not %q", got(), want) })
			}
			is("")
			stood := s.link.Taking().Since
			s.trouble.Store("is drained")
			is("is drained")
			if since := s.link.Taking().Since; without == 0 && !since.After(stood) {
				t.Errorf("in trouble since %v, the session since %v", since, stood)
			}
			s.path.refuse(preface.Control, true)
			nettest.Eventually(t, patience, func() bool { return !s.session().Up }, s.dump)
			s.path.refuse(preface.Control, false)
			is("is drained")
			s.trouble.Store("has no hop")
			is("has no hop")
			s.trouble.Store("")
			is("")
			if s.trouble.Store("again"); without == 0 {
				is("again")
			}
			s.roundTrip(s.dial(), "hello") // flows are the relay's business: they go on
		})
	}
}

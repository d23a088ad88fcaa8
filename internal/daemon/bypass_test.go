package daemon

import (
	"testing"
	"time"

	"longhaul/internal/config"
	"longhaul/internal/flow"
)

// New connections pass a tunnel once its pair or every hop has been down for a while, and
// no more as soon as it is up.
func TestBypass(t *testing.T) {
	tunnels := []config.Tunnel{
		{Name: "hops", WhenDown: config.WhenDownBypass},
		{Name: "paired", WhenDown: config.WhenDownBypass, Pair: config.Pair{Peer: "site-b"}},
		{Name: "refusing", WhenDown: config.WhenDownRefuse},
	}
	start := time.Now()
	for _, name := range []string{"hops", "paired", "refusing"} {
		all := bypasses(tunnels, nil)
		for _, step := range []struct {
			after time.Duration
			up    bool
			want  bool
			total int64
		}{
			{after: 0},
			{after: firstSettles - time.Millisecond},
			{after: firstSettles, want: true, total: 1},
			{after: firstSettles + time.Second, want: true, total: 1},
			{after: 4 * time.Second, up: true, total: 1},
			{after: 5 * time.Second, total: 1},
			{after: 5*time.Second + downSettles - time.Millisecond, total: 1},
			{after: 5*time.Second + downSettles/2, up: true, total: 1},
			{after: 6 * time.Second, total: 1},
			{after: 6*time.Second + downSettles, want: true, total: 2},
		} {
			all = bypasses(tunnels, all) // a reload changes nothing
			state := flow.Tunnel{Name: name, Hops: []flow.Hop{{State: flow.HopDown}, {State: flow.HopEjected}}}
			if step.up {
				state.Hops[1].State = flow.HopReturning
			}
			want := step.want && name != "refusing"
			pairUp := func(tunnel string) bool { return tunnel == "paired" && step.up }
			if got := all[name].update(state, pairUp, start.Add(step.after)); got != want {
				t.Errorf("%s after %v: bypass %v, want %v", name, step.after, got, want)
			}
			now := all[name].state()
			if name == "refusing" {
				if now != nil || all[name].atLimits() {
					t.Errorf("%s has a bypass: %+v", name, now)
				}
				continue
			}
			if now.Total != step.total || (now.Reason != "") != want || now.Since.IsZero() == want {
				t.Errorf("%s after %v: %+v", name, step.after, now)
			}
		}
	}
}

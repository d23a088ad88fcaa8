package daemon

import (
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/run/config"
)

// New connections pass a tunnel while its pair or every hop is down, and for no other reason.
func TestBypass(t *testing.T) {
	tunnels := []config.Tunnel{{Name: "bypassing", WhenDown: config.WhenDownBypass}, {Name: "refusing", WhenDown: config.WhenDownRefuse}, {Name: "plain"}}
	for _, name := range []string{"bypassing", "refusing", "plain"} {
		all := bypasses(tunnels, nil)
		for i, step := range []struct {
			problem flow.Reason
			want    string
			total   int64
		}{
			{"", "", 0},
			{flow.ReasonMaxFlows, "", 0},
			{flow.ReasonPairDown, flow.BypassPairDown, 1},
			{flow.ReasonPairDown, flow.BypassPairDown, 1},
			{"", "", 1},
			{flow.ReasonHopsDown, flow.BypassHopsDown, 2},
			{flow.ReasonHopsDrained, flow.BypassHopsDown, 2},
			{flow.ReasonShedding, "", 2},
		} {
			all = bypasses(tunnels, all) // a reload changes nothing
			u := &flow.Usability{}
			if step.problem != "" {
				u.Problems = []flow.Problem{{Reason: step.problem}}
			}
			b := all[name]
			if got, want := b.update(u, time.Now()), step.want != "" && name == "bypassing"; got != want {
				t.Errorf("%s, step %d: bypass %v, want %v", name, i, got, want)
			}
			now := b.state()
			if name != "bypassing" {
				if now != nil || b.atLimits() != (name == "plain") {
					t.Errorf("%s has a bypass: %+v", name, now)
				}
			} else if now.Total != step.total || now.Reason != step.want || now.Since.IsZero() != (step.want == "") {
				t.Errorf("%s, step %d: %+v", name, i, now)
			}
		}
	}
}

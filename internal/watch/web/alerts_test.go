package web

import (
	"slices"
	"strings"
	"testing"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/monitor"
)

// A few retransmissions, and those that the peer had already, make no alert.
func TestRetransmissionAlert(t *testing.T) {
	for name, c := range map[string]struct {
		sent flow.Sent
		want bool
	}{
		"acknowledgements of ssh": {flow.Sent{Bytes: 75_000, Again: 428, Missed: 1}, false},
		"few segments":            {flow.Sent{Bytes: 184_000, Again: 6_826, Missed: 5}, false},
		"needless ones":           {flow.Sent{Bytes: 100e6, Again: 5e6, Missed: 3}, false},
		"a lossy path":            {flow.Sent{Bytes: 100e6, Again: 5e6, Missed: 3450}, true},
	} {
		s := &monitor.Snapshot{Tunnels: []monitor.Tunnel{{Tunnel: flow.Tunnel{Name: "t", State: "listening"}}}}
		s.Tunnels[0].Legs[0].Recent = c.sent
		got := slices.ContainsFunc((&Dashboard{}).headOf(s).Alerts, func(a alert) bool { return strings.Contains(a.Text, "sends 5.0 % of its data again") })
		if got != c.want {
			t.Errorf("%s: an alert: %v", name, got)
		}
	}
}

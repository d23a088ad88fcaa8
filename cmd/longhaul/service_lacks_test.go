//go:build linux

package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"longhaul/internal/run/config"
	"longhaul/test/nettest"
)

func TestConfigNeeds(t *testing.T) {
	const site = `
tunnels:
  - { name: a, listen: "127.0.0.1:6001", forward: "10.0.0.1:22", wan: { congestion_control: haul, user_timeout: 20s }, lan: { congestion_control: reno } }
  - { name: b, listen: "127.0.0.1:6002", forward: "10.0.0.1:22", wan: { congestion_control: haul }, lan: { congestion_control: lh_hybla } }
  - { name: c, listen: "127.0.0.1:6003", forward: "10.0.0.1:22" }
  - { name: d, listen: "127.0.0.1:6004", forward: "10.0.0.1:22", transport: kernel }
`
	c, err := config.Loader{Resolve: config.PlaceholderResolver()}.Parse(t.Context(), "site.yaml", []byte(site))
	nettest.Must(t, err)
	want := []hostNeed{
		{"relay", "splice", "a relay moves data by splice", true},
		{"cc", "reno", "tunnel a uses reno", true},
		{"cc", "haul", "tunnel a uses haul", true},
		{"relay", "user timeout", "tunnel a sets user_timeout", false},
		{"cc", "hybla", "tunnel b uses lh_hybla", true},
		{"cc", "bbr", "tunnel c prefers bbr on the WAN", false},
	}
	if diff := cmp.Diff(want, configNeeds(c), cmp.AllowUnexported(hostNeed{})); diff != "" {
		t.Errorf("needs (-want +got):\n%s", diff)
	}
}

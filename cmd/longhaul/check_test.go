//go:build linux

package main

import (
	"strings"
	"testing"

	"longhaul/internal/check"
)

// A relay's clock that is off is a note below its chain, which is whole all the same.
func TestCheckNotesClocks(t *testing.T) {
	off, well := int64(-7*60), int64(60)
	var b strings.Builder
	writeCheck(&b, check.Report{Tunnel: "t", State: check.Whole, Chains: []check.Chain{{State: check.Whole, Hops: []check.Hop{
		{Kind: check.KindRelay, Host: "relay-b", ClockAheadSeconds: &well},
		{Kind: check.KindRelay, Host: "relay-c", ClockAheadSeconds: &off},
		{Kind: check.KindTarget},
	}}}})
	want := "    the clock of relay-c is 7m0s behind this relay's; timedatectl there and\n    here tells whether it is kept right (NTP)\n"
	if !strings.Contains(b.String(), want) || strings.Contains(b.String(), "clock of relay-b") {
		t.Errorf("want %q in\n%s", want, b.String())
	}
}

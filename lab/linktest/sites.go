package linktest

import (
	"testing"
	"time"

	"longhaul/lab"
	"longhaul/lab/sandbox"
	"longhaul/test/nettest"
)

// Fast is a WAN without a delay for tests.
func Fast() lab.Conditions {
	c := lab.MitreConditions()
	c.RTT, c.RateBps = 4*time.Millisecond, 200e6
	return c
}

// TwoSites builds two sites with a WAN between them. The end of the test removes them.
func TwoSites(t testing.TB, c lab.Conditions) *lab.Lab {
	t.Helper()
	nettest.RequireSandbox(t)
	built, err := lab.Build(lab.TwoSites(c))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := built.Close(); err != nil {
			t.Error(err)
		}
	})
	return built
}

// PrivateRun hides the machine's /run from the programs of a test.
func PrivateRun(t testing.TB) {
	t.Helper()
	nettest.RequireSandbox(t)
	nettest.Must(t, sandbox.PrivateRun())
}

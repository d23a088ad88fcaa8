//go:build timed

package transfers

import (
	"fmt"
	"testing"

	"longhaul/lab/linktest"
	"longhaul/test/nettest"
)

// The end hosts of the report fill their window, and a TCP without that bound
// goes beyond it.
func TestOnlyClassicEndHostsAreHeldToTheirWindow(t *testing.T) {
	nettest.MostOf(t, func() error {
		c, window := classicPath()
		other := goodput(t, c, 16<<20)
		c.ClassicEndHost = true
		switch classic := goodput(t, c, 16<<20); {
		case classic < 0.8*window:
			return fmt.Errorf("classic hosts reach %.1f Mb/s, want just below %.1f", classic/1e6, window/1e6)
		case other < 1.5*window:
			return fmt.Errorf("other hosts reach %.1f Mb/s, want far above the classic ones' window of %.1f", other/1e6, window/1e6)
		}
		return nil
	})
}

// The headline, far below what an idle machine gives.
func TestMitreGain(t *testing.T) {
	linktest.PrivateRun(t)
	binary := nettest.Longhaul(t)
	nettest.MostOf(t, func() error {
		result, err := Mitre().Run(t.Context(), Options{Program: binary, Quick: true, Cases: []string{"direct", "relay"}, Seed: 7})
		if err != nil {
			return err
		}
		direct, relay := result.Cases[0].GoodputBps, result.Cases[1].GoodputBps
		t.Logf("direct %.1f Mb/s, relay %.1f Mb/s", direct/1e6, relay/1e6)
		if relay < 5*direct {
			return fmt.Errorf("the relays bring %.1f Mb/s, the direct path %.1f: want five times as much", relay/1e6, direct/1e6)
		}
		return nil
	})
}

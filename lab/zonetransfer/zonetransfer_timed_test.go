//go:build timed

package zonetransfer

import (
	"fmt"
	"testing"

	"longhaul/lab/linktest"
	"longhaul/test/nettest"
)

// A secondary's question takes three round trips at least: connect, SOA,
// transfer. What is timed begins when the program sees the first packet, and is
// close to that. A path that is too slow carries some of a zone.
func TestTransfersAreTimed(t *testing.T) {
	nettest.RequireProgram(t, "knotd", "knot")
	linktest.PrivateRun(t)
	nettest.MostOf(t, func() error {
		z := quickZone()
		z.Cases = []string{"direct-cubic"}
		result, err := z.Run(t.Context())
		if err != nil {
			return err
		}
		if c := result.Cases[0]; *c.AXFRSeconds < 0.06 || *c.IXFRSecondsP50 < 0.06 {
			return fmt.Errorf("AXFR in %v s, IXFR in %v s, want 0.06 s or more", *c.AXFRSeconds, *c.IXFRSecondsP50)
		}
		slow(&z)
		if result, err = z.Run(t.Context()); err != nil {
			return err
		}
		if c := result.Cases[0]; c.AXFRBps < 10e3 {
			return fmt.Errorf("100 kB over 400 kb/s for a second: %.0f bit/s, want 10000 or more", c.AXFRBps)
		}
		return nil
	})
}

//go:build timed

package daemon

import (
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
)

// TestTunnelHoldsItsRate sends on two connections of a tunnel with brutal. Their sum
// is its rate, which a reload changes for both.
func TestTunnelHoldsItsRate(t *testing.T) {
	shared := sharedRates(t, ratedCC)
	l := shared("80Mbit")
	var received atomic.Int64
	sink := nettest.ListenTCP(t, "127.0.0.1:0")
	t.Cleanup(tcpserver.Serve(sink, func(c net.Conn) {
		b := make([]byte, 64<<10)
		for {
			n, err := c.Read(b)
			received.Add(int64(n))
			if err != nil {
				return
			}
		}
	}))
	for range 2 {
		pumpThrough(t, l, sink.Addr().String())
	}
	rateIs := func(bps float64) {
		t.Helper()
		nettest.MostOf(t, func() error {
			from, begun := received.Load(), time.Now()
			<-time.After(time.Second) // the measured time
			got := float64(received.Load()-from) * 8 / time.Since(begun).Seconds()
			if got < 0.8*bps || got > 1.1*bps {
				return fmt.Errorf("two connections have %.1f Mb/s together, of %.1f", got/1e6, bps/1e6)
			}
			return nil
		})
	}
	rateIs(80e6)
	shared("40Mbit")
	rateIs(40e6)
}

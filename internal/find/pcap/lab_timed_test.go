//go:build timed

package pcap

import (
	"errors"
	"testing"

	"longhaul/internal/sys/tcpinfo"
	"longhaul/test/nettest"
)

// TestTimesAgainstKernel compares the times and rates of captures of real
// transfers with the sender's tcp_info.
func TestTimesAgainstKernel(t *testing.T) {
	nettest.RequireRoot(t) // tcpdump drops privileges, impossible in a single-user namespace
	nettest.RequireProgram(t, "tcpdump", "tcpdump")
	for name, test := range scenarios() {
		t.Run(name, func(t *testing.T) {
			nettest.RequireSandbox(t)
			nettest.MostOf(t, func() error {
				got := transferIn(t, test.conditions, test.to, test.bytes, test.pause, test.midway)
				return timesAgree(&got)
			})
		})
	}
}

func timesAgree(got *transfer) error {
	want, info, far := &got.info, lastInfo(&got.atSender, 0), lastInfo(&got.atReceiver, 0)
	rate := info.DeliveryRateBps
	if got.pauses && want.DeliveryRateAppLimited {
		rate = highestRate(&got.atSender, 0) // the kernel keeps the highest while the application limits the rate
	}
	var timeouts error
	if want.Has(tcpinfo.FieldTotalRTO) {
		timeouts = within("timeouts", float64(info.TotalRTO), float64(want.TotalRTO), 0.34, 0)
	}
	return errors.Join(timeouts,
		within("reordering seen", float64(info.ReordSeen), float64(want.ReordSeen), 0.15, 2),
		within("at the receiver, reordering seen", float64(far.ReordSeen), float64(want.ReordSeen), 0.15, 2),
		within("least RTT µs", float64(info.MinRTT.Microseconds()), float64(want.MinRTT.Microseconds()), 0.05, 0),
		within("smoothed RTT µs", float64(info.RTT.Microseconds()), float64(want.RTT.Microseconds()), 0.15, 500),
		within("busy ms", float64(info.BusyTime.Milliseconds()), float64(want.BusyTime.Milliseconds()), 0.05, 50),
		within("limited by the window, ms", float64(info.RwndLimited.Milliseconds()), float64(want.RwndLimited.Milliseconds()), 0, float64(want.BusyTime.Milliseconds())/10+50),
		within("delivery rate", float64(rate), float64(want.DeliveryRateBps), 0.5, 0),
		within("at the receiver, least RTT µs", float64(far.MinRTT.Microseconds()), float64(want.MinRTT.Microseconds()), 0.05, 0),
	)
}

// highestRate is the highest delivery rate of a direction.
func highestRate(r *Result, direction int) (bps int64) {
	samples := r.Connections[0].Directions[direction].Observation.Samples
	for i := range samples {
		bps = max(bps, samples[i].Info.DeliveryRateBps)
	}
	return bps
}

package transfers

import (
	"context"
	"net/netip"
	"time"

	"longhaul/lab"
	"longhaul/lab/tcpcc"
)

// lossyLFN sends with one congestion control after the other over a path that loses a
// tenth of the packets, all with buffers that do not limit them.
func lossyLFN() Experiment {
	conditions := lab.LossyConditions()
	conditions.ClassicEndHost = false
	// What waits behind gaps is charged to the buffers with its overhead.
	bdp := int(float64(conditions.RateBps) / 8 * conditions.RTT.Seconds())
	e := Experiment{
		Name:       "lossy-lfn",
		Summary:    "congestion control algorithms on a lossy long fat path: 100 Mb/s, 300 ms, 10 % loss",
		Source:     "DNS zone transfers to far name servers: 10 KB/s with CUBIC, 15-20 with Illinois, 60-80 with Hybla",
		Conditions: conditions,
	}
	for _, one := range []struct{ name, reference string }{
		{"cubic", "10 KB/s"}, {"reno", ""}, {"hybla", "60-80 KB/s"}, {"illinois", "15-20 KB/s"}, {"bbr", ""}, {"bbr3", ""}, {"haul", ""},
	} {
		e.Cases = append(e.Cases, Case{
			Name: one.name, About: "host to host", Reference: one.reference,
			Bytes: 4 << 30, QuickBytes: 4 << 30, During: time.Minute, QuickDuring: 15 * time.Second,
			Sockets: lab.Sockets{CongestionControl: one.name, BufferBytes: 24 * bdp},
			Missing: func() string { return tcpcc.Missing(one.name) },
			Setup: func(context.Context, *lab.Stage) (netip.AddrPort, error) {
				return netip.AddrPortFrom(lab.HostB, bulkPort), nil
			},
		})
	}
	return e
}

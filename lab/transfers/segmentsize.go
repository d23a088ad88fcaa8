package transfers

import (
	"context"
	"net/netip"
	"strconv"
	"time"

	"longhaul/lab"
	"longhaul/lab/hosts"
)

// segmentSize is the experiment with hosts that used segments of 536 bytes
// between the subnets of one ATM network: each segment costs a host the same
// time whatever its size, and pays for whole cells. The cure is the metric of
// the route. Two cases of a narrow tunnel are added, in which segments are too
// large and nobody tells.
//
// The report's two hosts were not alike. The one that sent with pacing at the
// ATM interface got 10 Mb/s through in segments of 576 bytes, 2170 a second,
// the other one 22.4 Mb/s in segments of 536, 5220 a second; those are the
// bounds here. Neither sent more than 76.4 Mb/s in the largest segments, which
// take 85 Mb/s of cells; so much is the rate.
func segmentSize() Experiment {
	const (
		MiB = 1 << 20

		oneHost, otherHost = 5220, 2170 // packets per second
	)
	atm := lab.Conditions{
		RTT: 1950 * time.Microsecond, RateBps: 85.2e6, ATM: true, PacketsPerSecond: oneHost,
		QueueBytes: 256 << 10, MTUAB: 9180, MTUBA: 9180, LANMTU: 9180, Seed: 1,
	}
	e := Experiment{
		Name:       "segment-size",
		Summary:    "small segments over ATM, hosts with a bounded packet rate, and a narrow tunnel",
		Source:     "Evans: AAI Performance Experiments, University of Kansas 1995",
		Conditions: atm,
	}
	toB := netip.AddrPortFrom(lab.WANB, bulkPort)
	hostOfA := netip.PrefixFrom(lab.WANA, 32)
	for _, c := range []struct {
		name, about string
		mss         int  // that the receiver announces
		cured       bool // by the route's metric
		megabits    float64
		report      string
		bytes       int64
		sockets     lab.Sockets
		adjust      func(*lab.Conditions)
	}{
		{name: "9180", about: "large segments, by the route", mss: 536, cured: true, megabits: 76.4, bytes: 96 * MiB,
			sockets: lab.Sockets{WindowBytes: 131072}},
		{name: "9180-paced-70", about: "the same, paced at 70 Mb/s", mss: 536, cured: true, megabits: 65.9, bytes: 80 * MiB,
			sockets: lab.Sockets{WindowBytes: 131072, PacingBps: 70e6}, adjust: func(c *lab.Conditions) { c.PacketsPerSecond = otherHost }},
		{name: "9180-paced-25", about: "large segments, paced at 25 Mb/s", mss: 576, cured: true, megabits: 24.5, bytes: 32 * MiB,
			sockets: lab.Sockets{WindowBytes: 131072, PacingBps: 25e6}, adjust: func(c *lab.Conditions) { c.PacketsPerSecond = otherHost }},
		{name: "536", about: "segments of 536 bytes", mss: 536, megabits: 22.4, bytes: 28 * MiB,
			sockets: lab.Sockets{WindowBytes: 131072}},
		{name: "536@29ms", about: "536 bytes, 29 ms, window of 51200 bytes", mss: 536, megabits: 12, report: "1.5 to 12 Mb/s", bytes: 16 * MiB,
			sockets: lab.Sockets{WindowBytes: 51200}, adjust: func(c *lab.Conditions) { c.RTT = 29 * time.Millisecond }},
		{name: "576-paced-25", about: "segments of 576 bytes, paced at 25 Mb/s", mss: 576, megabits: 10, bytes: 12 * MiB,
			sockets: lab.Sockets{WindowBytes: 131072, PacingBps: 25e6}, adjust: func(c *lab.Conditions) { c.PacketsPerSecond = otherHost }},
		{name: "536-paced-70", about: "segments of 536 bytes, paced at 70 Mb/s", mss: 536, megabits: 2.7, bytes: 12 * MiB,
			sockets: lab.Sockets{WindowBytes: 131072, PacingBps: 70e6}, adjust: func(c *lab.Conditions) { c.PacketsPerSecond = otherHost }},
	} {
		added := Case{
			Name: c.name, About: c.about,
			Reference: c.report, ReferenceBps: &[2]float64{c.megabits * 1e6, c.megabits * 1e6},
			Bytes: c.bytes, QuickBytes: c.bytes / 4,
			Adjust: c.adjust, From: "relay-a", To: "relay-b", Sockets: c.sockets, Capture: true,
			Setup: func(ctx context.Context, s *lab.Stage) (netip.AddrPort, error) {
				// What the report's hosts did by themselves.
				err := s.Host("relay-b").Route(hosts.Route{To: hostOfA, Device: "wan", TCP: hosts.Metrics{AdvMSS: c.mss, CongestionControl: lab.StockCongestionControl}})
				if err == nil && c.cured {
					err = s.Longhaul(ctx, "relay-b", "route", "set", "--to", hostOfA.String(), "--advmss", strconv.Itoa(9180-20-20))
				}
				return toB, err
			},
		}
		if c.report == "" {
			added.Reference = strconv.FormatFloat(c.megabits, 'g', -1, 64) + " Mb/s"
		}
		e.Cases = append(e.Cases, added)
	}

	tunnel := func(c *lab.Conditions) {
		*c = lab.Conditions{RTT: 20 * time.Millisecond, RateBps: 100e6, QueueBDP: 1, MTUAB: 1300, MTUBA: 1300, LANMTU: 1500, Seed: c.Seed}
	}
	e.Cases = append(e.Cases, Case{
		Name: "tunnel", About: "a tunnel of 1300 bytes behind a LAN of 1500, ICMP blocked",
		Bytes: 96 * MiB, QuickBytes: 24 * MiB, GiveUp: 10 * time.Second,
		Adjust: tunnel, Capture: true,
		Setup: func(_ context.Context, s *lab.Stage) (netip.AddrPort, error) {
			return atHostB, s.Host("relay-a").BlockICMP()
		},
	}, Case{
		Name: "tunnel-clamped", About: "the same, MSS clamped to the path MTU at the tunnel",
		Bytes: 96 * MiB, QuickBytes: 24 * MiB,
		Adjust: tunnel, Capture: true, Missing: needsBPF,
		Setup: func(ctx context.Context, s *lab.Stage) (netip.AddrPort, error) {
			if err := s.Host("relay-a").BlockICMP(); err != nil {
				return netip.AddrPort{}, err
			}
			return atHostB, s.Longhaul(ctx, "relay-a", "mss", "set", "--dev", "wan", "--clamp-to-pmtu")
		},
	})
	return e
}

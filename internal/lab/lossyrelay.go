package lab

import (
	"context"
	"net/netip"
	"strconv"
	"time"

	"longhaul/internal/lab/link"
)

// tunnelPort is where a tunnel's far end takes datagrams.
const tunnelPort = 4000

// lossyRelay sets a relay pair beside what operators of lossy paths turn to
// today: a tunnel over UDP that repairs loss in user space.
func lossyRelay() Experiment {
	const MiB = 1 << 20
	conditions := MitreConditions()
	conditions.RTT, conditions.RateBps = 300*time.Millisecond, 100e6
	conditions.Loss = link.Loss{Probability: 0.1}
	relays := func(cc string) func(context.Context, *stage) (netip.AddrPort, error) {
		return func(ctx context.Context, s *stage) (netip.AddrPort, error) {
			if err := s.allowBuffers(); err != nil {
				return netip.AddrPort{}, err
			}
			return s.relays(ctx, "--wan-cc", cc)
		}
	}
	return Experiment{
		Name:       "lossy-relay",
		Summary:    "a pair of relays, and a tunnel over UDP, where 10 % of the packets are lost",
		Source:     "the conditions of lossy-lfn: 300 ms, 100 Mb/s",
		Conditions: conditions,
		Cases: []Case{
			{
				Name: "direct", About: "host to host",
				Bytes: MiB, QuickBytes: MiB / 2,
				Setup: func(context.Context, *stage) (netip.AddrPort, error) {
					return netip.AddrPortFrom(HostB, bulkPort), nil
				},
			}, {
				Name: "bbr", About: "longhaul pair with congestion control bbr",
				Bytes: 16 * MiB, QuickBytes: 4 * MiB,
				Missing: func() string { return needsCC("bbr") },
				Setup:   relays("bbr"),
			}, {
				Name: "haul", About: "longhaul pair with congestion control haul",
				Bytes: 512 * MiB, QuickBytes: 64 * MiB,
				Missing: func() string { return needsCC("haul") },
				Setup:   relays("haul"),
			}, {
				Name: "kcptun", About: "kcptun pair, parity 10+3, no encryption",
				Bytes: 256 * MiB, QuickBytes: 32 * MiB,
				Missing: func() string { return needs("kcptun-server", "kcptun") },
				Setup:   kcptun,
			},
		},
	}
}

// kcptun starts a KCP tunnel between the relay hosts, with the fastest of its
// modes, windows for the path, and nothing that costs it CPU without need.
func kcptun(ctx context.Context, s *stage) (netip.AddrPort, error) {
	path := s.Link(WAN).Settings(link.AToB)
	window := int(float64(path.RateBps) / 8 * 2 * path.Delay.Seconds() / 1350 * 2)
	common := []string{
		"--mode", "fast3", "--crypt", "none", "--nocomp", "--mtu", "1350", "--datashard", "10", "--parityshard", "3",
		"--sndwnd", strconv.Itoa(window), "--rcvwnd", strconv.Itoa(window), "--sockbuf", "16777217", "--smuxver", "2", "--streambuf", "33554432", "--smuxbuf", "33554432",
	}
	far := netip.AddrPortFrom(RelayB, tunnelPort)
	if err := s.start(ctx, "relay-b", tunnelPort, program("kcptun-server"), append([]string{"--listen", far.String(), "--target", atHostB.String()}, common...)...); err != nil {
		return netip.AddrPort{}, err
	}
	if err := s.start(ctx, "relay-a", relayPort, program("kcptun-client"), append([]string{"--localaddr", atRelayA.String(), "--remoteaddr", far.String()}, common...)...); err != nil {
		return netip.AddrPort{}, err
	}
	return atRelayA, nil
}

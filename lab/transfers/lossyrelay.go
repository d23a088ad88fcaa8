package transfers

import (
	"context"
	"net/netip"
	"strconv"

	"longhaul/lab"
	"longhaul/lab/link"
	"longhaul/lab/tcpcc"
)

// tunnelPort is where a tunnel's far end takes datagrams.
const tunnelPort = 4000

// lossyRelay sets a relay pair beside what operators of lossy paths turn to
// today: a tunnel over UDP that repairs loss in user space.
func lossyRelay() Experiment {
	const MiB = 1 << 20
	relays := func(cc string) func(context.Context, *lab.Stage) (netip.AddrPort, error) {
		return func(ctx context.Context, s *lab.Stage) (netip.AddrPort, error) {
			if err := s.AllowBuffers(); err != nil {
				return netip.AddrPort{}, err
			}
			return s.StartRelays(ctx, atHostB, "--wan-cc", cc)
		}
	}
	return Experiment{
		Name:       "lossy-relay",
		Summary:    "a pair of relays, and a tunnel over UDP, where 10 % of the packets are lost",
		Source:     "the conditions of lossy-lfn: 300 ms, 100 Mb/s",
		Conditions: lab.LossyConditions(),
		Cases: []Case{
			{
				Name: "direct", About: "host to host",
				Bytes: MiB, QuickBytes: MiB / 2,
				Setup: func(context.Context, *lab.Stage) (netip.AddrPort, error) {
					return netip.AddrPortFrom(lab.HostB, bulkPort), nil
				},
			}, {
				Name: "bbr", About: "longhaul pair with congestion control bbr",
				Bytes: 16 * MiB, QuickBytes: 4 * MiB,
				Missing: func() string { return tcpcc.Missing("bbr") },
				Setup:   relays("bbr"),
			}, {
				Name: "haul", About: "longhaul pair with congestion control haul",
				Bytes: 512 * MiB, QuickBytes: 64 * MiB,
				Missing: func() string { return tcpcc.Missing("haul") },
				Setup:   relays("haul"),
			}, {
				Name: "kcptun", About: "kcptun pair, parity 10+3, no encryption",
				Bytes: 256 * MiB, QuickBytes: 32 * MiB,
				Missing: func() string { return lab.MissingProgram("kcptun-server", "kcptun") },
				Setup:   kcptun,
			},
		},
	}
}

// kcptun starts a KCP tunnel between the relay hosts, with the fastest of its
// modes, windows for the path, and nothing that costs it CPU without need.
func kcptun(ctx context.Context, s *lab.Stage) (netip.AddrPort, error) {
	path := s.Link(lab.WAN).Settings(link.AToB)
	window := int(float64(path.RateBps) / 8 * 2 * path.Delay.Seconds() / 1350 * 2)
	common := []string{
		"--mode", "fast3", "--crypt", "none", "--nocomp", "--mtu", "1350", "--datashard", "10", "--parityshard", "3",
		"--sndwnd", strconv.Itoa(window), "--rcvwnd", strconv.Itoa(window), "--sockbuf", "16777217", "--smuxver", "2", "--streambuf", "33554432", "--smuxbuf", "33554432",
	}
	far := netip.AddrPortFrom(lab.RelayB, tunnelPort)
	return startPair(ctx, s, tunnelPort,
		append([]string{lab.FindProgram("kcptun-server"), "--listen", far.String(), "--target", atHostB.String()}, common...),
		append([]string{lab.FindProgram("kcptun-client"), "--localaddr", lab.RelayAListens.String(), "--remoteaddr", far.String()}, common...))
}

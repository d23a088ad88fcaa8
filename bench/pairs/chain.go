package main

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	"longhaul/bench/kit"
	"longhaul/internal/words/stats"
)

// bannerTunnel is the number of the tunnel whose target speaks first, refusedTunnel elsewhere.
const bannerTunnel = refusedTunnel

// moreRounds is the bound of what a chain may take longer than one pair to the first byte: a round trip of
// each of its WANs, and a tenth for three processes on one machine.
const moreRounds = 1.1

// chainRateBps is the rate of each WAN, on which the first bytes of a flow take no time.
const chainRateBps = 1e9

// The figures of new flows.
const (
	connectFigure = "connect, median"
	askedFigure   = "first byte, the client speaks first"
	bannerFigure  = "first byte, the target speaks first"
)

// banner greets each client.
func banner(conn net.Conn) {
	if write(conn, []byte{1}) == nil {
		_ = readOne(conn) // the client's end
	}
}

// chain times the first byte of new flows, for clients that speak first and for targets that do.
func chain(rtt time.Duration) func(context.Context, kit.Options, string, int, func(kit.Measured)) error {
	return func(ctx context.Context, o kit.Options, way string, _ int, note func(kit.Measured)) error {
		w, err := buildWorld(ctx, o, sites(conditions(rtt, chainRateBps), way), way, target{}.serve, settings{tunnels: 2})
		if err != nil {
			return err
		}
		defer w.close()
		if err := w.Serve(ctx, "host-b", targetPort+bannerTunnel, banner); err != nil {
			return err
		}
		return w.firstBytes(ctx, kit.Pick(o, 50, 8), note)
	}
}

// firstBytes times n flows of each kind, one after the other, on connections that are warm.
func (w *world) firstBytes(ctx context.Context, n int, note func(kit.Measured)) error {
	all := map[string][]float64{}
	for i := range n + 1 {
		for number, name := range []string{askedFigure, bannerFigure} {
			connected, first, err := w.firstByte(ctx, uint16(number))
			if err != nil {
				return w.errorf("%s: %w", name, err)
			}
			if i == 0 {
				continue // it waits for the sessions
			}
			all[connectFigure] = append(all[connectFigure], connected.Seconds())
			all[name] = append(all[name], first.Seconds())
		}
	}
	for name, took := range all {
		slices.Sort(took)
		all[name] = took
	}
	note(kit.Measured{Name: "new flows", Value: float64(2 * n)})
	note(kit.Measured{Name: connectFigure, Unit: "s", Value: stats.At(all[connectFigure], 0.5)})
	for _, name := range []string{askedFigure, bannerFigure} {
		note(kit.Measured{Name: name + ", median", Unit: "s", Value: stats.At(all[name], 0.5)})
		note(kit.Measured{Name: name + ", 10th percentile", Unit: "s", Value: stats.At(all[name], 0.1)})
		note(kit.Measured{Name: name + ", 90th percentile", Unit: "s", Value: stats.At(all[name], 0.9)})
	}
	return nil
}

// firstByte makes a flow through a tunnel, and returns the times from the begin to the connection, and
// to the target's first byte.
func (w *world) firstByte(ctx context.Context, tunnel uint16) (connected, first time.Duration, err error) {
	began := time.Now()
	conn, err := w.Host("host-a").DialTCP(ctx, netip.AddrPortFrom(w.to.Addr(), w.to.Port()+tunnel), patience)
	if err != nil {
		return 0, 0, err
	}
	defer conn.Close()
	connected = time.Since(began)
	err = conn.SetDeadline(began.Add(patience))
	if tunnel != bannerTunnel {
		err = errors.Join(err, write(conn, request(askSend, 1)))
	}
	if err == nil {
		err = readOne(conn)
	}
	return connected, time.Since(began), err
}

// compareChains adds what the second pair adds, in round trips of both WANs together.
func compareChains(rtt time.Duration) func(*kit.CaseResult) {
	return func(c *kit.CaseResult) {
		for _, name := range []string{askedFigure, bannerFigure} {
			single, both := c.Of(WayPair, name+", median"), c.Of(WayChain, name+", median")
			for run := range min(len(single), len(both)) {
				c.Add(WayChain, kit.Measured{Name: name + ", beyond one pair", Unit: "RTT of both WANs",
					Value: (both[run] - single[run]) / (2 * rtt).Seconds(), Bound: kit.AtMost(moreRounds)})
			}
		}
	}
}

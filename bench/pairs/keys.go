package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"longhaul/lab"
	"longhaul/lab/relays"
)

// The names that the sites give each other.
const (
	siteA = "site-a"
	siteB = "site-b"
	siteH = "site-h" // the hub
)

// farTunnel is the far relay's n-th tunnel: 0, or refusedTunnel. With wans it listens on the
// second WAN as well.
func farTunnel(way string, n uint16, wans bool) string {
	listen := fmt.Sprint(netip.AddrPortFrom(lab.WANB, port+n))
	switch {
	case way == WayChain:
		listen = fmt.Sprint(netip.AddrPortFrom(lab.WANB2, port+n))
	case wans:
		listen = fmt.Sprintf("[%s, %v]", listen, netip.AddrPortFrom(lab.WANB2, port+n))
	}
	t := fmt.Sprintf("listen: %v, forward: %v", listen, netip.AddrPortFrom(lab.HostB, targetPort+n))
	switch way {
	case WayPlain:
		return t
	case WayClear, WayClearNoResume, WayClearLanes:
		return t + ", pair_from: {peer: " + siteA + ", encrypt: off}"
	case WayChain:
		return t + ", pair_from: " + siteH
	}
	return t + ", pair_from: " + siteA
}

// hubTunnel is the hub's, which is the far end of one pair and the near end of the next.
func hubTunnel(n uint16, more string) string {
	return fmt.Sprintf("listen: %v, pair_from: %s, forward: %v, pair: {peer: %s%s}",
		netip.AddrPortFrom(lab.WANB, port+n), siteA, netip.AddrPortFrom(lab.WANB2, port+n), siteB, more)
}

// nearTunnel is the near relay's, with more settings of its pair behind the peer.
func nearTunnel(way string, n uint16, more string) string {
	t := fmt.Sprintf("listen: %v, forward: %v", netip.AddrPortFrom(lab.RelayA, port+n), netip.AddrPortFrom(lab.WANB, port+n))
	peer := siteB
	switch way {
	case WayPlain:
		return t
	case WayChain:
		peer = siteH
	case WayClear:
		more += ", encrypt: off"
	case WayNoResume:
		more += ", resume: off"
	case WayClearNoResume:
		more += ", encrypt: off, resume: off"
	case WayLanes:
		more += manyLanes
	case WayClearLanes:
		more += ", encrypt: off" + manyLanes
	}
	return t + ", pair: {peer: " + peer + more + "}"
}

// manyLanes is the setting of pairs with several lanes.
const manyLanes = ", lanes: 8"

// keys is the directory of a host's keys.
func (w *world) keys(host string) string { return filepath.Join(w.Dir, "keys-"+host) }

// makeKeys introduces the sites.
func (w *world) makeKeys(ctx context.Context) error {
	peer := func(host, name string) relays.Peer {
		return relays.Peer{Host: w.Host(host), Name: name, Keys: w.keys(host)}
	}
	near, far := peer("relay-a", siteA), peer("relay-b", siteB)
	if w.way != WayChain {
		return relays.Introduce(ctx, w.Program, far, near, addressFar)
	}
	hub := peer(lab.Hub, siteH)
	if err := relays.Introduce(ctx, w.Program, hub, near, addressFar); err != nil {
		return err
	}
	return relays.Introduce(ctx, w.Program, far, hub, netip.AddrPortFrom(lab.WANB2, port).String())
}

// missing says why a way cannot run on this machine; empty if it can.
func missing(way string) string {
	switch way {
	case WayHAProxy:
		return lab.MissingProgram("haproxy", "haproxy")
	case WayStunnel:
		return lab.MissingProgram("stunnel4", "stunnel4")
	case WayWireGuard:
		if reason := lab.MissingProgram("wireguard-go", "wireguard-go"); reason != "" {
			return reason
		}
		if _, err := os.Stat("/dev/net/tun"); err != nil {
			return "needs /dev/net/tun"
		}
	case WayMPTCP:
		return missingMPTCP()
	}
	return ""
}

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
)

// farTunnel is the far relay's n-th tunnel: 0, or refusedTunnel. With wans it listens on the
// second WAN as well.
func farTunnel(way string, n uint16, wans bool) string {
	listen := fmt.Sprint(netip.AddrPortFrom(lab.WANB, port+n))
	if wans {
		listen = fmt.Sprintf("[%s, %v]", listen, netip.AddrPortFrom(lab.WANB2, port+n))
	}
	t := fmt.Sprintf("listen: %v, forward: %v", listen, netip.AddrPortFrom(lab.HostB, targetPort+n))
	switch way {
	case WayPlain:
		return t
	case WayClear, WayClearNoResume, WayClearLanes:
		return t + ", pair_from: {peer: " + siteA + ", encrypt: off}"
	}
	return t + ", pair_from: " + siteA
}

// nearTunnel is the near relay's, with more settings of its pair behind the peer.
func nearTunnel(way string, n uint16, more string) string {
	t := fmt.Sprintf("listen: %v, forward: %v", netip.AddrPortFrom(lab.RelayA, port+n), netip.AddrPortFrom(lab.WANB, port+n))
	switch way {
	case WayPlain:
		return t
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
	return t + ", pair: {peer: " + siteB + more + "}"
}

// manyLanes is the setting of pairs with several lanes.
const manyLanes = ", lanes: 8"

// keys is the directory of a host's keys.
func (w *world) keys(host string) string { return filepath.Join(w.Dir, "keys-"+host) }

// makeKeys introduces the two sites.
func (w *world) makeKeys(ctx context.Context) error {
	far := relays.Peer{Host: w.Host("relay-b"), Name: siteB, Keys: w.keys("relay-b")}
	near := relays.Peer{Host: w.Host("relay-a"), Name: siteA, Keys: w.keys("relay-a")}
	return relays.Introduce(ctx, w.Program, far, near, addressFar)
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

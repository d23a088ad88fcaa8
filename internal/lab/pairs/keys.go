package pairs

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"longhaul/internal/lab"
	"longhaul/internal/lab/relays"
)

// The names that the sites give each other.
const (
	siteA = "site-a"
	siteB = "site-b"
)

// farTunnel is the far relay's n-th tunnel: 0, or refusedTunnel.
func farTunnel(way string, n uint16) string {
	t := fmt.Sprintf("listen: %v, forward: %v", netip.AddrPortFrom(lab.WANB, port+n), netip.AddrPortFrom(lab.HostB, targetPort+n))
	if way == WayPlain {
		return t
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
	}
	return t + ", pair: {peer: " + siteB + more + "}"
}

// keys is the directory of a host's keys.
func (w *world) keys(host string) string { return filepath.Join(w.dir, "keys-"+host) }

// makeKeys introduces the two sites.
func (w *world) makeKeys(ctx context.Context) error {
	far := relays.Peer{Host: w.Host("relay-b"), Name: siteB, Keys: w.keys("relay-b")}
	near := relays.Peer{Host: w.Host("relay-a"), Name: siteA, Keys: w.keys("relay-a")}
	return relays.Introduce(ctx, w.Program, far, near, addressFar)
}

// missing says why a way cannot run on this machine; empty if it can.
func missing(ctx context.Context, o Options, way string) string {
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
	case WayPair, WayClear:
		return refusedBy(ctx, o.Program, way)
	}
	return ""
}

// refusedBy says why this longhaul's configuration has no such pair.
func refusedBy(ctx context.Context, program, way string) string {
	file := filepath.Join("/run", "pairs-"+way+".yaml")
	text := fmt.Sprintf("tunnels:\n  - {name: main, %s}\n", nearTunnel(way, 0, ""))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err.Error()
	}
	defer os.Remove(file)
	out, err := exec.CommandContext(ctx, program, "config", "check", file).CombinedOutput()
	if err == nil {
		return ""
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return strings.TrimPrefix(first, "longhaul: "+file+":")
}

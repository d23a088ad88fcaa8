package main

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"longhaul/lab"
	"longhaul/lab/hosts"
)

const (
	wireGuardPort = 51820
	// wireGuardSockets is where wireguard-go takes its configuration, in the form of
	// https://www.wireguard.com/xplatform/.
	wireGuardSockets = "/var/run/wireguard"
)

// wireGuardEnd is one end of the VPN.
type wireGuardEnd struct {
	host, device string
	address      netip.Addr // in the VPN
	wan          netip.Addr
	site         netip.Prefix // behind it
	key          *ecdh.PrivateKey
}

// startWireGuard makes a VPN between the relays' hosts, over which the hosts of both
// sites reach each other.
func (w *world) startWireGuard(ctx context.Context) error {
	ends := [2]*wireGuardEnd{
		{host: "relay-b", device: "vpn-b", address: netip.MustParseAddr("10.99.0.2"), wan: lab.WANB, site: netip.PrefixFrom(lab.HostB, 24).Masked()},
		{host: "relay-a", device: "vpn-a", address: netip.MustParseAddr("10.99.0.1"), wan: lab.WANA, site: netip.PrefixFrom(lab.HostA, 24).Masked()},
	}
	for _, e := range ends {
		var err error
		if e.key, err = ecdh.X25519().GenerateKey(rand.Reader); err != nil {
			return err
		}
		socket := wireGuardSockets + "/" + e.device + ".sock"
		ready := func() (bool, error) {
			_, err := os.Stat(socket)
			return err == nil, nil
		}
		if _, err := w.StartUntil(ctx, e.host, "make "+socket, ready, lab.FindProgram("wireguard-go"), "-f", e.device); err != nil {
			return err
		}
	}
	for i, e := range ends {
		if err := e.join(ends[1-i]); err != nil {
			return fmt.Errorf("wireguard-go on %s: %w", e.host, err)
		}
		h := w.Host(e.host)
		if err := h.Address(e.device, netip.PrefixFrom(e.address, 24)); err != nil {
			return err
		}
		if err := h.Up(e.device); err != nil {
			return err
		}
	}
	for i, e := range ends {
		route := hosts.Route{To: ends[1-i].site, Via: ends[1-i].address, Device: e.device}
		if err := w.Host(e.host).Route(route); err != nil {
			return err
		}
	}
	return nil
}

// join configures an end to reach the other.
func (e *wireGuardEnd) join(other *wireGuardEnd) error {
	conn, err := net.DialTimeout("unix", wireGuardSockets+"/"+e.device+".sock", patience)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, err = fmt.Fprintf(conn, "set=1\nprivate_key=%s\nlisten_port=%d\npublic_key=%s\nendpoint=%v\nallowed_ip=%v\nallowed_ip=%v/32\n\n",
		hex.EncodeToString(e.key.Bytes()), wireGuardPort, hex.EncodeToString(other.key.PublicKey().Bytes()),
		netip.AddrPortFrom(other.wan, wireGuardPort), other.site, other.address)
	if err != nil {
		return err
	}
	// The answer ends with an empty line.
	answer, err := io.ReadAll(io.LimitReader(conn, int64(len("errno=0\n\n"))))
	if err == nil && !strings.HasPrefix(string(answer), "errno=0\n") {
		err = fmt.Errorf("it refuses its configuration: %q", answer)
	}
	return err
}

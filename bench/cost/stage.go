package main

import (
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
)

// hostSettings are what every host of the comparison is given, so that the
// figures do not depend on how this machine is set up: a congestion control
// without pacing, which a relay that sets none gets on its loopback legs (Reno
// is the one that every kernel lets a namespace choose), and local ports
// enough for new connections at full speed.
var hostSettings = map[string]string{
	"/proc/sys/net/ipv4/tcp_congestion_control": "reno",
	"/proc/sys/net/ipv4/ip_local_port_range":    "10240 65535",
}

// prepareHost makes the fresh network namespace that this process is in one
// with a loopback and those settings.
func prepareHost() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find the loopback device: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set the loopback device up: %w", err)
	}
	for path, value := range hostSettings {
		if err := os.WriteFile(path, []byte(value), 0); err != nil {
			return fmt.Errorf("set %s to %s: %w", path, value, err)
		}
	}
	return nil
}

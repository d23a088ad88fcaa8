package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"github.com/vishvananda/netlink"

	"longhaul/lab"
	"longhaul/lab/hosts"
)

func missingNAT() string { return lab.MissingProgram("nft", "nftables") }

// The addresses of the near site behind a NAT.
var natAddresses = [...]netip.Addr{netip.MustParseAddr("10.30.34.1"), netip.MustParseAddr("10.30.34.2")}

// translate has a NAT before the near relay give its connections an address.
func (w *world) translate(ctx context.Context, to netip.Addr) error {
	near, far := w.Host("relay-a"), w.Host("relay-b")
	single := netip.PrefixFrom(to, to.BitLen())
	// What comes for a connection that the NAT does not know is dropped.
	err := errors.Join(far.Route(hosts.Route{To: single, Device: lab.WAN}), near.Blackhole(single))
	if err != nil {
		return err
	}
	var said strings.Builder
	cmd := exec.CommandContext(ctx, lab.FindProgram("nft"), "-f", "-")
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`table ip lab-nat {}
delete table ip lab-nat
table ip lab-nat {
	chain out {
		type nat hook postrouting priority 100;
		oifname "%s" snat to %v
	}
}
`, lab.WAN, to))
	cmd.Stderr = &said
	if err := near.Start(cmd); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("nft on %s: %w: %s", near.Name, err, said.String())
	}
	return nil
}

// rebind has the NAT give all connections another address. Who sends over one that stands
// is another client for the far host.
func (w *world) rebind(ctx context.Context) error {
	if err := w.translate(ctx, natAddresses[1]); err != nil {
		return err
	}
	return w.Host("relay-a").Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) })
}

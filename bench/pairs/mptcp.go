package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"

	"longhaul/lab"
)

// mptcpSubflows are those that the client's kernel may add to a connection's first one.
// The in-kernel path manager makes one for each address of the host.
const mptcpSubflows = 7

func missingMPTCP() string {
	if enabled, err := os.ReadFile("/proc/sys/net/mptcp/enabled"); err != nil || strings.TrimSpace(string(enabled)) != "1" {
		return "needs a kernel with Multipath TCP (net.mptcp.enabled)"
	}
	return lab.MissingProgram("ip", "iproute2")
}

// startMPTCP has connections of host-a get as many subflows as pairs get lanes. Ports of
// one address would do for the path, but the path manager takes addresses: host-a gets
// some more.
func (w *world) startMPTCP(ctx context.Context) error {
	for _, host := range []string{"host-a", "host-b"} {
		if err := w.ip(ctx, host, "mptcp", "limits", "set", "subflows", fmt.Sprint(mptcpSubflows), "add_addr_accepted", "0"); err != nil {
			return err
		}
	}
	address := lab.HostA
	for range mptcpSubflows {
		address = address.Next()
		if err := w.Host("host-a").Address("lan", netip.PrefixFrom(address, 24)); err != nil {
			return err
		}
		if err := w.ip(ctx, "host-a", "mptcp", "endpoint", "add", address.String(), "subflow"); err != nil {
			return err
		}
	}
	return nil
}

// ip runs iproute2's ip in a host.
func (w *world) ip(ctx context.Context, host string, args ...string) error {
	cmd := exec.CommandContext(ctx, lab.FindProgram("ip"), args...)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	err := w.Host(host).Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return fmt.Errorf("ip %s on %s: %w\n%s", strings.Join(args, " "), host, err, said.String())
	}
	return nil
}

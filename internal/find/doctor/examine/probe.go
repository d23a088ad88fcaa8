package examine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"longhaul/internal/find/doctor"
	"longhaul/internal/sys/halfopen"
	"longhaul/internal/sys/kernel"
	"longhaul/internal/sys/pathmtu"
)

// probePath finds the packet sizes that get from this host to the far one, and back.
// The round trip time sets its timeouts; 0: unknown.
func probePath(ctx context.Context, here, far netip.Addr, rtt time.Duration) (doctor.Path, error) {
	var path doctor.Path
	device, err := deviceMTU(here)
	if err != nil {
		return path, err
	}
	device = min(device, 65535) // the largest IP packet, which a loopback device exceeds
	path.DeviceMTU = device
	patience := time.Second
	if rtt > 0 {
		patience = min(patience, max(300*time.Millisecond, 3*rtt))
	}
	options := pathmtu.Options{Tries: 3, Wait: patience}
	forward, err := pathmtu.Toward(ctx, far, device, options)
	var unsupported *kernel.ErrUnsupported
	if errors.As(err, &unsupported) {
		return path, fmt.Errorf("probe packet sizes: missing %s", unsupported.Needs)
	}
	if err != nil {
		return path, err
	}
	path.MTU = carried(forward, device)
	if forward.Verdict == pathmtu.Silent {
		return path, nil
	}
	back, err := pathmtu.From(ctx, far, device, options)
	if err != nil {
		return path, err
	}
	path.ReverseMTU = carried(back, device)
	return path, nil
}

// carried returns the largest packet that a probe found to get through, in bytes; 0:
// unknown.
func carried(r pathmtu.Result, size int) int {
	switch r.Verdict {
	case pathmtu.Carries:
		return size
	case pathmtu.TooBig:
		return r.MTU
	}
	return 0
}

// answers reports whether a host answers a SYN, be it with a reset: then small packets
// get through.
func answers(ctx context.Context, to netip.AddrPort) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err := halfopen.Ask(ctx, to.String(), halfopen.Options{})
	return err == nil || errors.Is(err, syscall.ECONNREFUSED)
}

// deviceMTU returns the MTU of the device with an address of this host.
func deviceMTU(local netip.Addr) (int, error) {
	devices, err := net.Interfaces()
	if err != nil {
		return 0, err
	}
	for _, device := range devices {
		addresses, err := device.Addrs()
		if err != nil {
			continue
		}
		for _, address := range addresses {
			if prefix, err := netip.ParsePrefix(address.String()); err == nil && prefix.Addr().Unmap() == local {
				return device.MTU, nil
			}
		}
	}
	return 0, fmt.Errorf("no device of this host has the address %s", local)
}

// addressesToward returns this host's address toward a server, and the server's. It
// reads them from a datagram socket, which sends nothing.
func addressesToward(ctx context.Context, server string) (here netip.Addr, there netip.AddrPort, err error) {
	var dialer net.Dialer
	socket, err := dialer.DialContext(ctx, "udp", server)
	if err != nil {
		return here, there, err
	}
	defer socket.Close()
	local, remote := socket.LocalAddr().(*net.UDPAddr).AddrPort(), socket.RemoteAddr().(*net.UDPAddr).AddrPort()
	return local.Addr().Unmap(), netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port()), nil
}

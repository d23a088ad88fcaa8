//go:build linux

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"

	"longhaul/internal/config"
)

// inheritedSocket is a listening socket that systemd has bound for us.
type inheritedSocket struct {
	file *os.File
	addr netip.AddrPort
}

// inheritedSockets takes the sockets of LISTEN_FDS and finds out where they listen.
func inheritedSockets() ([]inheritedSocket, error) {
	var all []inheritedSocket
	for _, f := range activation.Files(true) {
		addr, err := listeningAddress(f)
		if err != nil {
			return nil, &hintError{fmt.Errorf("socket activation passed %s, which cannot be used: %w", f.Name(), err), "use ListenStream= with an address and a port in the socket unit"}
		}
		all = append(all, inheritedSocket{f, addr})
	}
	return all, nil
}

func listeningAddress(f *os.File) (addr netip.AddrPort, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return addr, err
	}
	control := raw.Control(func(fd uintptr) {
		var accepts, kind, protocol int
		var name unix.Sockaddr
		if kind, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TYPE); err != nil {
			return
		}
		if protocol, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil {
			return
		}
		if accepts, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err != nil {
			return
		}
		if kind != unix.SOCK_STREAM || protocol != unix.IPPROTO_TCP || accepts == 0 {
			err = errors.New("it is not a listening TCP socket")
			return
		}
		if name, err = unix.Getsockname(int(fd)); err != nil {
			return
		}
		switch a := name.(type) {
		case *unix.SockaddrInet4:
			addr = netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
		case *unix.SockaddrInet6:
			addr = netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
		default:
			err = errors.New("it has no IP address")
		}
	})
	return addr, errors.Join(err, control)
}

// matchSockets finds the tunnel of every inherited socket by its address.
// Scope zones are not compared: the kernel's socket has an index there.
func matchSockets(sockets []inheritedSocket, tunnels []config.Tunnel) (map[string][]*os.File, error) {
	byTunnel := map[string][]*os.File{}
	var stray []string
	for _, s := range sockets {
		owner := ""
		for _, t := range tunnels {
			for _, a := range t.Addresses() {
				if a.Port() == s.addr.Port() && a.Addr().WithZone("") == s.addr.Addr() {
					owner = t.Name
				}
			}
		}
		if owner == "" {
			stray = append(stray, s.addr.String())
			continue
		}
		byTunnel[owner] = append(byTunnel[owner], s.file)
	}
	if len(stray) > 0 {
		return nil, &exitError{&hintError{
			fmt.Errorf("socket activation passed sockets that no tunnel listens on: %s", strings.Join(stray, ", ")),
			"give a tunnel the same address in listen, or remove ListenStream= from the socket unit",
		}, exitUsage}
	}
	return byTunnel, nil
}

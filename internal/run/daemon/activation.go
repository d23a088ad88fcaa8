package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/coreos/go-systemd/v22/activation"

	"longhaul/internal/carry/handover"
	"longhaul/internal/run/config"
	"longhaul/internal/words/remedy"
)

// ErrStraySockets reports that systemd's sockets and the configuration's addresses
// differ.
var ErrStraySockets = errors.New("socket activation passed sockets that no tunnel listens on")

// inheritedSocket is a listening socket that systemd has bound.
type inheritedSocket struct {
	file *os.File
	addr netip.AddrPort
}

// inheritedSockets takes the sockets of LISTEN_FDS and reads their addresses.
func inheritedSockets() ([]inheritedSocket, error) {
	var all []inheritedSocket
	for _, f := range activation.Files(true) {
		addr, err := handover.Address(f)
		if err != nil {
			return nil, remedy.New(fmt.Errorf("use activated socket %s: %w", f.Name(), err),
				"use ListenStream= with an address and a port in the socket unit")
		}
		all = append(all, inheritedSocket{f, addr})
	}
	return all, nil
}

// activatedSockets is the part of the sockets that systemd has bound, until tunnels claim them.
type activatedSockets struct{ sockets []inheritedSocket }

// Prepare gives each socket to the tunnel with its address.
func (a *activatedSockets) Prepare(_ context.Context, p *plan) (Change, error) {
	byTunnel, err := matchSockets(a.sockets, p.Tunnels)
	if err != nil {
		return nil, err
	}
	for i := range p.tunnels {
		p.tunnels[i].Inherited = byTunnel[p.tunnels[i].Name]
	}
	return setting(func() {
		for _, s := range a.sockets {
			s.file.Close() // the relay has its own descriptors of them
		}
		a.sockets = nil
	}), nil
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
		return nil, remedy.New(fmt.Errorf("%w: %s", ErrStraySockets, strings.Join(stray, ", ")),
			"give a tunnel the same address in listen, or remove ListenStream= from the socket unit")
	}
	return byTunnel, nil
}

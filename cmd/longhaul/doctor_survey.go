//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"longhaul/internal/display"
	"longhaul/internal/doctor"
	"longhaul/internal/tcpinfo"
)

// survey is what can be found out about a path without anybody at the far end
// who takes data.
type survey struct {
	Local  netip.AddrPort `json:"local"`
	Remote netip.AddrPort `json:"remote"`
	Path   doctor.Path    `json:"path"`
	// Info is the kernel's account of a connection that was made and closed
	// again; nil if none came about.
	Info *tcpinfo.Info `json:"tcp_info,omitempty"`
	// Cause is always empty: what was found bounds a connection, and does not
	// tell what limits one.
	Cause  doctor.Cause `json:"cause"`
	Bounds []string     `json:"bounds"` // a sentence each
}

// errNoVerdict is how a survey ends.
var errNoVerdict = errors.New("no verdict: nothing there takes data, without which nobody can tell what limits a transfer")

// runSurvey looks at the path to a TCP port, whoever listens there.
func (f *doctorFlags) runSurvey(ctx context.Context, env *env, server string) (survey, error) {
	var s survey
	dialer := net.Dialer{Timeout: 3 * time.Second}
	dialer.SetMultipathTCP(false)
	conn, err := dialer.DialContext(ctx, "tcp", server)
	if err == nil {
		defer conn.Close()
		s.Local, s.Remote = addrPort(conn.LocalAddr()), addrPort(conn.RemoteAddr())
		raw, err := conn.(syscall.Conn).SyscallConn()
		if err != nil {
			return s, err
		}
		_ = raw.Control(func(fd uintptr) {
			if info, err := tcpinfo.Get(int(fd)); err == nil {
				s.Info = &info
			}
		})
	} else {
		here, there, addressErr := addressesTo(ctx, server)
		if addressErr != nil {
			return s, err
		}
		s.Local, s.Remote = netip.AddrPortFrom(here, 0), there
	}
	if !f.noProbe {
		rtt := time.Duration(0)
		if s.Info != nil {
			rtt = s.Info.RTT
		}
		if s.Path, err = probePath(ctx, s.Local.Addr(), s.Remote.Addr(), rtt); err != nil {
			note(env, err)
		}
	}
	s.Bounds = doctor.Bounds(s.Path, s.Info)
	return s, nil
}

// addressesTo are this host's address towards a server, and the server's. A
// datagram socket knows them, and sends nothing.
func addressesTo(ctx context.Context, server string) (here netip.Addr, there netip.AddrPort, err error) {
	var dialer net.Dialer
	socket, err := dialer.DialContext(ctx, "udp", server)
	if err != nil {
		return here, there, err
	}
	defer socket.Close()
	local, remote := socket.LocalAddr().(*net.UDPAddr).AddrPort(), socket.RemoteAddr().(*net.UDPAddr).AddrPort()
	return local.Addr().Unmap(), netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port()), nil
}

func writeSurvey(w io.Writer, s survey) {
	if i := s.Info; i != nil {
		scaling := "no window scaling"
		if i.Options&tcpinfo.OptWScale != 0 {
			scaling = fmt.Sprintf("windows scaled by 2^%d here and 2^%d there", i.RcvWScale, i.SndWScale)
		}
		display.WriteParagraph(w, "", fmt.Sprintf("A connection to %s takes %.1f ms there and back, with segments of %d bytes and %s.", s.Remote, display.Milliseconds(i.RTT), i.SndMSS, scaling))
	}
	switch {
	case s.Path.MTU > 0 && s.Path.ReverseMTU > 0:
		display.WriteParagraph(w, "", fmt.Sprintf("The path carries packets of %d bytes, and of %d back.", s.Path.MTU, s.Path.ReverseMTU))
	case s.Path.MTU > 0:
		display.WriteParagraph(w, "", fmt.Sprintf("The path carries packets of %d bytes; the way back is not known.", s.Path.MTU))
	}
	for _, bound := range s.Bounds {
		display.WriteParagraph(w, "  - ", bound)
	}
}

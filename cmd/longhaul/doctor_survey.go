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
		// A datagram socket knows the addresses, too, and sends nothing.
		probe, udpErr := dialer.DialContext(ctx, "udp", server)
		if udpErr != nil {
			return s, err
		}
		probe.Close()
		local, remote := probe.LocalAddr().(*net.UDPAddr).AddrPort(), probe.RemoteAddr().(*net.UDPAddr).AddrPort()
		s.Local, s.Remote = netip.AddrPortFrom(local.Addr().Unmap(), 0), netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port())
	}
	if !f.noProbe {
		o := doctor.Observation{Local: s.Local, Remote: s.Remote, Samples: []doctor.Sample{{}}}
		if s.Info != nil {
			o.Samples[0].Info = *s.Info
		}
		if s.Path, err = probePath(ctx, o); err != nil {
			note(env, err)
		}
	}
	s.Bounds = doctor.Bounds(s.Path, s.Info)
	return s, nil
}

func writeSurvey(w io.Writer, s survey) {
	if i := s.Info; i != nil {
		scaling := "no window scaling"
		if i.Options&tcpinfo.OptWScale != 0 {
			scaling = fmt.Sprintf("windows scaled by 2^%d here and 2^%d there", i.RcvWScale, i.SndWScale)
		}
		wrap(w, "", fmt.Sprintf("A connection to %s takes %.1f ms there and back, with segments of %d bytes and %s.", s.Remote, milliseconds(i.RTT), i.SndMSS, scaling))
	}
	switch {
	case s.Path.MTU > 0 && s.Path.ReverseMTU > 0:
		wrap(w, "", fmt.Sprintf("The path carries packets of %d bytes, and of %d back.", s.Path.MTU, s.Path.ReverseMTU))
	case s.Path.MTU > 0:
		wrap(w, "", fmt.Sprintf("The path carries packets of %d bytes; the way back is not known.", s.Path.MTU))
	}
	for _, bound := range s.Bounds {
		wrap(w, "  - ", bound)
	}
}

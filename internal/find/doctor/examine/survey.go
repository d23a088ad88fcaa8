package examine

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"longhaul/internal/find/doctor"
	"longhaul/internal/sys/halfopen"
	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/words/display"
)

// Survey has the properties of a path without a measure server at the far end.
type Survey struct {
	Local  netip.AddrPort `json:"local"`
	Remote netip.AddrPort `json:"remote"`
	Path   doctor.Path    `json:"path"`
	// Info has the kernel's figures of a connection that was opened and closed;
	// nil without one.
	Info *tcpinfo.Info `json:"tcp_info,omitempty"`
	// Cause is always empty: a survey names bounds, and no limit.
	Cause  doctor.Cause `json:"cause"`
	Bounds []string     `json:"bounds"` // a sentence each
}

// survey examines the path to a TCP port, with or without a listener there.
func (e *Examiner) survey(ctx context.Context, server string) (Survey, error) {
	var s Survey
	asking, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	_, err := halfopen.Ask(asking, server, halfopen.Options{Seen: s.see})
	if !s.Remote.IsValid() {
		here, there, addressErr := addressesToward(ctx, server)
		if addressErr != nil {
			return s, err
		}
		s.Local, s.Remote = netip.AddrPortFrom(here, 0), there
	}
	if !e.SkipProbe {
		rtt := time.Duration(0)
		if s.Info != nil {
			rtt = s.Info.RTT
		}
		if s.Path, err = probePath(ctx, s.Local.Addr(), s.Remote.Addr(), rtt); err != nil {
			e.Note(err)
		}
	}
	s.Bounds = doctor.Bounds(s.Path, s.Info)
	return s, nil
}

// see takes the ends and the kernel's figures of a connection.
func (s *Survey) see(c *net.TCPConn) {
	s.Local, s.Remote = addrPort(c.LocalAddr()), addrPort(c.RemoteAddr())
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		if info, err := tcpinfo.Get(int(fd)); err == nil {
			s.Info = &info
		}
	})
}

// WriteText writes the survey in lines of 78 columns. The error is the writer's.
func (s Survey) WriteText(w io.Writer) error {
	var b bytes.Buffer
	if i := s.Info; i != nil {
		scaling := "no window scaling"
		if i.Options&tcpinfo.OptWScale != 0 {
			scaling = fmt.Sprintf("windows scaled by 2^%d here and 2^%d there", i.RcvWScale, i.SndWScale)
		}
		display.WriteParagraph(&b, "", fmt.Sprintf("A connection to %s takes %.1f ms there and back, with segments of %d bytes and %s.", s.Remote, display.Milliseconds(i.RTT), i.SndMSS, scaling))
	}
	switch {
	case s.Path.MTU > 0 && s.Path.ReverseMTU > 0:
		display.WriteParagraph(&b, "", fmt.Sprintf("The path carries packets of %d bytes, and of %d back.", s.Path.MTU, s.Path.ReverseMTU))
	case s.Path.MTU > 0:
		display.WriteParagraph(&b,
			"", fmt.Sprintf("The path carries packets of %d bytes; the way back is unknown.", s.Path.MTU))
	}
	for _, bound := range s.Bounds {
		display.WriteParagraph(&b, "  - ", bound)
	}
	_, err := w.Write(b.Bytes())
	return err
}

package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/sys/descriptor"
)

// probe asks the far relay for a flow of no client to a port of the tunnel's range, as a check, and
// resets it once the target has accepted. It returns the target's address, or why no target accepted.
func (h *nearHop) probe(ctx context.Context, timeout time.Duration, offset uint16) (target netip.AddrPort, end flow.EndReason, err error) {
	fd, other, err := loopbackPair()
	if err != nil {
		return target, "", fmt.Errorf("make a connection to check with: %w", err)
	}
	defer other.Close()
	ended := make(chan flow.End, 1)
	f := h.link.Carry(flow.Client{FD: fd, Deadline: timeout, Offset: offset}, func(e flow.End) { ended <- e })
	defer f.Reset(flow.EndCheck, nil)
	tick := time.NewTicker(pairWatch / 25)
	defer tick.Stop()
	for {
		if target = f.Figures().Target; target.IsValid() {
			return target, "", nil
		}
		select {
		case e := <-ended:
			if e.Target.IsValid() {
				return e.Target, "", nil
			}
			return target, e.Reason, e.Err
		case <-ctx.Done():
			return target, "", errors.New("the far relay has not answered in time")
		case <-tick.C:
		}
	}
}

// loopbackPair connects two sockets of this process. The first is non-blocking and
// not registered with the runtime.
func loopbackPair() (fd int, other *net.TCPConn, err error) {
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return -1, nil, err
	}
	defer l.Close()
	dialed, err := net.DialTCP("tcp4", nil, l.Addr().(*net.TCPAddr))
	if err != nil {
		return -1, nil, err
	}
	for { // another process may connect first
		accepted, err := l.AcceptTCP()
		if err != nil {
			dialed.Close()
			return -1, nil, err
		}
		if accepted.RemoteAddr().String() != dialed.LocalAddr().String() {
			accepted.Close()
			continue
		}
		fd, err := descriptor.Duplicate(accepted)
		accepted.Close()
		if err != nil {
			dialed.Close()
		}
		return fd, dialed, err
	}
}

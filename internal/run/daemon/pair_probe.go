package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/sys/selfconn"
)

// probed is what a probe has found.
type probed struct {
	relays []flow.TraceRelay // the far relay and those behind it; none: it has not said
	target netip.AddrPort    // zero: none accepted
	end    flow.EndReason    // then; empty: nobody has answered
	err    error
	byPeer bool // end is the far relay's word
}

// probe asks the far relay for a flow of no client to a port of the tunnel's range, as a check, and
// resets it once the target has accepted.
func (h *nearHop) probe(ctx context.Context, timeout time.Duration, offset uint16) probed {
	maker := selfconn.New()
	defer maker.Close()
	other, fd, err := maker.Connect(ctx)
	if err != nil {
		return probed{err: fmt.Errorf("make a connection to check with: %w", err)}
	}
	defer unix.Close(other)
	ended := make(chan flow.End, 1)
	f := h.link.Carry(flow.Client{FD: fd, Deadline: timeout, Offset: offset}, flow.OnEnd(func(e flow.End) { ended <- e }))
	defer f.Reset(flow.EndCheck, nil)
	tick := time.NewTicker(pairWatch / 25)
	defer tick.Stop()
	for {
		if target := f.Figures().Target; target.IsValid() {
			found := probed{target: target}
			if t, can := f.(flow.Tracer); can { // an older relay has no answer
				if trace, err := t.Trace(ctx); err == nil {
					found.relays = trace.Relays[trace.Here:]
				}
			}
			return found
		}
		select {
		case e := <-ended:
			if e.Target.IsValid() {
				return probed{target: e.Target}
			}
			return probed{end: e.Reason, err: e.Err, byPeer: e.ByPeer}
		case <-ctx.Done():
			return probed{err: errors.New("the far relay has not answered in time")}
		case <-tick.C:
		}
	}
}

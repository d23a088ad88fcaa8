package pair

import (
	"context"
	"errors"
	"fmt"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/wire"
)

var _ flow.Tracer = (*Flow)(nil)

// Trace implements flow.Tracer.
func (f *Flow) Trace(ctx context.Context) (flow.Trace, error) {
	f.mu.Lock()
	s, id := f.s, f.id
	f.mu.Unlock()
	peer, ctl := s.peerNow(), s.control()
	switch {
	case ctl == nil:
		return flow.Trace{}, &flow.SessionDownError{Peer: peer}
	case !s.knows(wire.FeatureTrace):
		return flow.Trace{}, fmt.Errorf("%s is of an older release, which answers no trace", peer)
	}
	ctx, cancel := context.WithTimeout(ctx, flow.TraceWithin)
	defer cancel()
	until, _ := ctx.Deadline()
	b, err := s.traces.ask(ctx, ctl, id, time.Until(until))
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return flow.Trace{}, fmt.Errorf("%s has not answered in time", peer)
	case err != nil:
		return flow.Trace{}, fmt.Errorf("%s is not asked: %w", peer, err)
	case len(b) == 0:
		return flow.Trace{}, fmt.Errorf("%s does not have the flow", peer)
	}
	t, err := flow.ParseTrace(b)
	if err != nil {
		return flow.Trace{}, fmt.Errorf("the answer of %s is no trace: %w", peer, err)
	}
	t.Relays[t.Here].Relay = peer
	return t, nil
}

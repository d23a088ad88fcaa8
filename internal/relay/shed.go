package relay

import (
	"errors"
	"fmt"
	"maps"
)

// shedding is why new flows are refused, and from how many standing ones on.
type shedding struct {
	reason  string
	err     error // the same
	from    int64
	reserve int64 // so many more are admitted, of those who have few
}

// Shed refuses new flows with a reset, for the reason that is given, while
// from flows or more stand: 0 refuses every one. Some more, the reserve, are
// admitted of sources and tunnels that have less than their share, so that
// nobody takes the relay from others by holding all that there is. Flows that
// stand are left alone. It replaces what was said before; an empty reason ends
// it.
func (r *Relay) Shed(reason string, from, reserve int64) {
	if reason == "" {
		r.shed.Store(nil)
		return
	}
	r.shed.Store(&shedding{reason, errors.New(reason), from, reserve})
}

// sheds is why new flows are refused, if not all of them; nil: none is.
func (r *Relay) sheds() *shedding {
	if s := r.shed.Load(); s != nil && r.live.Load() >= s.from {
		return s
	}
	return nil
}

// shedsAll is why a flow that came now would be refused, whoever asked for it;
// nil: it depends.
func (r *Relay) shedsAll() *shedding {
	if s := r.sheds(); s != nil && r.live.Load() >= s.from+s.reserve {
		return s
	}
	return nil
}

// shedsShare is why a new flow of a source is refused although the process has
// room for it: the source, or the tunnel, has its share of that. It returns
// what is short as well.
func (r *Relay) shedsShare(t *Tunnel, st *tunnelState, src *source) (reason string, err error) {
	shed := r.shed.Load()
	if shed == nil {
		return "", nil
	}
	all := r.live.Load() + 1
	who, n := "the source", src.flows.Load()
	if t.MaxFlowsPerSource != 0 || !shed.overShare(n, all) {
		who, n = "the tunnel", st.flows.Load()
		if len(r.table.Load().tunnels) == 1 || !shed.overShare(n, all) {
			return "", nil
		}
	}
	return shed.reason, fmt.Errorf("%s has %d of the %d flows that there is room for (%s); what is left is for others", who, n-1, shed.from, shed.reason)
}

// overShare says whether somebody who would have n of all flows would have
// more than a share. It is one of what is free, as overShare of a tunnel's
// flows, and so large that somebody alone gets all but the reserve.
func (s *shedding) overShare(n, all int64) bool {
	return n > 1 && n*s.reserve > s.from*(s.from+s.reserve-all)
}

// shedFor counts a connection that was refused.
func (t *tunnelState) shedFor(reason string) {
	t.shed.Add(1)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sheds == nil {
		t.sheds = map[string]int64{}
	}
	t.sheds[reason]++
}

func (t *tunnelState) shedByReason() map[string]int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.sheds) == 0 {
		return map[string]int64{}
	}
	return maps.Clone(t.sheds)
}

// FlowsNow is how many flows stand or are being connected.
func (r *Relay) FlowsNow() int64 { return r.live.Load() }

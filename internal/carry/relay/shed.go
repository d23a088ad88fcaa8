package relay

import (
	"errors"
	"fmt"
	"maps"
)

// shedding is the reason to refuse new flows, and the number of flows at which
// that begins.
type shedding struct {
	reason  string
	err     error // reason as an error
	from    int64
	reserve int64 // flows above from, for sources and tunnels with few flows
}

// Shed refuses new flows with a reset, for the given reason, while at least
// from flows exist; 0 refuses every new flow. Sources and tunnels below their
// share may have reserve more flows, so that nobody can take the whole relay.
// Existing flows go on.
//
// Shed replaces the previous call; an empty reason ends shedding.
func (r *Relay) Shed(reason string, from, reserve int64) {
	if reason == "" {
		r.shed.Store(nil)
		return
	}
	r.shed.Store(&shedding{reason, errors.New(reason), from, reserve})
}

// sheds returns the reason to refuse new flows beyond a share; nil: none is
// refused.
func (r *Relay) sheds() *shedding {
	if s := r.shed.Load(); s != nil && r.live.Load() >= s.from {
		return s
	}
	return nil
}

// shedsAll returns the reason to refuse every new flow; nil: the decision
// depends on the source.
func (r *Relay) shedsAll() *shedding {
	if s := r.sheds(); s != nil && r.live.Load() >= s.from+s.reserve {
		return s
	}
	return nil
}

// shedsShare returns why a new flow of a source is refused although the process
// has room. The source or the tunnel has its share. reason is the resource that
// is short.
func (r *Relay) shedsShare(t *Tunnel, st *tunnelState, e entry) (reason string, err error) {
	shed := r.shed.Load()
	if shed == nil {
		return "", nil
	}
	all := r.live.Load() + 1
	who, n := e.String(), e.share.flows.Load()
	if !t.shares(e) || !shed.overShare(n, all) {
		who, n = "the tunnel", st.flows.Load()
		if len(r.table.Load().tunnels) == 1 || !shed.overShare(n, all) {
			return "", nil
		}
	}
	return shed.reason, fmt.Errorf("%s has %d of the %d flows that there is room for (%s); what is left is for others", who, n-1, shed.from, shed.reason)
}

// overShare reports whether a party with n of all flows would exceed its share.
// The share is computed as overShare of a tunnel's flows. A party alone gets
// everything except the reserve.
func (s *shedding) overShare(n, all int64) bool {
	return n > 1 && n*s.reserve > s.from*(s.from+s.reserve-all)
}

// shedFor counts a refused connection.
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

// FlowsNow counts the flows that are connecting or connected.
func (r *Relay) FlowsNow() int64 { return r.live.Load() }

// KeepEnds has flows last until both ends are acknowledged, and so count for the limits of their sources.
// Otherwise the relay leaves a last end to the kernel, which counts it for the whole machine.
func (r *Relay) KeepEnds(keep bool) { r.keepsEnds.Store(keep) }

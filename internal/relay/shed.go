package relay

import (
	"errors"
	"maps"
)

// shedding is why new flows are refused, and from how many standing ones on.
type shedding struct {
	reason string
	err    error // the same
	from   int64
}

// Shed refuses new flows with a reset, for the reason that is given, while
// from flows or more stand: 0 refuses every one. Flows that stand are left
// alone. It replaces what was said before; an empty reason ends it.
func (r *Relay) Shed(reason string, from int64) {
	if reason == "" {
		r.shed.Store(nil)
		return
	}
	r.shed.Store(&shedding{reason, errors.New(reason), from})
}

// shedsFor is why a flow that came now would be refused, nil if it would not.
func (r *Relay) shedsFor() *shedding {
	if s := r.shed.Load(); s != nil && r.live.Load() >= s.from {
		return s
	}
	return nil
}

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

package pair

import (
	"maps"
	"slices"
	"sync"
	"time"

	"longhaul/internal/flow"
	"longhaul/internal/pair/stream"
	"longhaul/internal/pair/wire"
)

// maxTexts bounds the outcomes of a session that wait with their texts. Further ones are sent with
// the reason alone.
const maxTexts = 256

// outcomes are the flows of a far session that are over, while their near relay may not know it. At most
// maxBuried are remembered.
type outcomes struct {
	mu      sync.Mutex
	flows   map[uint64]outcome
	due     []uint64          // to be sent
	texts   map[uint64]string // of some of those that are due
	dropped stamp             // when the latest one was, for want of room; zero: none was
}

// outcome is that of one flow. A near relay answers REFUSED with RESET, or with GONE. It answers no GONE:
// its outcome is kept for the time that is given.
type outcome struct {
	code byte // the reason of a REFUSED; 0: the flow was given up, and GONE says so
	at   stamp
}

// dialed reports that the flow may have had its target dialed.
func (o outcome) dialed() bool {
	reason, _ := reasonOf(stream.Cause{Code: o.code})
	return reason != flow.EndDrain && reason != flow.EndDenied
}

// add notes an outcome. The zero cause is that of a flow that was given up; an outcome that says more
// stays.
func (o *outcomes) add(id uint64, c stream.Cause, keep time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	was, known := o.flows[id]
	if known && was.code != 0 && c.Code == 0 {
		return
	}
	if o.flows == nil {
		o.flows, o.texts = map[uint64]outcome{}, map[uint64]string{}
	}
	now := time.Now()
	if !known && len(o.flows) >= maxBuried {
		o.prune(now, keep)
	}
	if !known && len(o.flows) >= maxBuried {
		o.evict(now)
	}
	o.flows[id] = outcome{c.Code, stampOf(now)}
	if c.Text != "" && len(o.texts) < maxTexts {
		o.texts[id] = c.Text
	}
	if len(o.due) >= maxBuried {
		delete(o.texts, o.due[0])
		o.due = o.due[1:]
	}
	o.due = append(o.due, id)
}

// evict drops one, if possible of a flow for which nothing was dialed.
func (o *outcomes) evict(now time.Time) {
	victim, dialed := uint64(0), true
	for id, one := range o.flows {
		if victim, dialed = id, one.dialed(); !dialed {
			break
		}
	}
	o.drop(victim)
	if dialed {
		o.dropped = stampOf(now)
	}
}

func (o *outcomes) drop(id uint64) {
	delete(o.flows, id)
	delete(o.texts, id)
}

// prune drops flows that were given up, for which nobody can wait any more. A REFUSED has an answer.
func (o *outcomes) prune(now time.Time, keep time.Duration) {
	for id, one := range o.flows {
		if one.code == 0 && one.at.waited(now, keep) {
			o.drop(id)
		}
	}
}

// answered takes the near relay's word that it knows.
func (o *outcomes) answered(id uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.drop(id)
}

// again has everything sent again that a lost control connection may have lost.
func (o *outcomes) again(keep time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.prune(time.Now(), keep)
	o.due = slices.Collect(maps.Keys(o.flows))
}

// fill appends the messages that are due, until they have so many bytes, and reports whether more are.
func (o *outcomes) fill(out []byte, most int) (filled []byte, more bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.due) > 0 && len(out) < most {
		id := o.due[0]
		o.due = o.due[1:]
		switch one, waits := o.flows[id]; {
		case waits && one.code == 0:
			out = wire.Message{Type: wire.MessageGone, Flow: id}.Append(out)
		case waits:
			out = wire.Message{Type: wire.MessageRefused, Flow: id, Reason: one.code, Text: o.texts[id]}.Append(out)
		}
		delete(o.texts, id)
	}
	return out, len(o.due) > 0
}

// codes are the reasons of REFUSED by flow, and 0 for those that were given up.
func (o *outcomes) codes() map[uint64]byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := map[uint64]byte{}
	for id, one := range o.flows {
		all[id] = one.code
	}
	return all
}

// incomplete reports that an outcome was dropped for which somebody may wait.
func (o *outcomes) incomplete(now time.Time, keep time.Duration) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.dropped.IsZero() && !o.dropped.waited(now, keep)
}

// owed are the flows that may have had their target dialed, and whether there are any; some, and none
// named: any may be one.
func (o *outcomes) owed(now time.Time, keep time.Duration) (flows wire.Flows, some bool) {
	if o.incomplete(now, keep) {
		return "", true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.prune(now, keep)
	last := uint64(0)
	for _, id := range slices.Sorted(maps.Keys(o.flows)) {
		if !o.flows[id].dialed() {
			continue
		}
		var fits bool
		if flows, fits = flows.AppendFlow(id, last); !fits {
			return "", true
		}
		last = id
	}
	return flows, flows != ""
}

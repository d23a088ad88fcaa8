package pair

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/stream"
	"longhaul/internal/carry/pair/wire"
)

// maxTexts bounds the texts that a session keeps for outcomes not yet sent. Beyond it an outcome is
// sent with its reason alone.
const maxTexts = 256

// outcomes lists the flows of a far session that are over at the far relay, until the near relay
// knows it. It remembers at most maxBuried.
type outcomes struct {
	mu      sync.Mutex
	flows   map[uint64]outcome
	due     []uint64          // flows whose outcome is to be sent
	texts   map[uint64]string // error texts of some of the due ones
	dropped stamp             // when an outcome was last dropped for lack of room; zero: never
}

// outcome says how one flow ended at the far relay. It is sent as REFUSED or as GONE. The near relay
// answers a REFUSED with RESET or GONE, and the outcome is forgotten. It does not answer a GONE, so
// that outcome is forgotten after the time keep, which callers give.
type outcome struct {
	code byte // the reason of a REFUSED; 0: the flow was given up, and GONE says so
	at   stamp
}

// dialed reports that the flow may have had its target dialed.
func (o outcome) dialed() bool {
	reason, _ := reasonOf(stream.Cause{Code: o.code})
	return reason != flow.EndDrain && reason != flow.EndDenied
}

// add notes an outcome. The zero cause stands for a flow that was given up. It does not replace the
// reason of a REFUSED.
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

// evict drops one outcome, preferably of a flow whose target was not dialed.
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

// prune drops flows that were given up longer than keep ago. Refused ones stay until they are answered.
func (o *outcomes) prune(now time.Time, keep time.Duration) {
	for id, one := range o.flows {
		if one.code == 0 && one.at.waited(now, keep) {
			o.drop(id)
		}
	}
}

// answered forgets a flow, since the near relay has confirmed its outcome.
func (o *outcomes) answered(id uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.drop(id)
}

// again makes every outcome due again: a lost control connection may have lost any of them.
func (o *outcomes) again(keep time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.prune(time.Now(), keep)
	o.due = slices.Collect(maps.Keys(o.flows))
}

// fill appends due messages until out has most bytes, and reports whether more are due.
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

// codes returns the REFUSED reason of each flow, and 0 for a flow that was given up.
func (o *outcomes) codes() map[uint64]byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := map[uint64]byte{}
	for id, one := range o.flows {
		all[id] = one.code
	}
	return all
}

// incomplete reports whether an outcome was dropped that the near relay may still wait for.
func (o *outcomes) incomplete(now time.Time, keep time.Duration) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.dropped.IsZero() && !o.dropped.waited(now, keep)
}

// owed returns the flows whose target may have been dialed, and whether there are any. If some is
// true and flows is empty, the list is not complete: any flow of the session may be one.
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

// maxBuried bounds the flows of a far session that are over and that it remembers, so that
// a late OPEN dials no target.
const maxBuried = 4096

// peerUse is what the connections of one peer take.
type peerUse struct {
	idle atomic.Int64 // lanes that carry no flow
	// left are outcomes of sessions that are closed, in their order; under the node's lock.
	left []left
	// dropped is the time until which the peer may wait for an outcome that was dropped from left;
	// zero: none was dropped.
	dropped time.Time
}

// left are the outcomes of a session that is closed.
type left struct {
	near     NearSession
	outcomes *outcomes
	owesFor  time.Duration
	until    time.Time
}

// maxLeft bounds the closed sessions of one peer whose outcomes are kept.
const maxLeft = 64

// leave keeps the outcomes of a session that is closed. The caller holds the node's lock.
func (u *peerUse) leave(one left) {
	now := time.Now()
	one.until = now.Add(one.owesFor)
	u.left = slices.DeleteFunc(u.left, func(old left) bool {
		_, some := old.outcomes.owed(now, old.owesFor)
		return !some
	})
	if len(u.left) >= maxLeft {
		if oldest := u.left[0]; oldest.until.After(u.dropped) {
			u.dropped = oldest.until
		}
		u.left = slices.Delete(u.left, 0, 1)
	}
	u.left = append(u.left, one)
}

// takeLeft gives a session that begins again what it had left; nil: nothing. The caller holds the node's
// lock.
func (u *peerUse) takeLeft(near NearSession) *outcomes {
	i := slices.IndexFunc(u.left, func(old left) bool { return old.near == near })
	if i < 0 {
		return nil
	}
	o := u.left[i].outcomes
	u.left = slices.Delete(u.left, i, i+1)
	return o
}

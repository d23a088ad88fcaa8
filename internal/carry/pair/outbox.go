package pair

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"longhaul/internal/carry/pair/wire"
)

// outbox is what a session has for the other end on the control connection.
type outbox struct {
	ctl atomic.Pointer[control] // nil: the session is not connected

	mu       sync.Mutex
	dirty    []*Flow     // those that have messages due
	timer    *time.Timer // of a delayed flush; nil: none
	lastDue  bool        // far relay: the last message is to be said
	outcomes *outcomes   // far relay
}

func (o *outbox) control() *control { return o.ctl.Load() }

func (o *outbox) connected() bool { return o.control() != nil }

// flush has the control connection send what waits.
func (o *outbox) flush() {
	if ctl := o.control(); ctl != nil {
		ctl.flush()
	}
}

// post notes that a flow has something for the control connection.
func (o *outbox) post(f *Flow, urgent bool) { // with f.mu
	o.mu.Lock()
	defer o.mu.Unlock()
	if !f.dirty {
		f.dirty = true
		o.dirty = append(o.dirty, f)
	}
	switch {
	case o.control() == nil:
	case urgent:
		o.flush()
	case o.timer == nil:
		o.timer = time.AfterFunc(ackDelay, func() {
			o.mu.Lock()
			o.timer = nil
			o.mu.Unlock()
			o.flush()
		})
	}
}

// withdraw takes a flow out that has moved on to another session.
func (o *outbox) withdraw(f *Flow) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f.dirty = false
	o.dirty = slices.DeleteFunc(o.dirty, func(other *Flow) bool { return other == f })
}

// message sends a message, if the control connection stands.
func (o *outbox) message(m wire.Message) {
	if ctl := o.control(); ctl != nil {
		ctl.post(m)
	}
}

// offer is message for one that is repeated: it reports whether it went.
func (o *outbox) offer(m wire.Message) bool {
	ctl := o.control()
	return ctl != nil && ctl.offer(m)
}

// reply is message for an answer to what a lane brought: it waits as control's does.
func (o *outbox) reply(m wire.Message) {
	if ctl := o.control(); ctl != nil {
		ctl.reply(m)
	}
}

// fill appends the messages that flows have due, of so many flows that they come to about
// maxFill.
func (o *outbox) fill(out []byte) []byte {
	before, more := len(out), false
	o.mu.Lock()
	if o.outcomes != nil {
		out, more = o.outcomes.fill(out, before+maxFill)
	}
	dirty := o.dirty
	o.dirty = nil
	last := o.lastDue && len(dirty) == 0 && !more
	o.lastDue = o.lastDue && !last
	o.mu.Unlock()
	if last { // behind all that this end says of flows
		return wire.Message{Type: wire.MessageDrain, Flags: wire.FlagLast}.Append(out)
	}
	for len(dirty) > 0 && len(out) <= before+maxFill {
		f := dirty[0]
		dirty = dirty[1:]
		o.mu.Lock()
		f.dirty = false
		o.mu.Unlock()
		out = f.messages(out)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dirty = append(dirty, o.dirty...) // they have waited longer
	if o.lastDue {
		o.flush()
	}
	return out
}

// sayLast tells a near relay that this process has said all that it will ever know of flows: all outcomes
// go out before it.
func (o *outbox) sayLast() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lastDue = o.control() != nil; o.lastDue {
		o.flush()
	}
}

// lastIsDue reports whether the last message has not gone out yet.
func (o *outbox) lastIsDue() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lastDue
}

// shut ends the control connection and what waits for it.
func (o *outbox) shut() {
	o.mu.Lock()
	timer := o.timer
	o.mu.Unlock()
	if timer != nil {
		timer.Stop()
	}
	if ctl := o.ctl.Swap(nil); ctl != nil {
		ctl.close()
	}
}

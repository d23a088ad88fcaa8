package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	report "longhaul/internal/carry/flow"
)

// A far tunnel whose hops are far relays joins two pairs at this relay, the hub of a chain. A flow there
// has two halves, each with a carrier: the far half of the pair that brings it, and the near half of the
// pair that takes it on. A TCP connection of this process with itself joins them, the joint:
//
//	near relay ══ lane ══ far half ── joint ── near half ══ lane ══ next relay
//
//	making ── joint made ──> offered ── the next relay has a target ──> joined ── one half over ──> ending ── the other ──> gone
//	  └────── refused <─────────┘
//
//   - making: the flow is admitted. The goroutine of OpenPaired makes the joint, since that may wait.
//   - offered: as a flow of any near tunnel, whose client is one end of the joint. It says nothing, since
//     the other end is nobody's yet. Among several next relays the flow goes from one to the next
//     (offers.go). A single one has it for good: a flow that were given back and offered again could meet
//     its target twice.
//   - joined: the far half has the other end as its target. Only now the near relay hears of a target.
//   - ending: one half is over, and the other delivers what it has.
//
// Each half carries bytes, ends and resets of its leg as ever. What a reset cannot carry, its reason, is in
// the halves' report.Joint. So the relays at both ends of the chain have the same reason.

// chain is what a flow has of its far half, as whose [report.Owner]. What it has of the near half is in paired, as in
// a near tunnel.
type chain struct {
	place
	open   *report.Open // as the near relay asked; nil once the far half has its target
	from   report.Carried
	peer   string            // the near relay
	limit  *source           // has the limits of a source, if the flow's source is a peer; else nil
	answer chan<- pairAnswer // of OpenPaired; nil once the far half has its target, or none
	fd     int               // the far half's end of the joint, until that has it; -1
	legs   report.LegOptions // of both halves
	until  time.Duration     // when the near relay gives up
	seen   report.Figures
	end    *report.End // of the far half; nil: it is not over
}

// beginChain begins a flow that a near relay asks for and that goes on to another far relay.
func (w *worker) beginChain(f *flow, o report.Open, e entry, within time.Duration, answers chan<- pairAnswer) {
	if within <= 0 {
		within = f.route.tunnel.ConnectTimeout
	}
	f.phase = phaseWaiting
	f.chain = &chain{place: w.placeOf(f), open: &o, from: o.Carried, peer: o.Peer, answer: answers, fd: -1, until: f.start + within,
		legs: report.LegOptions{ResetDrain: w.relay.opts.ResetDrainTimeout, Joint: new(report.Joint)}}
	if e.limit != e.share {
		f.chain.limit = e.limit
	}
	admitted(&o, f.chain)
	if f.isIntegrity && !f.route.hops.Serves(w.now) {
		w.waitedInVain(f) // which is what a check asks for
		return
	}
	slot, gen := f.slot, f.gen
	answers <- pairAnswer{makeJoint: func(ctx context.Context) bool { return w.makeJoint(ctx, slot, gen) }}
}

// makeJoint makes the joint of a flow and gives it to the event loop, or the error. A joint that the loop does
// not take is closed here. It returns false if the loop has ended.
func (w *worker) makeJoint(ctx context.Context, slot, gen uint32) (running bool) {
	dialed, accepted, err := w.relay.joints.Connect(ctx)
	if err != nil && ctx.Err() != nil {
		return true // OpenPaired sees that too
	}
	taken := false
	running = w.do(func() { taken = w.jointMade(slot, gen, dialed, accepted, err) })
	if !taken && err == nil {
		closeFD(dialed)
		closeFD(accepted)
	}
	return running
}

// jointMade offers a flow that has its joint to the next relays. It returns false if no flow takes the joint.
func (w *worker) jointMade(slot, gen uint32, dialed, accepted int, err error) (taken bool) {
	f := w.lookup(slot, gen)
	if f == nil || f.chain == nil {
		return false
	}
	if err != nil {
		reason := report.EndNoResources
		if errors.Is(err, unix.EADDRNOTAVAIL) {
			reason = report.EndNoLocalPort
		}
		w.abort(f, reason, err)
		return false
	}
	setLinger(dialed, true)
	setLinger(accepted, true)
	f.chain.fd = dialed // an end that made its connection, as others of far flows
	f.legs[client] = leg{fd: int32(accepted)}
	if errno := w.watch(accepted, f, client); errno != 0 {
		w.abort(f, report.EndNoResources, errno)
		return true
	}
	w.startDialing(f)
	return true
}

// carryOn has the client of a near half be the one that the near relay of the far half named.
func (w *worker) carryOn(f *flow, c *report.Client) {
	slot, gen, o := f.slot, f.gen, f.chain.open
	c.From, c.Listen, c.Early = o.Client, o.Listen, nil
	c.Via, c.Offset = o.Via, o.Offset
	c.Deadline = max(min(c.Deadline, f.chain.until-w.now), time.Millisecond)
	c.Opened = func() {
		w.post(func() {
			if f := w.lookup(slot, gen); f != nil {
				w.lookAtPaired(f) // reached joins the halves
			}
		})
	}
}

// joinHalves gives the far half its end of the joint, as a target that the next relay has reached.
func (w *worker) joinHalves(f *flow) {
	c := f.chain
	t := report.Target{FD: c.fd, To: f.target(), Legs: w.pairLegs(f), Owner: c}
	answer := c.answer
	c.answer, c.open, c.fd = nil, nil, -1
	answer <- pairAnswer{target: t}
}

// Closing implements report.Owner. The leg of a half is no client's or target's, and has no record.
func (c *chain) Closing(int) {}

// Ended implements report.Owner.
func (c *chain) Ended(e report.End) { c.w.post(func() { c.w.farHalfOver(c.flow(), e) }) }

// farHalfOver takes the end of a far half; nil: the flow has ended before.
func (w *worker) farHalfOver(f *flow, e report.End) {
	if f == nil || f.chain == nil {
		return // the relay has ended it, and Reset told the carrier
	}
	f.chain.end = &e
	w.halfOver(f, e)
}

// halfOver ends a flow once both halves are over. The first cause counts: where the halves differ, one of
// them had ended cleanly. It is the word of another relay if one half has it from there.
func (w *worker) halfOver(f *flow, e report.End) {
	w.lookAtPaired(f)
	if e.Reason != report.EndClean {
		f.fail(e.Reason, e.Err)
		f.paired.byPeer = f.paired.byPeer || e.ByPeer && e.Reason == f.closing.reason
	}
	if f.chain.end != nil && f.paired.ended {
		w.closeFlow(f, 0)
		return
	}
	w.schedule(f)
}

// endChain ends what the far half has, when the relay ends the flow.
func (w *worker) endChain(f *flow) {
	c, why := f.chain, f.close()
	if why.reason != "" {
		c.legs.Joint.Cut(why.reason, why.err)
	}
	switch {
	case c.answer != nil:
		err := why.err
		if f.isIntegrity && f.paired != nil && f.paired.byPeer {
			err = fmt.Errorf("%s: %w", f.paired.peer, cmp.Or(err, error(&report.Refusal{Reason: why.reason})))
		}
		c.answer <- pairAnswer{refused: &report.Refusal{Reason: why.reason, Err: err}}
		c.answer = nil
	case c.end == nil:
		w.lookAtPaired(f)
		c.from.Reset(why.reason, why.err)
	}
	if c.fd >= 0 {
		closeFD(c.fd)
		c.fd = -1
	}
}

// unchain makes a flow that waits for a next relay one that is dialed for here, after a reload. It returns
// false if the tunnel, as it is now, does not dial for the flow, which has ended then.
func (w *worker) unchain(f *flow) bool {
	c := f.chain
	rt, refused := w.relay.farRoute(*c.open)
	if refused == nil {
		refused = rt.notDialable(*c.open)
	}
	if refused != nil {
		w.abort(f, refused.Reason, refused.Err)
		return false
	}
	closeFD(c.fd)
	closeFD(int(f.legs[client].fd))
	f.route, f.legs[client] = rt, leg{fd: -1}
	f.paired = &paired{place: w.placeOf(f), carrier: c.from, leg: target, client: c.limit, answer: c.answer, peer: c.peer}
	f.opening.within = max(c.until-w.now, time.Millisecond)
	f.chain = nil
	return true
}

// asked reports whether a near relay waits for the target of a flow that goes on to another relay.
func (f *flow) asked() bool { return f != nil && f.chain != nil && f.chain.answer != nil }

// with adds the figures of the far half, which has its target, to those of the near half.
func (c *chain) with(near report.Figures) report.Figures {
	far := c.from.Figures()
	c.seen = far
	near.BytesDown = far.BytesDown
	near.Retained += far.Retained
	near.Idle = min(near.Idle, far.Idle)
	near.Ended = near.Ended || far.Ended
	near.Clean = near.Clean && far.Clean
	near.Lanes += far.Lanes
	near.Resumes += far.Resumes
	near.Outage += far.Outage
	near.State = stateOfHalves(far.State, near.State)
	return near
}

// stateOfHalves is the state of a flow whose halves have these.
func stateOfHalves(far, near string) string {
	for _, s := range []string{report.StateResuming, report.StateDelivering, report.StateOpen} {
		if far == s || near == s {
			return s
		}
	}
	return near
}

// jointMemory is the memory of a joint's two sockets, in bytes. Their queues have a bound of their own.
func (f *flow) jointMemory() (held int64) {
	if !f.joined() {
		return 0
	}
	for _, half := range [...]report.Carried{f.chain.from, f.paired.carrier} {
		half.Inspect(func(leg, _ int, _ report.Counters) {
			if m, ok := socketMemory(leg); ok {
				held += m.held()
			}
		})
	}
	return held
}

// joined reports whether both halves of a flow have carriers that move its bytes.
func (f *flow) joined() bool { return f.chain != nil && f.carried() && f.chain.answer == nil }

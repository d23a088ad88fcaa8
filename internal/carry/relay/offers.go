package relay

import (
	"cmp"
	"container/list"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/carry/relay/hops"
	"longhaul/internal/carry/relay/monotime"
)

// A near tunnel may have several far relays. A flow is offered to one after the other, until the far
// relay has a target:
//
//	header ──> waiting ── a hop takes flows ──> paired ── target ──> paired, to its end
//	              ▲                                │
//	              └───────── given back ───────────┘
//
// A carrier that has the client gives it back while the far relay has no target: nothing was read of
// it. A hop that refuses the flow is not asked again. One that is lost is, once its session stands
// again. While no hop takes flows, the flow waits, and costs nothing: the event loop looks at the hops
// of its tunnel.

// offers is what a flow knows of the far relays that were asked for it. They are in opening.order.
type offers struct {
	refused bool          // one has refused it, or has not answered in time: it does not wait
	asked   bool          // the present carrier was asked for the client
	last    bool          // no other hop was left when the present one got the flow
	overdue bool          // that one has had all its time
	before  *paired       // the state at the latest
	place   *list.Element // in waiters
}

// waiters are the flows that wait for a hop, by their route, the oldest first.
type waiters struct {
	of     map[*route]*list.List // of *flow
	lookAt time.Duration         // at the hops; 0: no flow waits
}

const (
	// hopsLook is the time between two looks at hops for which flows wait. HopsChanged reports changes,
	// but not one that is undone at once. A look costs a call for each hop, however many flows wait.
	hopsLook = 250 * time.Millisecond
	// offerPause is the time until a flow is offered anew to hops that have all given it back.
	offerPause = 20 * time.Millisecond
)

func (ws *waiters) lookBy(at time.Duration) {
	if ws.lookAt == 0 || at < ws.lookAt {
		ws.lookAt = at
	}
}

func (ws *waiters) add(f *flow) {
	if ws.of == nil {
		ws.of = map[*route]*list.List{}
	}
	all := ws.of[f.route]
	if all == nil {
		all = list.New()
		ws.of[f.route] = all
	}
	f.opening.offers.place = all.PushBack(f)
}

func (ws *waiters) remove(f *flow) {
	place := f.opening.offers.place
	if place == nil {
		return
	}
	f.opening.offers.place = nil
	all := ws.of[f.route]
	if all.Remove(place); all.Len() == 0 {
		delete(ws.of, f.route)
	}
}

// beginOffers offers a flow to the hops of its tunnel from the beginning.
func (w *worker) beginOffers(f *flow) {
	o := f.opening
	o.deadline = w.now + f.route.tunnel.ConnectTimeout
	if f.chain != nil {
		o.deadline = min(o.deadline, f.chain.until)
	}
	o.order, o.offers.refused = o.inline[:0], false
	w.timers.remove(f)
	w.offerNext(f)
}

// offerNext offers a flow to the next hop that takes flows and has not been asked. Without one the flow
// waits, or ends if a far relay has refused it.
func (w *worker) offerNext(f *flow) {
	o, rt := f.opening, f.route
	var inline [hops.Few]uint16
	left := slices.DeleteFunc(rt.hops.Order(inline[:0], f.origin().Addr(), w.now), func(i uint16) bool { return slices.Contains(o.order, i) })
	switch {
	case len(left) > 0 && w.now < o.deadline:
		o.order = append(o.order, left[0])
		o.attempt = w.now + (o.deadline-w.now)/time.Duration(len(left))
		o.offers.asked, o.offers.overdue, o.offers.last = false, false, len(left) == 1
		w.carry(f, left[0])
	case o.offers.refused:
		f.paired = o.offers.before
		w.abort(f, o.reason, o.err)
	case rt.hops.AllDrained():
		w.abort(f, report.EndNoHop, rt.noHop())
	default:
		w.awaitHop(f)
	}
}

// awaitHop has a flow wait until a hop takes flows.
func (w *worker) awaitHop(f *flow) {
	f.phase = phaseWaiting
	f.leaveHop()
	until := f.start + w.hopPatience(f.route)
	if f.chain != nil {
		until = min(until, f.chain.until)
	}
	if w.now >= until {
		w.waitedInVain(f)
		return
	}
	w.timers.schedule(f, until)
	w.waiters.add(f)
	again := hopsLook
	if f.route.hops.Serves(w.now) { // each has given it back, though its session stands
		again = offerPause
	}
	w.waiters.lookBy(w.now + again)
}

// HopsChanged tells the relay that far relays of a tunnel take flows now, or other hosts do.
func (r *Relay) HopsChanged() {
	if loops := r.loops.Load(); loops != nil {
		for _, w := range *loops {
			w.post(w.lookForHops)
		}
	}
}

// hopPatience is how long a flow waits for a hop: as for the only one, that of a connect, or the time
// in which a flow resumes if a pair has stood.
func (w *worker) hopPatience(rt *route) time.Duration {
	if rt.hops.Stood() {
		return max(rt.tunnel.ConnectTimeout, rt.tunnel.Resume)
	}
	return rt.tunnel.ConnectTimeout
}

// waitedInVain ends a flow for which no hop came.
func (w *worker) waitedInVain(f *flow) {
	o := f.opening
	reason, err := cmp.Or(o.reason, report.EndPairDown), o.err
	if err == nil {
		var all []string
		for _, h := range f.route.hops.Snapshot(nil, monotime.Now()) {
			all = append(all, fmt.Sprintf("%s is %s (%s)", h.Name, h.State, cmp.Or(h.LastError, "not yet connected")))
		}
		err = errors.New("no hop takes flows: " + strings.Join(all, ", "))
	}
	f.paired = o.offers.before
	w.abort(f, reason, err)
}

// waitingEvent handles an event of the client of a flow that waits: it may have reset.
func (w *worker) waitingEvent(f *flow, events uint32) {
	l := &f.legs[client]
	if l.note(events); events&unix.EPOLLERR != 0 {
		errno := socketError(int(l.fd))
		w.abort(f, legFailure(client, errno), errnoOrNil(errno))
	}
}

// lookForHops leads the flows on that wait for hops which now take flows, or which a reload has
// changed.
func (w *worker) lookForHops() {
	ws := &w.waiters
	var ready []*list.List
	for rt, all := range ws.of {
		if now, removed := w.routeNow(rt); removed || now != rt || rt.hops.Serves(w.now) || rt.hops.AllDrained() {
			ready = append(ready, all)
			delete(ws.of, rt)
		}
	}
	if ws.lookAt = 0; len(ws.of) > 0 {
		ws.lookAt = w.now + hopsLook
	}
	for _, all := range ready {
		for e := all.Front(); e != nil; e = all.Front() {
			f := all.Remove(e).(*flow)
			f.opening.offers.place = nil
			w.timers.remove(f)
			w.leadOn(f)
		}
	}
}

// leadOn begins a flow anew that has waited, with its tunnel as it is now.
func (w *worker) leadOn(f *flow) {
	rt, removed := w.routeNow(f.route)
	if removed {
		w.abort(f, report.EndDrain, errors.New("the tunnel was removed while no hop took flows"))
		return
	}
	f.route = rt
	w.startDialing(f)
}

// routeNow is the route of a listener after the reloads since.
func (w *worker) routeNow(was *route) (now *route, removed bool) {
	for _, in := range w.relay.table.Load().tunnels {
		if in.state != was.state {
			continue
		}
		for _, l := range in.listeners {
			if now := l.route.Load(); now != nil && now.listen == was.listen {
				return now, false
			}
		}
		return was, false // the relay drains, or the tunnel listens elsewhere
	}
	return was, true
}

// closeBack resets a client that came back too late.
func closeBack(e report.End) {
	if e.Back != nil {
		closeFD(e.Back.FD)
	}
}

// givenBack takes a client back from a hop that does not serve it.
func (w *worker) givenBack(f *flow, e report.End) {
	o, l := f.opening, &f.legs[client]
	if o == nil { // no carrier may do that: the far relay had a target
		closeBack(e)
		w.abort(f, cmp.Or(e.Reason, report.EndWANLost), e.Err)
		return
	}
	p := f.paired
	p.ended, p.byPeer, p.peer = true, e.ByPeer, cmp.Or(e.Peer, p.peer)
	f.paired, o.offers.before = nil, p
	w.pairedFlows--
	f.phase = phaseWaiting
	w.timers.remove(f)
	*l = leg{fd: int32(e.Back.FD), setup: l.setup}
	if errno := w.watch(e.Back.FD, f, client); errno != 0 {
		w.abort(f, report.EndNoResources, errno)
		return
	}
	switch {
	case e.Reason == report.EndDrain: // the relay there ends, and says nothing about the flow
	case e.ByPeer, o.offers.asked, e.Reason == report.EndDenied: // the last says nothing of the session
		o.reason, o.err, o.offers.refused = e.Reason, e.Err, true
	default: // its session was lost or suspect
		o.reason, o.err = e.Reason, cmp.Or(e.Err, errLost)
		w.blameLoss(f)
	}
	if rt, _ := w.routeNow(f.route); rt != f.route { // the hops of order are others now
		w.leadOn(f)
		return
	}
	w.offerNext(f)
}

// blameLoss counts the loss of a flow's far relay. One that says itself that it takes no flows needs no
// ejection: it serves once it says otherwise.
func (w *worker) blameLoss(f *flow) {
	o := f.opening
	own := o.reason == report.EndNoLocalPort || o.reason == report.EndNoResources // this host's
	if o.blamed = !own && f.route.hops.Answers(o.order[len(o.order)-1], w.now); o.blamed {
		w.blame(f)
	} else if !own {
		f.hop.Lost()
	}
}

// errLost is why a hop is blamed whose carrier says no more.
var errLost = errors.New("the session was lost before the flow had a target")

// offerDue asks for a client whose hop has had its share of the time. The last hop has all of it, and
// its far relay refuses the flow once that is over.
func (w *worker) offerDue(f *flow) {
	o := f.opening
	if w.now < o.attempt {
		w.timers.schedule(f, o.attempt)
		return
	}
	switch {
	case f.chain != nil && o.offers.overdue:
		w.abort(f, report.EndTargetUnreached, errors.New("the next relay has not answered in time"))
		return
	case o.offers.last:
		o.offers.overdue = true // its far relay refuses the flow about now
	case !o.offers.asked:
		o.offers.asked = true
		f.paired.carrier.GiveBack()
	}
	o.attempt = w.now + f.route.tunnel.ConnectTimeout // to learn that the flow has a target
	w.timers.schedule(f, o.attempt)
}

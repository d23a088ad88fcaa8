package relay

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/carry/proxyproto"
	"longhaul/internal/sys/socket"
	"longhaul/internal/words/display"
	"longhaul/internal/words/portrange"
)

// PairServer takes the connections of near relays to a far tunnel.
type PairServer interface {
	// Recognize classifies the first bytes of a connection, at most prefacePeek.
	// It runs on an event loop and must not block.
	Recognize(first []byte) Recognition

	// Serve takes over a connection that was recognized; nothing of it was
	// read. It was accepted before the time waited. Serve runs on an event loop
	// and must not block.
	Serve(fd int, waited time.Duration)
}

const (
	prefacePeek    = 64               // bytes of a connection to inspect
	prefaceTimeout = 10 * time.Second // for a connection to send its preface
	maxPrefaces    = 2048             // connections of one tunnel without a preface yet
)

var (
	errNoPreface    = errors.New("it does not begin as a paired relay's")
	errSilent       = fmt.Errorf("no preface of a paired relay within %v", prefaceTimeout)
	errManyPrefaces = fmt.Errorf("%d connections of the tunnel have sent no preface yet", maxPrefaces)
)

// stranger is a connection to a far tunnel that has not sent its preface. It is
// no flow: the limits on flows bound those that lanes bring, and a flow that
// exists gets its new lane even if none is free.
type stranger struct {
	fd    int
	route *route
	from  netip.AddrPort
	until time.Duration
	place *list.Element // in worker.strangersByAge
}

// admitStranger waits for the preface of a connection to a far tunnel.
func (w *worker) admitStranger(rt *route, fd int, from netip.AddrPort) {
	if rt.state.prefaces.Add(1) > maxPrefaces && !w.turnAwayOldest(rt) {
		rt.state.prefaces.Add(-1)
		rt.state.limited.Add(1)
		w.refuse(rt, fd, from, report.EndFlowLimit, errManyPrefaces)
		return
	}
	s := &stranger{fd: fd, route: rt, from: from, until: w.now + prefaceTimeout}
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(fd), Pad: kindStranger}
	if errno := epollAdd(w.epfd, fd, &ev); errno != 0 {
		rt.state.prefaces.Add(-1)
		w.refuse(rt, fd, from, report.EndNoResources, errno)
		return
	}
	w.strangers[fd] = s
	s.place = w.strangersByAge.PushBack(s)
	if w.strangersAt == 0 {
		w.strangersAt = s.until
	}
}

// recognizeStranger looks at the first bytes of a connection to a far tunnel.
func (w *worker) recognizeStranger(s *stranger, events uint32) {
	n, errno := socket.Peek(s.fd, w.buf[:prefacePeek])
	switch {
	case errno == unix.EAGAIN || errno == unix.EINTR:
		return
	case errno != 0 || n == 0:
		// It is closed, and has said nothing: perhaps a near relay's attempt that another one overtook.
		w.forgetStranger(s)
		closeFD(s.fd)
		return
	}
	t := s.route.tunnel
	switch t.PairServer.Recognize(w.buf[:n]) {
	case IsHello:
		epollDel(w.epfd, s.fd)
		w.forgetStranger(s)
		if t.Transport != nil {
			t.Transport.Established(s.fd, false)
		}
		t.PairServer.Serve(s.fd, w.now-(s.until-prefaceTimeout))
	case NoHello:
		w.turnAway(s, report.EndDenied, errNoPreface)
	case MaybeHello:
		if events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
			w.turnAway(s, report.EndDenied, errNoPreface)
		}
	}
}

func (w *worker) forgetStranger(s *stranger) {
	delete(w.strangers, s.fd)
	w.strangersByAge.Remove(s.place)
	s.route.state.prefaces.Add(-1)
}

// turnAway resets a connection that is no near relay's.
func (w *worker) turnAway(s *stranger, reason report.EndReason, err error) {
	w.forgetStranger(s)
	s.route.state.denied.Add(1)
	w.refuse(s.route, s.fd, s.from, reason, err)
}

// turnAwayOldest makes room for a new connection: a paired relay's has its preface with
// it, so who has waited longest is none. It returns false if none waits on this loop.
func (w *worker) turnAwayOldest(rt *route) bool {
	e := w.strangersByAge.Front()
	for e != nil && e.Value.(*stranger).route.state != rt.state {
		e = e.Next()
	}
	if e == nil {
		return false
	}
	oldest := e.Value.(*stranger)
	w.forgetStranger(oldest)
	rt.state.limited.Add(1)
	w.refuse(rt, oldest.fd, oldest.from, report.EndFlowLimit, errManyPrefaces)
	return true
}

// strangersDue turns away the connections that have not sent a preface in time.
func (w *worker) strangersDue() {
	w.strangersAt = 0
	for e := w.strangersByAge.Front(); e != nil; e = w.strangersByAge.Front() {
		s := e.Value.(*stranger)
		if w.now < s.until {
			w.strangersAt = s.until
			return
		}
		w.turnAway(s, report.EndDenied, errSilent)
	}
}

// dropStrangers resets all of them. It runs in the loop that ends.
func (w *worker) dropStrangers() {
	for _, s := range w.strangers {
		w.forgetStranger(s)
		closeFD(s.fd)
	}
}

// pairAnswer is the result of OpenPaired: a target, or why none accepted.
type pairAnswer struct {
	target  report.Target
	refused *report.Refusal // nil: one accepted
	// makeJoint is to be called first, if it is not nil: there is no result yet. The flow goes on to another
	// far relay and needs a joint. It returns false if the event loop has ended.
	makeJoint func(context.Context) bool
}

// OpenPaired admits a flow that a near relay asks for, under the limits of the
// tunnel, and connects it to a target as any other flow. The end of ctx gives
// it up. An error is a [report.Refusal].
func (r *Relay) OpenPaired(ctx context.Context, o report.Open) (report.Target, error) {
	rt, refused := r.farRoute(o)
	if refused != nil {
		return report.Target{}, refused
	}
	w := slices.MinFunc(*r.loops.Load(), func(a, b *worker) int { return cmp.Compare(a.load.Load(), b.load.Load()) })
	answers := make(chan pairAnswer, 2) // the word that a joint is wanted, and the result: the loop never waits
	ended := &report.Refusal{Reason: report.EndDrain, Err: report.ErrDialCut}
	var until time.Duration
	if at, bounded := ctx.Deadline(); bounded {
		until = time.Until(at)
	}
	var slot, gen uint32
	var began bool
	if !w.post(func() { slot, gen, began = w.openPaired(rt, o, until, answers) }) {
		return report.Target{}, &report.Refusal{Reason: report.EndDrain, Err: ErrClosed}
	}
	await := func() (a pairAnswer, answered bool) {
		select {
		case a = <-answers:
			return a, true
		case <-ctx.Done():
		}
		waits := false
		w.do(func() { waits = began && w.askerGone(ctx, w.lookup(slot, gen)) })
		if waits {
			late := time.NewTimer(nextPatience)
			defer late.Stop()
			select {
			case a = <-answers:
				return a, true
			case <-late.C:
			}
			w.do(func() {
				if f := w.lookup(slot, gen); f.asked() {
					w.abort(f, report.EndTargetUnreached, errNextLate)
				}
			})
		}
		select {
		case a = <-answers:
			return a, true
		default:
			return a, false // the loop ended
		}
	}
	a, answered := await()
	if answered && a.makeJoint != nil {
		if !a.makeJoint(ctx) {
			return report.Target{}, ended
		}
		a, answered = await()
	}
	switch {
	case !answered:
		return report.Target{}, ended
	case a.refused == nil:
		return a.target, nil
	case a.refused.Reason == report.EndDrain:
		return report.Target{}, &report.Refusal{Reason: report.EndDrain, Err: errors.Join(report.ErrDialCut, a.refused.Err)}
	}
	return report.Target{}, a.refused
}

// nextPatience is how much longer a hub waits for the next relay's reason than the near relay waits for a
// target: a round trip of most paths.
const nextPatience = time.Second

var errNextLate = errors.New("the next relay has not answered in time")

// askerGone ends a flow whose near relay waits for a target no more. It returns true if an answer comes
// nevertheless: the next relay of a chain has the same deadline, and says why it has no target.
func (w *worker) askerGone(ctx context.Context, f *flow) (waits bool) {
	switch {
	case f == nil:
	case f.asked():
		if f.chain.fd >= 0 && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return true
		}
		w.abort(f, gaveUp(ctx), context.Cause(ctx))
	case f.paired != nil && f.paired.answer != nil:
		w.abort(f, gaveUp(ctx), context.Cause(ctx))
	}
	return false
}

// farRoute is the route of a far tunnel's flow: of its offset, or of the first one if there is no such.
func (r *Relay) farRoute(o report.Open) (*route, *report.Refusal) {
	for _, in := range r.table.Load().tunnels {
		switch {
		case in.tunnel.Name != o.Tunnel:
		case r.draining.Load() || len(in.listeners) == 0 || r.loops.Load() == nil:
			return nil, &report.Refusal{Reason: report.EndDrain, Err: ErrClosed}
		case in.tunnel.PairServer == nil:
			return nil, &report.Refusal{Reason: report.EndDenied, Err: errors.New("the tunnel takes no paired flows any more")}
		case in.state.drained.Load():
			return nil, &report.Refusal{Reason: report.EndNoHop, Err: errors.New("the far tunnel is drained")}
		case int(o.Offset) < len(in.far):
			return in.far[o.Offset], nil
		default:
			return in.far[0], nil
		}
	}
	return nil, &report.Refusal{Reason: report.EndDenied, Err: fmt.Errorf("there is no tunnel %s any more", o.Tunnel)}
}

// gaveUp is the reason to end a flow that still waits for its target.
func gaveUp(ctx context.Context) report.EndReason {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return report.EndTargetUnreached
	}
	return report.EndClientReset // the near relay did, for its client
}

// openPaired begins a flow without a client's leg. It returns false if the flow
// is refused.
func (w *worker) openPaired(rt *route, o report.Open, until time.Duration, answers chan<- pairAnswer) (slot, gen uint32, began bool) {
	var e entry
	refused, check := rt.notDialable(o), !o.Client.IsValid() // a check that is refused turns nobody away
	switch {
	case refused == nil:
		e, refused = w.enterFor(rt, o.Client.Addr(), o.Share)
	case !check:
		rt.state.denied.Add(1)
	}
	if refused != nil {
		if !check {
			w.recordRefusal(rt, report.Record{Name: o.Name, Peer: o.Peer, Client: report.Address{AddrPort: o.Client}, Listen: report.Address{AddrPort: o.Listen},
				Reason: refused.Reason, Err: refused.Err})
		}
		answers <- pairAnswer{refused: refused}
		return 0, 0, false
	}
	f := w.begin(rt, e.share, o.Client)
	f.setListen(o.Listen)
	f.isIntegrity = check
	if f.isIntegrity {
		rt.state.integrity.total.Add(1)
	}
	w.takeName(f, o.Name, fromPeer(&o))
	slot, gen = f.slot, f.gen
	if rt.hops.Paired() {
		w.beginChain(f, o, e, until, answers)
		return slot, gen, true
	}
	f.paired = &paired{place: w.placeOf(f), carrier: o.Carried, leg: target, answer: answers, peer: o.Peer}
	if e.limit != e.share {
		f.paired.client = e.limit
	}
	f.opening.within = until
	admitted(&o, f.paired)
	w.startDialing(f)
	return slot, gen, true
}

// admitted reports that a flow counts that a near relay has asked for.
func admitted(o *report.Open, as report.Owner) {
	if o.Admitted != nil {
		o.Admitted(as)
	}
}

// notDialable returns why a far tunnel does not dial for the port, or at the address, that a client dialed.
func (rt *route) notDialable(o report.Open) *report.Refusal {
	d, to := &rt.tunnel.Dialable, o.Listen.Addr().Unmap()
	if len(rt.targets) == 0 {
		return &report.Refusal{Reason: report.EndNoHop, Err: rt.noHop()}
	}
	switch original := rt.targets[0].original; {
	case !original && o.Offset != rt.offset && !rt.hops.Paired(): // else the last relay of the chain has the range
		first := rt.tunnel.Forward[0]
		return &report.Refusal{Reason: report.EndDenied, Err: fmt.Errorf("the port is number %d in the near relay's range, and forward of tunnel %s, %s, has %s; make the ranges equally long",
			int(o.Offset)+1, rt.tunnel.Name, first, display.Plural(max(1, first.Ports), "port"))}
	case !original:
		return nil
	case !o.Client.IsValid() || !o.Listen.IsValid():
		return &report.Refusal{Reason: report.EndDenied, Err: errors.New("the near relay names no address that a client dialed")}
	case len(d.To) == 0 || !contains(d.To, to) || !to.IsGlobalUnicast() || !d.hasPort(o.Listen.Port()):
		return &report.Refusal{Reason: report.EndDenied, Err: fmt.Errorf("the far tunnel does not dial %s: see its original", o.Listen)}
	case rt.tunnel.SourceClient && (!o.Client.Addr().Unmap().IsGlobalUnicast() || o.Client.Port() == 0):
		return &report.Refusal{Reason: report.EndDenied, Err: fmt.Errorf("the far tunnel does not dial from %s: it is no client's address and port", o.Client)}
	case !contains(d.From, o.Client.Addr().Unmap()):
		return &report.Refusal{Reason: report.EndDenied, Err: fmt.Errorf("the far tunnel does not dial for %s: see from of its original", o.Client.Addr())}
	}
	return nil
}

func (d *Dialable) hasPort(p uint16) bool {
	return portrange.Has(d.Ports, p)
}

// handTarget gives the connected target of a far flow to its carrier.
func (w *worker) handTarget(f *flow) {
	p, l := f.paired, &f.legs[target]
	if !w.sendHeader(f) {
		return
	}
	w.beginPaired(f, p)
	t := report.Target{To: f.target(), Legs: w.pairLegs(f), Owner: p}
	if l.failed != 0 && !l.fin {
		t.Reset = unix.Errno(l.failed)
	}
	t.FD = w.releaseLeg(l)
	answer := p.answer
	p.answer = nil
	answer <- pairAnswer{target: t}
	w.schedule(f)
}

// sendHeader sends the PROXY header for the target. A new socket has room for it.
func (w *worker) sendHeader(f *flow) bool {
	version := f.route.tunnel.ProxyOut
	if version == ProxyNone {
		return true
	}
	header := f.proxyHeader(version, proxyproto.Header{Source: f.client, Destination: f.dialed()})
	n, errno := socket.Send(int(f.legs[target].fd), header, 0)
	switch {
	case errno != 0:
		w.abort(f, legFailure(target, errno), errno)
	case n < len(header):
		w.abort(f, report.EndNoResources, errors.New("no room for the PROXY header"))
	}
	return errno == 0 && n == len(header)
}

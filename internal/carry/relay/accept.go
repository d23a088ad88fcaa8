package relay

import (
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/sys/connsource"
	"longhaul/internal/sys/socket"
)

// acceptFrom accepts waiting connections of a listener, up to one turn's worth.
func (w *worker) acceptFrom(l *listener) {
	for range acceptsPerTurn {
		if w.paused || !w.acceptOne(l) {
			return
		}
	}
}

// acceptOne accepts one connection; it returns false if none waits.
func (w *worker) acceptOne(l *listener) bool {
	if w.relay.starved.Load() > 0 {
		w.pauseAccepting(unix.EMFILE)
		return false
	}
	fd, errno := accept(l.fd, &w.from)
	switch {
	case errno == 0:
		if l.settling.Load() {
			acceptSYNs(fd)
		}
		if l.early.Load() > 0 && l.early.Add(-1) >= 0 {
			rt := l.route.Load()
			if err := prepareSocket(fd, rt.tunnel.Transport); err != nil {
				rt.state.warnOnce(w.relay.log, "a connection that came before the relay is not set up as asked", err.Error())
			}
		}
		w.admit(l, fd, fromSockaddr(&w.from))
		return true
	case errno == unix.EAGAIN:
		return false
	case outOfResources(errno):
		w.relay.acceptErrors.add(errno)
		w.pauseAccepting(errno)
		return false
	default:
		// accept also returns errors of the pending connection, such as
		// ECONNABORTED; the next connection may be fine.
		w.relay.acceptErrors.add(errno)
		l.route.Load().state.errors.Add(1)
		return true
	}
}

// admit begins a flow, or refuses it with a reset: accepted sockets inherit the
// zero linger from their listener.
func (w *worker) admit(l *listener, fd int, from netip.AddrPort) {
	rt := l.route.Load()
	t, st := rt.tunnel, rt.state
	var dialed netip.AddrPort // the listening address, if that is the client's choice
	if t.Transparent {
		dialed = localAddr(fd)
		w.noticeRelayed(rt, fd)
		if w.joinHeld(l, fd, from, dialed) {
			return
		}
	}
	switch {
	case !contains(t.Allow, from.Addr()):
		st.denied.Add(1)
		w.refuse(rt, fd, from, report.EndDenied, nil)
		return
	case t.Transparent && dialed == rt.listen:
		st.denied.Add(1)
		w.refuse(rt, fd, from, report.EndDenied, errors.New("the client dialed the transparent listener itself"))
		return
	case t.PairServer != nil:
		w.admitStranger(rt, fd, from)
		return
	case t.ProxyIn.Required && !contains(t.ProxyIn.Trusted, from.Addr()):
		st.denied.Add(1)
		w.refuse(rt, fd, from, report.EndBadProxyHeader, errors.New("the source is not trusted to send a header"))
		return
	}
	src, refusal := w.enter(rt, from.Addr())
	if refusal != nil {
		w.refuse(rt, fd, from, refusal.Reason, refusal.Err)
		return
	}
	f := w.begin(rt, src, from)
	f.setListen(dialed)
	f.legs[client].fd = int32(fd)
	if errno := w.watch(fd, f, client); errno != 0 {
		w.abort(f, report.EndNoResources, errno)
		return
	}
	paired := rt.hops.Paired()
	if tr := t.Transport; tr != nil && (paired || tr.Early(false)) { // who carries a paired flow gets the socket
		w.setUpClient(f)
	}
	switch {
	case t.ProxyIn.Required:
		w.timers.schedule(f, f.start+headerTimeout) // the header is read at its event
	case paired:
		w.startDialing(f)
	case w.undialed == acceptsPerTurn:
		f.legs[client].readable = socket.Unread(fd) > 0
		w.startDialing(f)
	default:
		w.undialed++
		f.phase = phaseAccepted
	}
}

// clientReady begins to dial at the first event of a client's leg, which comes at once: a new
// connection can be written, or has failed. It shows whether first bytes wait.
func (w *worker) clientReady(f *flow, events uint32) {
	if w.clientEvent(f, events); f.phase != phaseGone {
		w.undialed--
		w.startDialing(f)
	}
}

// enter counts a new flow of a source, or returns why the limits refuse it.
func (w *worker) enter(rt *route, from netip.Addr) (*source, *report.Refusal) {
	entry, refusal := w.enterFor(rt, from, "")
	return entry.share, refusal
}

// entry is whom a new flow counts for.
type entry struct {
	share *source // has a share of what is scarce
	limit *source // has the limits that are configured for a source; the same, unless peers share
}

// enterFor is enter for a flow that a peer asks for, one of several of its tunnel: the peers have
// shares then, since the addresses of clients are what a peer says. An empty peer is none.
func (w *worker) enterFor(rt *route, from netip.Addr, peer string) (entry, *report.Refusal) {
	t, st := rt.tunnel, rt.state
	if shed := w.relay.shedsAll(); shed != nil {
		st.shedFor(shed.reason)
		return entry{}, &report.Refusal{Reason: report.EndShed, Err: shed.err}
	}
	if !st.enter(t.MaxFlows) {
		st.limited.Add(1)
		return entry{}, &report.Refusal{Reason: report.EndFlowLimit}
	}
	e := entry{limit: w.relay.sources.of(sourceKey{tunnel: st, from: connsource.OfAddr(from)}, w.now)}
	if e.share = e.limit; peer != "" {
		e.share = w.relay.sources.of(sourceKey{tunnel: st, peer: peer}, w.now)
	}
	refusal := w.overShares(t, st, e)
	if refusal != nil {
		st.flows.Add(-1)
		e.leave()
		return entry{}, refusal
	}
	return e, nil
}

// leave undoes the counting of a flow.
func (e entry) leave() {
	e.share.flows.Add(-1)
	if e.limit != e.share {
		e.limit.flows.Add(-1)
	}
}

// overShares returns why a source gets no new flow although its tunnel has room.
// The flow is already counted.
func (w *worker) overShares(t *Tunnel, st *tunnelState, e entry) *report.Refusal {
	if err := t.overShareOf(st, e); err != nil {
		st.limited.Add(1)
		return &report.Refusal{Reason: report.EndFlowLimit, Err: err}
	}
	if short, err := w.relay.shedsShare(t, st, e); err != nil {
		st.shedFor(short)
		return &report.Refusal{Reason: report.EndShed, Err: err}
	}
	if err := w.relay.memory.full(e.share); err != nil {
		st.shedFor("memory-share")
		return &report.Refusal{Reason: report.EndShed, Err: err}
	}
	if !w.relay.sources.rateAllows(t, st, e, w.now) {
		st.limited.Add(1)
		return &report.Refusal{Reason: report.EndRateLimit}
	}
	return nil
}

// begin makes a flow that was counted by enter.
func (w *worker) begin(rt *route, src *source, from netip.AddrPort) *flow {
	f := w.flows.get()
	*f = flow{
		ident:      ident{id: w.relay.flowIDs.Add(1)},
		route:      rt,
		source:     src,
		client:     from,
		start:      w.now,
		active:     w.now,
		timerIndex: -1,
		opening:    w.openings.get(),
	}
	f.legs[client].fd, f.legs[target].fd = -1, -1
	if !rt.tunnel.takesNames() { // otherwise takeName follows
		f.name = report.NewName()
	}
	w.place(f)
	rt.state.total.Add(1)
	w.relay.live.Add(1)
	return f
}

func (w *worker) refuse(rt *route, fd int, from netip.AddrPort, reason report.EndReason, err error) {
	listen := rt.listen
	if w.relay.opts.OnFlows != nil && (listen.Addr().IsUnspecified() || rt.tunnel.Transparent) {
		listen = localAddr(fd)
	}
	w.recordRefusal(rt, report.Record{Client: report.Address{AddrPort: from}, Listen: report.Address{AddrPort: listen}, Reason: reason, Err: err})
	closeFD(fd)
}

// recordRefusal records a connection that is no flow; rec has who and why.
func (w *worker) recordRefusal(rt *route, rec report.Record) {
	if w.relay.opts.OnFlows == nil {
		return
	}
	rec.Tunnel, rec.Start = rt.tunnel.Name, time.Now()
	rec.ClientLeg, rec.TargetLeg = report.UnknownLeg(), report.UnknownLeg()
	w.ended = append(w.ended, rec)
}

// pauseAccepting stops accepting for a while: a listener that cannot be served
// would wake the loop endlessly.
func (w *worker) pauseAccepting(cause error) {
	if w.paused {
		return
	}
	w.paused = true
	w.settledAt = 0
	for _, l := range w.listeners {
		epollDel(w.epfd, l.fd)
	}
	w.acceptAt = w.now + acceptRetry
	w.relay.acceptPaused(cause)
}

func (w *worker) retryAccepting() {
	w.acceptAt = w.now + acceptRetry
	if !w.reserve() || w.relay.starved.Load() > 0 {
		return
	}
	w.acceptAt = 0
	w.paused = false
	w.settledAt = w.now + acceptSettled
	w.relay.acceptRetried()
	for id, l := range w.listeners {
		w.listen(id, l)
	}
}

func (w *worker) listen(id int32, l *listener) unix.Errno {
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLEXCLUSIVE, Fd: id, Pad: kindListener}
	return epollAdd(w.epfd, l.fd, &ev)
}

// addListener starts accepting from a listener. It runs in the loop.
func (w *worker) addListener(l *listener) unix.Errno {
	if !w.paused {
		if errno := w.listen(l.id, l); errno != 0 {
			return errno
		}
	}
	w.listeners[l.id] = l
	return 0
}

// dropListener stops accepting from a listener; with sweep, it first accepts
// the queued connections. It runs in the loop.
func (w *worker) dropListener(l *listener, sweep bool) {
	if w.listeners[l.id] != l {
		return
	}
	delete(w.listeners, l.id)
	if !w.paused {
		epollDel(w.epfd, l.fd)
	}
	for sweep && !w.paused && w.acceptOne(l) {
	}
}

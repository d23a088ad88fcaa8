package relay

import (
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	report "longhaul/internal/flow"
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
	shed := w.relay.shedsAll()
	switch {
	case !contains(t.Allow, from.Addr()):
		st.denied.Add(1)
		w.refuse(rt, fd, from, report.EndDenied, nil)
		return
	case t.ProxyIn.Required && !contains(t.ProxyIn.Trusted, from.Addr()):
		st.denied.Add(1)
		w.refuse(rt, fd, from, report.EndBadProxyHeader, errors.New("the source is not trusted to send a header"))
		return
	case shed != nil:
		st.shedFor(shed.reason)
		w.refuse(rt, fd, from, report.EndShed, shed.err)
		return
	case !st.enter(t.MaxFlows):
		st.limited.Add(1)
		w.refuse(rt, fd, from, report.EndFlowLimit, nil)
		return
	}
	src := w.relay.sources.of(st, from.Addr(), w.now)
	refuseCounted := func(reason report.EndReason, err error) {
		st.flows.Add(-1)
		src.flows.Add(-1)
		w.refuse(rt, fd, from, reason, err)
	}
	if err := t.overShareOf(st, src); err != nil {
		st.limited.Add(1)
		refuseCounted(report.EndFlowLimit, err)
		return
	}
	if short, err := w.relay.shedsShare(t, st, src); err != nil {
		st.shedFor(short)
		refuseCounted(report.EndShed, err)
		return
	}
	if err := w.relay.memory.full(src); err != nil {
		st.shedFor("memory-share")
		refuseCounted(report.EndShed, err)
		return
	}
	if !w.relay.sources.rateAllows(t, st, src, w.now) {
		st.limited.Add(1)
		refuseCounted(report.EndRateLimit, nil)
		return
	}
	f := w.flows.get()
	*f = flow{
		id:         w.relay.flowIDs.Add(1),
		route:      rt,
		source:     src,
		client:     from,
		start:      w.now,
		active:     w.now,
		timerIndex: -1,
		opening:    w.openings.get(),
	}
	f.legs[client].fd = int32(fd)
	f.legs[target].fd = -1
	w.place(f)
	st.total.Add(1)
	w.relay.live.Add(1)
	if errno := w.watch(fd, f, client); errno != 0 {
		w.abort(f, report.EndNoResources, errno)
		return
	}
	if t.Transport != nil {
		w.setUp(f, client, t.Transport)
	}
	if t.ProxyIn.Required {
		w.timers.schedule(f, f.start+headerTimeout)
		return // the header is read at its event
	}
	w.startDialing(f)
}

func (w *worker) refuse(rt *route, fd int, from netip.AddrPort, reason report.EndReason, err error) {
	if w.relay.opts.OnFlows != nil {
		listen := rt.listen
		if listen.Addr().IsUnspecified() {
			listen = localAddr(fd)
		}
		w.ended = append(w.ended, report.Record{
			Tunnel:    rt.tunnel.Name,
			Client:    report.Address{AddrPort: from},
			Listen:    report.Address{AddrPort: listen},
			Start:     time.Now(),
			ClientLeg: report.UnknownLeg(),
			TargetLeg: report.UnknownLeg(),
			Reason:    reason,
			Err:       err,
		})
	}
	closeFD(fd)
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

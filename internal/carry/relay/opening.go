package relay

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	report "longhaul/internal/carry/flow"
	"longhaul/internal/carry/proxyproto"
	"longhaul/internal/carry/relay/hops"
	"longhaul/internal/sys/eyeballs"
	"longhaul/internal/sys/socket"
)

const (
	headerTimeout = 5 * time.Second       // for a client to send its PROXY header
	socketRetry   = 20 * time.Millisecond // until the next attempt after descriptors or memory ran out

	// addressPatience is for a predecessor to reset the target of a held SYN, of which
	// this process accepts the client.
	addressPatience = time.Second
)

// opening is the state of a flow until both legs are connected.
type opening struct {
	header    []byte // PROXY header read so far, then the bytes behind it
	source    netip.AddrPort
	dest      netip.AddrPort
	order     []uint16          // indices of the hops to try
	inline    [hops.Few]uint16  // room for order
	next      int               // number of hops already begun
	blamed    bool              // an attempt at the current hop failed, not caused by this host
	addrs     []netip.AddrPort  // of the current hop, not tried yet
	few       [4]netip.AddrPort // room for addrs
	port      uint16
	host      *eyeballs.Host // of the current hop's addresses; nil: it has one
	beside    []attempt      // at the current hop, older than that of the target leg
	fewBeside [2]attempt     // room for beside
	began     time.Duration  // of the target leg's attempt
	nextAt    time.Duration  // when the next attempt begins beside; 0: none does
	raced     bool           // there were attempts beside one another: events do not say of which they are
	broken    bool           // the client has reset after it had sent bytes
	ackHeld   bool           // the handshake's ACK waits for the first bytes
	lookup    bool           // waiting for the resolver
	awaitFD   bool           // waiting for a descriptor
	awaitAddr bool           // waiting for the client's address, which the predecessor's leg may still have
	brief     bool           // the flow waits too short a time to blame a hop
	within    time.Duration  // bounds all attempts; 0: only the tunnel does
	deadline  time.Duration  // of all attempts
	attempt   time.Duration  // deadline of the attempts at the current hop
	batch     uint64         // of events, in which the attempt began
	reason    report.EndReason
	err       error
	offers    offers // of the flow to far relays
}

// readHeader reads the required PROXY header of a trusted source.
func (w *worker) readHeader(f *flow) {
	o, leg := f.opening, &f.legs[client]
	for leg.readable {
		n, errno := w.recvHeader(f)
		switch {
		case errno == unix.EAGAIN:
			leg.readable = false
			return
		case errno == unix.EINTR:
			continue
		case errno != 0:
			w.abort(f, report.EndBadProxyHeader, errno)
			return
		case n == 0:
			w.abort(f, report.EndBadProxyHeader, errors.New("the connection ended within the header"))
			return
		}
		o.header = append(o.header, w.buf[:n]...)
		h, used, err := proxyproto.Parse(o.header)
		switch {
		case err == nil:
			w.takeName(f, report.NameOf(proxyproto.Extension(o.header[:used], proxyproto.UniqueID)), nameHolder{})
			o.header = o.header[used:]
			if !h.Local {
				o.source, o.dest = h.Source, h.Destination
			}
			w.startDialing(f)
			return
		case !errors.Is(err, proxyproto.ErrIncomplete):
			w.abort(f, report.EndBadProxyHeader, err)
			return
		}
	}
}

// startDialing begins to connect to the target, if the far relay of a pair does
// not.
func (w *worker) startDialing(f *flow) {
	switch {
	case !f.route.hops.Paired():
		if f.chain == nil || w.unchain(f) {
			w.dialTarget(f)
		}
	case len(f.route.targets) == 1:
		w.carry(f, 0)
	default:
		w.beginOffers(f)
	}
}

// dialTarget begins to connect to the target.
func (w *worker) dialTarget(f *flow) {
	o := f.opening
	f.phase = phaseDialing
	o.deadline = w.now + f.route.tunnel.ConnectTimeout
	if o.within > 0 {
		o.deadline = min(o.deadline, w.now+o.within)
	}
	o.order = f.route.hops.Order(o.inline[:0], f.origin().Addr(), w.now)
	w.beginRecognition(f)
	w.dialNext(f)
}

// dialNext begins the next attempt, or ends the flow if none is left or in flight.
func (w *worker) dialNext(f *flow) {
	o, rt := f.opening, f.route
	for {
		inFlight := o.inFlight(f)
		if len(o.addrs) == 0 && inFlight {
			w.scheduleAttempt(f)
			return
		}
		if len(o.addrs) == 0 {
			w.blame(f)
		}
		if w.now >= o.deadline {
			w.giveUp(f)
			return
		}
		if len(o.addrs) == 0 && !w.nextHop(f) {
			return
		}
		if len(o.addrs) == 0 {
			continue // its name has none
		}
		to := o.addrs[0]
		if w.leadsBack(f, to) {
			w.endAwaitFD(o)
			o.addrs = o.addrs[1:]
			o.reason, o.err = report.EndLoop, fmt.Errorf("%s leads back to a listener of tunnel %s: correct its forward", to, f.route.tunnel.Name)
			continue
		}
		w.setAside(f)
		errno, denied := w.dial(f, to)
		if errno != 0 || denied != nil {
			w.putBack(f)
		}
		switch {
		case denied != nil:
			w.endAwaitFD(o)
			o.addrs = o.addrs[1:]
			o.reason, o.err = report.EndDenied, denied
		case errno == 0:
			w.endAwaitFD(o)
			o.addrs = o.addrs[1:]
			w.attemptBegan(f)
			return
		case outOfResources(errno) && inFlight:
			o.nextAt = w.now + eyeballs.AttemptDelay
			w.scheduleAttempt(f)
			return
		case errno == unix.EADDRNOTAVAIL && rt.tunnel.SourceClient && !inFlight && w.now < f.start+addressPatience:
			o.awaitAddr = true
			w.timers.schedule(f, w.now+socketRetry)
			return
		case outOfResources(errno):
			// The client keeps waiting: descriptors may become free in time.
			w.pauseAccepting(errno)
			w.beginAwaitFD(o)
			o.reason, o.err = report.EndNoResources, errno
			w.timers.schedule(f, min(w.now+socketRetry, o.deadline))
			return
		default:
			w.endAwaitFD(o)
			o.addrs = o.addrs[1:]
			o.failed(to, errno)
		}
	}
}

// nextHop moves the flow to its next hop. It returns false if there is none, or if the flow waits
// for the resolver. A name without an address leaves the flow without one.
func (w *worker) nextHop(f *flow) bool {
	o, rt := f.opening, f.route
	if o.next == len(o.order) && !o.orderMore(rt, f.origin().Addr(), w.now) {
		w.giveUp(f)
		return false
	}
	t := &rt.targets[o.order[o.next]]
	f.joinHop(rt.hops.Hop(o.order[o.next]))
	o.next++
	o.host, o.port, o.nextAt = nil, t.port, 0
	switch {
	case t.original:
		o.addrs = append(o.few[:0], w.listenAddr(f))
	case t.literal.IsValid():
		o.addrs = append(o.few[:0], t.literal)
	default:
		addrs, err, known := w.relay.names.Cached(t.host, w.now)
		if !known {
			o.lookup = true
			o.attempt = o.share(w.now)
			w.timers.schedule(f, o.attempt)
			slot, gen, worker := f.slot, f.gen, w
			w.relay.names.Lookup(t.host, func(addrs []netip.Addr, err error) {
				worker.post(func() { worker.resolved(slot, gen, addrs, err) })
			})
			return false
		}
		w.take(f, addrs, err)
	}
	return true
}

// beginAwaitFD records that a flow waits for a descriptor. While one does, no
// worker accepts: a free descriptor would go to a later client.
func (w *worker) beginAwaitFD(o *opening) {
	if !o.awaitFD {
		o.awaitFD = true
		w.relay.starved.Add(1)
	}
}

// endAwaitFD records that a flow no longer waits for a descriptor.
func (w *worker) endAwaitFD(o *opening) {
	if o.awaitFD {
		o.awaitFD = false
		w.relay.starved.Add(-1)
	}
}

// share is the deadline of the attempts at a hop: the remaining time, divided
// equally among this hop and those that may follow.
func (o *opening) share(now time.Duration) time.Duration {
	return now + (o.deadline-now)/time.Duration(1+len(o.order)-o.next)
}

// origin is the address of the flow's client, from the PROXY header if there is
// one.
func (f *flow) origin() netip.AddrPort {
	if f.opening != nil && f.opening.source.IsValid() {
		return f.opening.source
	}
	return f.client
}

// blame counts a failed connect of a hop, once all its addresses failed or the
// flow moves to another hop.
func (w *worker) blame(f *flow) {
	o := f.opening
	if f.hop == nil || !o.blamed || o.brief {
		return
	}
	o.blamed = false
	if span := f.route.hops.ConnectFailed(f.hop, o.port, w.now, o.err); span > 0 {
		why := "connects of flows failed one after another"
		if f.route.hops.Paired() {
			why = "its far relay was lost for flows one after another"
		}
		w.relay.hopLeft(f.route.tunnel.Name, f.hop, why, o.err, "for", span)
	}
	w.relay.probes.Retry(f.route.tunnel.Name, f.route.hops, f.hop)
}

// moveOn moves a connecting flow from a hop that went down to the next usable
// hop. The old hop comes last in the order: it has refused nothing yet.
func (w *worker) moveOn(f *flow, from *hops.Hop) {
	o := f.opening
	if f.phase != phaseDialing || f.hop != from || o.lookup || o.awaitFD || f.legs[target].fd < 0 ||
		o.next == len(o.order) || !f.route.hops.Usable(o.order[o.next], w.now) {
		return
	}
	w.dropAttempts(f)
	o.order = append(o.order, o.order[o.next-1])
	o.addrs, o.blamed = nil, false
	o.reason, o.err = report.EndTargetUnreached, fmt.Errorf("%s went down", from.Name())
	w.dialNext(f)
}

// orderMore adds hops that came into service after the order was made.
func (o *opening) orderMore(rt *route, source netip.Addr, now time.Duration) bool {
	var inline [hops.Few]uint16
	for _, i := range rt.hops.Order(inline[:0], source, now) {
		if !slices.Contains(o.order, i) {
			o.order = append(o.order, i)
		}
	}
	return o.next < len(o.order)
}

// failed records why an attempt failed.
func (o *opening) failed(to netip.AddrPort, errno unix.Errno) {
	switch errno {
	case unix.ECONNREFUSED:
		o.reason, o.blamed = report.EndTargetRefused, true
		o.host.Failed(to)
	case unix.EADDRNOTAVAIL, unix.EAGAIN:
		o.reason = report.EndNoLocalPort
	case unix.EAFNOSUPPORT: // of the client's address, from which the flow would come
		o.reason, o.blamed = report.EndTargetUnreached, true
	default:
		o.reason, o.blamed = report.EndTargetUnreached, true
		o.host.Failed(to)
	}
	o.err = fmt.Errorf("connect to %s: %w", to, errno)
}

// unresolved records that a hop's name gave no address.
func (o *opening) unresolved(err error) {
	o.reason, o.err, o.blamed = report.EndTargetUnknown, err, true
}

func (w *worker) resolved(slot, gen uint32, addrs []netip.Addr, err error) {
	f := w.lookup(slot, gen)
	if f == nil || f.phase != phaseDialing || !f.opening.lookup {
		return
	}
	f.opening.lookup = false
	w.take(f, addrs, err)
	w.dialNext(f)
}

// dial begins to connect to one address. It returns zero if the result will
// arrive as an event, and an error if the flow must not have this connection.
func (w *worker) dial(f *flow, to netip.AddrPort) (errno unix.Errno, denied error) {
	as := family(to.Addr())
	fd, errno := newSocket(as)
	if errno != 0 && outOfResources(errno) && len(w.spare) > 0 && len(f.opening.beside) == 0 {
		last := len(w.spare) - 1
		closeFD(w.spare[last])
		w.spare = w.spare[:last]
		w.pauseAccepting(errno)
		fd, errno = newSocket(as)
	}
	if errno != 0 {
		return errno, nil
	}
	setLinger(fd, true)
	socket.KeepUrgentInLine(fd)
	if tr, _ := f.route.tunnel.transportTo(to.Addr()); tr != nil {
		if err := tr.Prepare(fd, true); err != nil {
			f.route.state.warnOnce(w.relay.log, "leg towards the target is not set up as asked", err.Error())
		}
	}
	f.opening.ackHeld = f.speaksFirst()
	if f.opening.ackHeld || f.opening.host != nil {
		// The first data segment acknowledges the handshake: the target wakes
		// once, with something to read. An attempt that loses a race acknowledges nothing.
		// TCP acknowledges the first segments of the reply at once as on any new connection,
		// since the sender's slow start depends on it. Turning TCP_QUICKACK off would stop this.
		setsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 1)
	}
	if f.route.tunnel.marksSYNs() {
		setHops(fd, as, synHops)
	}
	errno, denied = w.connectFor(f, fd, as, to)
	if denied == nil && (errno == 0 || errno == unix.EINPROGRESS) {
		f.setTarget(to)
		f.legs[target], f.opening.batch = leg{fd: int32(fd), nagle: true}, w.batch
		errno = w.watch(fd, f, target)
	}
	if errno != 0 || denied != nil {
		f.legs[target].fd = -1
		closeFD(fd)
	}
	return errno, denied
}

// connectFor connects a prepared socket for a flow.
func (w *worker) connectFor(f *flow, fd, as int, to netip.AddrPort) (errno unix.Errno, denied error) {
	if errno, denied = w.mayReach(f, fd, as, to); errno != 0 || denied != nil {
		return errno, denied
	}
	fromClient := f.route.tunnel.SourceClient
	if fromClient {
		if !isSource(f.client) {
			return 0, fmt.Errorf("%s cannot be the source of a connection", f.client)
		}
		if errno = bindAsClient(fd, as, f.client); errno != 0 {
			return errno, nil
		}
	}
	sa := toSockaddr(to, as)
	errno = connect(fd, &sa)
	if fromClient && (errno == 0 || errno == unix.EINPROGRESS) {
		// The kernel binds to the broadcast address of a network of its own, and then dials
		// from an address of this host.
		if from := localAddr(fd); !sameEnd(from, f.client) {
			return 0, fmt.Errorf("%s cannot be the source of a connection: the kernel used %s", f.client, from)
		}
	}
	return errno, nil
}

// mayReach returns why a flow must not reach the address that its client dialed: it is one
// of this host, whose services rely on what its firewall lets in from outside.
func (w *worker) mayReach(f *flow, fd, as int, to netip.AddrPort) (errno unix.Errno, denied error) {
	t := f.route.tunnel
	if t.LocalTargets || !f.route.targets[0].original {
		return 0, nil
	}
	q := queryOf(fd, as, to, netip.AddrPort{})
	if t.SourceClient {
		q.from = f.client
	}
	own, err := w.fib.isOwn(q)
	switch {
	case errors.As(err, &errno) && outOfResources(errno):
		return errno, nil
	case err != nil:
		return 0, fmt.Errorf("cannot tell whether %s is an address of this host: %w; allow the relay netlink sockets (RestrictAddressFamilies), or see local_targets", to.Addr(), err)
	case own:
		return 0, fmt.Errorf("%s is an address of this host: see local_targets", to.Addr().Unmap())
	}
	return 0, nil
}

// speaksFirst reports whether bytes for the target are ready when it accepts.
func (f *flow) speaksFirst() bool {
	return f.route.tunnel.ProxyOut != ProxyNone || len(f.opening.header) > 0 || f.legs[client].readable
}

// dialed handles the result of a connect after an event of the target leg.
func (w *worker) dialed(f *flow, events uint32) {
	o := f.opening
	if o.raced {
		w.raced(f)
		return
	}
	switch done, errno := w.connectResult(&f.legs[target], f.target(), events); {
	case !done:
	case errno != 0:
		w.dropAttempt(f)
		o.failed(f.target(), errno)
		w.dialNext(f)
	default:
		w.won(f, events)
	}
}

// connectResult finds what has become of a connect: events are those of its socket.
func (w *worker) connectResult(l *leg, to netip.AddrPort, events uint32) (done bool, errno unix.Errno) {
	if events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		errno := socketError(int(l.fd))
		if errno != unix.ECONNRESET && errno != unix.EPIPE {
			return true, cmp.Or(errno, unix.ECONNREFUSED)
		}
		// The target accepted, perhaps sent something, and then reset.
		l.failed = errorNumber(errno)
		l.fin = errno == unix.EPIPE // EPIPE: the reset came after a FIN
	} else if events&unix.EPOLLOUT == 0 {
		return false, 0
	}
	if w.relay.localPorts.has(to.Port()) && localAddr(int(l.fd)) == to {
		// If nobody listens on an ephemeral port, TCP's simultaneous open can
		// connect a socket to itself.
		return true, unix.ECONNREFUSED
	}
	return true, 0
}

func (w *worker) dropAttempt(f *flow) {
	closeFD(int(f.legs[target].fd))
	f.legs[target] = leg{fd: -1}
}

// clientEvent handles an event of the client's leg while its flow has no target.
func (w *worker) clientEvent(f *flow, events uint32) {
	o, l := f.opening, &f.legs[client]
	l.note(events)
	if events&unix.EPOLLERR == 0 {
		w.boundClient(f, events)
		w.recognizeEarly(f)
		return
	}
	if len(o.header) > 0 || socket.Unread(int(l.fd)) > 0 {
		o.broken = true // the target must still get the earlier bytes
		return
	}
	errno := unix.Errno(l.failed)
	if errno == 0 {
		errno = socketError(int(l.fd))
	}
	w.abort(f, legFailure(client, errno), errnoOrNil(errno))
}

// established begins to move bytes.
func (w *worker) established(f *flow, events uint32) {
	if f.held != nil {
		w.targetAccepted(f, events)
		return
	}
	o := f.opening
	f.opening = nil
	defer w.openings.put(o)
	if f.route.tunnel.marksSYNs() {
		setHops(int(f.legs[target].fd), family(f.target().Addr()), -1)
	}
	w.connectLegs(f, events)
	if f.paired != nil {
		w.setUpLegs(f)
		f.legs[target].noDelay(1, 0)
		w.handTarget(f)
		return
	}
	w.queueHeader(f, o)
	if w.recognizing(f) {
		w.passOnResets(f, o)
		w.moveFirst(f, o)
	}
}

// connectLegs makes a flow's two legs ready to move bytes.
func (w *worker) connectLegs(f *flow, events uint32) {
	f.hop.Connected(w.now)
	f.phase = phaseMoving
	f.active = w.now
	f.legs[target].note(events)
	f.legs[target].writable = true
	f.legs[client].writable = true
	if tr, _ := f.route.tunnel.transportTo(f.target().Addr()); tr != nil {
		f.legs[target].plain, f.lasting = true, true
		if tr.Early(true) {
			w.setUpTarget(f)
		}
	}
	w.timers.remove(f)
	w.schedule(f)
}

// queueHeader puts the PROXY header for the target before the bytes that came
// behind the client's own.
func (w *worker) queueHeader(f *flow, o *opening) {
	if version := f.route.tunnel.ProxyOut; version != ProxyNone {
		h := proxyproto.Header{Source: f.client, Destination: w.listenAddr(f)}
		if o.source.IsValid() {
			h.Source, h.Destination = o.source, o.dest
		}
		header := f.proxyHeader(version, h)
		f.dirs[up].bytes = -int64(len(header)) // only payload counts
		o.header = append(header, o.header...)
	}
	if len(o.header) > 0 {
		own := o.header
		f.dirs[up].own = &own
		f.dirs[up].held = int32(len(o.header))
	}
	if o.source.IsValid() {
		f.client = o.source
	}
}

// proxyHeader is the PROXY header for the target. In version 2 it has the flow's name, as text, which
// programs show as it is.
func (f *flow) proxyHeader(version ProxyVersion, h proxyproto.Header) []byte {
	header := proxyproto.AppendHeader(nil, int(version), h)
	if version == ProxyV2 {
		header = proxyproto.AppendExtension(header, proxyproto.UniqueID, []byte(f.name.String()))
	}
	return header
}

// passOnResets applies the resets that a leg's peer has sent while the flow was
// dialing.
func (w *worker) passOnResets(f *flow, o *opening) {
	if l := &f.legs[target]; l.failed != 0 {
		w.writeFailed(f, target, unix.Errno(l.failed))
	}
	if o.broken && f.connected() {
		w.apply(f, f.end.step(eventBroken, client))
	}
}

// moveFirst moves the first bytes of a flow.
func (w *worker) moveFirst(f *flow, o *opening) {
	if f.connected() {
		w.run(f)
	}
	if o.ackHeld && f.connected() && f.dirs[up].bytes <= 0 {
		// There was nothing to send: the handshake's ACK goes out now.
		setsockoptInt(int(f.legs[target].fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1)
	}
}

// openingDue handles a deadline of a flow that is not established.
func (w *worker) openingDue(f *flow) {
	o := f.opening
	switch {
	case f.phase == phaseHeader:
		if w.now >= f.start+headerTimeout {
			w.abort(f, report.EndBadProxyHeader, errors.New("no complete header within 5 s"))
			return
		}
		w.timers.schedule(f, f.start+headerTimeout)
	case f.phase == phaseAwaiting:
		w.abort(f, o.reason, o.err)
	case f.phase == phaseHeld:
		w.abort(f, report.EndClientTimeout, errHeldTimeout)
	case f.phase == phaseWaiting:
		w.waitedInVain(f)
	case o.awaitFD, o.awaitAddr:
		o.awaitAddr = false
		w.dialNext(f)
	case o.nextAt != 0 && w.now >= o.nextAt && w.now < o.attempt:
		w.nextBeside(f)
	case w.now < o.attempt:
		w.scheduleAttempt(f)
	case o.lookup:
		o.lookup = false
		o.unresolved(fmt.Errorf("no answer about %s in time", f.route.targets[o.order[o.next-1]].host))
		w.dialNext(f)
	default:
		for i := range o.beside {
			o.failed(o.beside[i].to, unix.ETIMEDOUT)
		}
		o.failed(f.target(), unix.ETIMEDOUT)
		w.dropAttempts(f)
		o.addrs = nil
		w.dialNext(f)
	}
}

// noHop is why a flow has no hop.
func (rt *route) noHop() error {
	if len(rt.targets) == 0 {
		return fmt.Errorf("the service %s has no targets; longhaul status has the reason", rt.tunnel.Service)
	}
	return errors.New("every hop of the tunnel is drained; longhaul resume puts one back")
}

// giveUp ends a flow for which no target accepted.
func (w *worker) giveUp(f *flow) {
	o := f.opening
	w.blame(f)
	w.dropAttempts(f)
	switch {
	case o.reason != "":
	case len(o.order) == 0:
		o.reason, o.err = report.EndNoHop, f.route.noHop()
	default:
		o.reason, o.err = report.EndTargetUnreached, unix.ETIMEDOUT
	}
	if !w.awaitHello(f) {
		w.abort(f, o.reason, o.err)
	}
}

// abort resets both legs at once.
func (w *worker) abort(f *flow, reason report.EndReason, err error) {
	f.fail(reason, err)
	w.apply(f, f.end.step(eventAbort, client))
}

// leave ends a flow at once. The kernel delivers the queue and FIN of a leg
// that has nothing else left to do; the relay resets other legs.
func (w *worker) leave(f *flow, reason report.EndReason) {
	f.fail(reason, nil)
	w.apply(f, f.end.step(eventLeave, client))
}

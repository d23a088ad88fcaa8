package relay

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/relay/hops"
)

// table is what the relay listens on and where it leads. It is replaced as a
// whole and never changed, so that a snapshot needs no lock.
type table struct {
	tunnels   []*installed
	listeners map[listenKey]*listener
	removed   []*installed // tunnels of earlier tables that had flows when this one came, or may get some at that moment
}

// removedBy returns the tunnels, of this table and earlier ones, that are not in the next one.
func (t *table) removedBy(next *table) (all []*installed) {
	has := func(st *tunnelState) bool {
		return slices.ContainsFunc(next.tunnels, func(in *installed) bool { return in.state == st })
	}
	for _, in := range t.removed {
		if in.state.flows.Load() > 0 && !has(in.state) {
			all = append(all, in)
		}
	}
	for _, in := range t.tunnels {
		if !has(in.state) {
			all = append(all, in)
		}
	}
	return all
}

// hops returns the hops of every tunnel by the tunnel's name.
func (t *table) hops() map[string]*hops.Set {
	all := map[string]*hops.Set{}
	for _, in := range t.tunnels {
		all[in.tunnel.Name] = in.hops
	}
	return all
}

// installed is a tunnel with its listeners.
type installed struct {
	tunnel    *Tunnel
	state     *tunnelState
	hops      *hops.Set
	listeners []*listener
	far       []*route // of a far tunnel, which listens on one port: by the offset in its hops' ranges
}

// plan is a table that is being built, and how to undo what that took.
type plan struct {
	next   *table
	fresh  []*listener
	routes map[*listener]*route
	kept   []*listener // of tunnels that change
	undo   []func()
	lost   []error // of listeners that the undoing could not have listen again
}

func (p *plan) fail() {
	for i := len(p.undo) - 1; i >= 0; i-- {
		p.undo[i]()
	}
}

// Change is a set of tunnels that the relay has prepared. Commit or Abort ends it.
type Change struct {
	relay *Relay
	plan  *plan
}

// Prepare makes ready to replace the tunnels, all or none of them. It checks
// them and binds their new addresses. The error names the address and what to
// do about it. Flows and listeners stay as they are until Commit, but a client
// that connects to a new address waits in its queue. A new address that overlaps
// one that leaves is bound by Commit, which refuses clients for a moment.
//
// A tunnel that is the same as before is left alone. Where a changed one keeps
// a listening address it keeps the socket, so no connection is refused; the
// change takes effect for new flows. A removed one stops listening. No flow is
// ended.
func (r *Relay) Prepare(tunnels []Tunnel) (*Change, error) {
	tunnels, err := validateTunnels(tunnels)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.draining.Load() {
		return nil, ErrClosed
	}
	if r.change != nil {
		return nil, errors.New("another change of the tunnels is under way; commit or abort it first")
	}
	old := r.table.Load()
	p := &plan{next: &table{listeners: map[listenKey]*listener{}}, routes: map[*listener]*route{}}
	before := make(map[string]*installed, len(old.tunnels))
	for _, in := range old.tunnels {
		before[in.tunnel.Name] = in
	}
	for i := range tunnels {
		if err := r.planTunnel(p, old, before[tunnels[i].Name], &tunnels[i], tunnels); err != nil {
			p.fail()
			return nil, err
		}
	}
	r.change = &Change{r, p}
	return r.change, nil
}

// Commit puts the tunnels into force. The first one starts the relay. Where the
// kernel has no room for event loops or listeners it changes nothing, and
// aborts. A relay that was closed or drained since Prepare returns ErrClosed.
func (c *Change) Commit() error {
	r := c.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.change != c {
		return ErrClosed
	}
	first := !r.started
	if first {
		if err := r.start(); err != nil {
			c.abort()
			return err
		}
	}
	if err := r.install(c.plan); err != nil {
		c.abort()
		if first {
			r.stop()
		}
		if len(c.plan.lost) > 0 {
			err = errors.Join(append([]error{err}, c.plan.lost...)...)
		}
		return err
	}
	r.change = nil
	r.opts.Listeners, r.opts.Drained, r.opts.Hops, r.opts.Names = nil, nil, nil, nil // later changes are new
	return nil
}

// Abort gives up what Prepare has bound. After Commit it does nothing.
func (c *Change) Abort() {
	c.relay.mu.Lock()
	defer c.relay.mu.Unlock()
	if c.relay.change == c {
		c.abort()
	}
}

func (c *Change) abort() {
	c.plan.fail()
	c.relay.change = nil
}

// giveUpChange aborts the change that is prepared, before its listeners go.
func (r *Relay) giveUpChange() {
	if r.change != nil {
		r.change.abort()
	}
}

// install makes the plan's table the relay's, or returns an error and has
// changed nothing that the plan does not undo.
func (r *Relay) install(p *plan) error {
	old := r.table.Load()
	for _, l := range p.kept {
		before := l.route.Load().tunnel.Transport
		p.undo = append(p.undo, func() { _ = l.prepare(before) })
		if err := l.prepare(p.routes[l].tunnel.Transport); err != nil {
			return err
		}
	}
	if err := r.takePlaces(p); err != nil {
		return err
	}
	// Listeners accept with their route in place.
	for _, l := range p.fresh {
		l.route.Store(p.routes[l])
		if err := r.attune(p, l, true); err != nil {
			return err
		}
	}
	for l := range p.routes {
		if err := r.attune(p, l, false); err != nil {
			return err
		}
	}
	for l, rt := range p.routes {
		l.route.Store(rt)
	}
	p.next.removed = old.removedBy(p.next)
	r.table.Store(p.next)
	r.probes.Follow(p.next.hops())
	r.HopsChanged()
	var gone []*listener
	for key, l := range old.listeners {
		if p.next.listeners[key] != l {
			gone = append(gone, l)
		}
	}
	r.closeListeners(gone)
	return nil
}

// takePlaces has listeners listen whose addresses overlap those of others that leave. Each of these stops just
// before, and stays bound until the change is whole. To share the port meanwhile (SO_REUSEPORT) would leave
// it open to other programs of this user for good: the kernel remembers it for the port.
func (r *Relay) takePlaces(p *plan) error {
	var fresh, leave, stopped []*listener
	for _, l := range p.fresh {
		if len(l.leave) > 0 {
			fresh, leave = append(fresh, l), append(leave, l.leave...)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	p.undo = append(p.undo, func() { p.lost = r.giveBack(fresh, leave, stopped) })
	r.settle(leave...)
	for _, l := range fresh {
		for _, old := range l.leave {
			if !old.silent {
				stopped = append(stopped, old)
				r.silence(old)
			}
			// Two sockets of which none listens may then have one port.
			setsockoptInt(old.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		}
		if errno := l.bindAndListen(family(l.key.addr.Addr())); errno != 0 {
			return listenError(l.key.addr, errno)
		}
		l.know()
	}
	return nil
}

// giveBack undoes takePlaces: those that it stopped listen again. Where one cannot, since another program took
// its address in that moment, LookAtListeners goes on trying.
func (r *Relay) giveBack(fresh, leave, stopped []*listener) (lost []error) {
	for _, l := range fresh {
		for _, w := range r.workers {
			w.do(func() { w.dropListener(l, false) })
		}
		_ = unix.Shutdown(l.fd, unix.SHUT_RDWR)
	}
	for _, old := range leave {
		if !slices.Contains(stopped, old) {
			setsockoptInt(old.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 0) // as shut left it
			continue
		}
		if err := r.wake(old); err != nil {
			text := err.Error()
			old.lost = true
			old.setAbsent(&text)
			lost = append(lost, fmt.Errorf("the former address does not listen either, and is tried again: %w", err))
		}
	}
	return lost
}

// attune has a listener accept, or not if its tunnel is drained.
func (r *Relay) attune(p *plan, l *listener, fresh bool) error {
	drained := p.routes[l].state.drained.Load() && !p.routes[l].tunnel.listensDrained()
	switch {
	case l.unbound:
	case drained && !l.silent:
		p.undo = append(p.undo, func() { _ = r.wake(l) })
		r.silence(l)
	case !drained && l.silent:
		p.undo = append(p.undo, func() { r.silence(l) })
		return r.wake(l)
	case !drained && fresh:
		return r.attach(l)
	}
	return nil
}

// attach has every worker accept from a listener.
func (r *Relay) attach(l *listener) error {
	for _, w := range r.workers {
		var errno unix.Errno
		w.do(func() { errno = w.addListener(l) })
		if errno != 0 {
			return fmt.Errorf("cannot accept on %s: %w", l.bound, errno)
		}
	}
	return nil
}

// planTunnel plans a tunnel. was is the tunnel of that name in old; nil for a new one.
func (r *Relay) planTunnel(p *plan, old *table, was *installed, t *Tunnel, all []Tunnel) error {
	in := &installed{tunnel: t}
	if was != nil {
		in.state = was.state
	} else {
		r.lives++
		in.state = &tunnelState{name: t.Name, life: r.lives}
		if i := slices.IndexFunc(old.removed, func(o *installed) bool { return o.tunnel.Name == t.Name && o.state.flows.Load() > 0 }); i >= 0 {
			in.state = old.removed[i].state // its flows count on
		}
		in.state.drained.Store(slices.Contains(r.opts.Drained, t.Name))
	}

	taken := map[netip.AddrPort]*listener{}
	addrs := append([]netip.AddrPort(nil), t.Listen...)
	for _, f := range t.Inherited {
		l, err := r.takeOver(p, old, f, t.Transport)
		if err != nil {
			return err
		}
		if !containsAddr(addrs, l.key.addr) {
			addrs = append(addrs, l.key.addr)
		}
		taken[l.key.addr] = l
	}
	lowest := addrs[0].Port()
	for _, a := range addrs {
		lowest = min(lowest, a.Port())
	}
	same := was != nil && was.tunnel.Equal(t)
	if same {
		in.tunnel = was.tunnel
	}
	var before *hops.Set
	if was != nil {
		before = was.hops
	}
	in.hops = hops.New(t.Forward, t.Balance, t.Health, before)
	if t.Service != "" {
		in.hops.KeepDrained(before)
	}
	in.hops.Remember(t.Name, r.opts.Hops, t.Service != "")
	for _, a := range addrs {
		key := listenKey{addr: a}
		if t.Transparent {
			key.tunnel = t.Name
		}
		for ; p.next.listeners[key] != nil; key.ordinal++ {
			if a.Port() != 0 {
				return fmt.Errorf("tunnel %q and tunnel %q both listen on %s; give each its own address",
					p.routes[p.next.listeners[key]].tunnel.Name, t.Name, a)
			}
		}
		l := taken[a]
		if l == nil {
			l = old.listeners[key]
		}
		switch {
		case l == nil:
			var err error
			if l, err = r.handedOver(p, key, t.Transport); l == nil && err == nil {
				l, err = openListener(key, hasIPv4Wildcard(all, a.Port()), t.Transport, old.leaving(all, a.Port())...)
			}
			if err != nil {
				return err
			}
			r.adopt(p, l)
		case old.listeners[key] == l && l.route.Load().tunnel != in.tunnel:
			p.kept = append(p.kept, l)
		}
		p.next.listeners[key] = l
		in.listeners = append(in.listeners, l)
		p.routes[l] = r.newRoute(in.tunnel, in.state, in.hops, l.bound, a.Port()-lowest)
	}
	if t.PairServer != nil {
		first := p.routes[in.listeners[0]]
		in.far = append(in.far, first)
		for offset := 1; len(t.Forward) > 0 && offset < t.Forward[0].Ports; offset++ {
			in.far = append(in.far, r.newRoute(in.tunnel, in.state, in.hops, first.listen, uint16(offset)))
		}
	}
	p.next.tunnels = append(p.next.tunnels, in)
	return nil
}

// takeOver returns the listener of an inherited socket, which may be one that
// an earlier load took over.
func (r *Relay) takeOver(p *plan, old *table, f *os.File, tr Transport) (*listener, error) {
	l, err := inherit(f)
	if err != nil {
		return nil, err
	}
	if known := old.listeners[l.key]; known != nil {
		closeFD(l.fd)
		return known, nil
	}
	r.adopt(p, l)
	return l, l.takeUp(tr)
}

// adopt gives a new listener its number and makes sure that it goes if the
// plan fails.
func (r *Relay) adopt(p *plan, l *listener) {
	r.nextID++
	l.id = r.nextID
	p.fresh = append(p.fresh, l)
	p.undo = append(p.undo, func() {
		for _, w := range r.workers {
			w.do(func() { w.dropListener(l, false) })
		}
		closeFD(l.fd)
	})
}

// closeListener takes a listener from every worker before it closes it: its
// descriptor's number may be another socket's right after.
func (r *Relay) closeListener(l *listener) {
	for _, w := range r.workers {
		w.do(func() { w.dropListener(l, true) })
	}
	if l.silent && l.inherited && !l.unbound { // as it was when it came
		l.listenAgain()
	}
	closeFD(l.fd)
}

func (r *Relay) closeListeners(all []*listener) {
	r.settle(all...)
	for _, l := range all {
		r.closeListener(l)
	}
}

// emptyTable leaves the tunnels without listeners, but for those that keep says,
// and returns the listeners. Nil keeps none.
func (r *Relay) emptyTable(keep func(*installed) bool) (gone []*listener) {
	old := r.table.Load()
	if len(old.listeners) == 0 {
		return nil
	}
	next := &table{listeners: map[listenKey]*listener{}, removed: old.removed}
	for _, in := range old.tunnels {
		left := &installed{tunnel: in.tunnel, state: in.state, hops: in.hops}
		if keep != nil && keep(in) {
			left.listeners, left.far = in.listeners, in.far
			for _, l := range in.listeners {
				next.listeners[l.key] = l
			}
		} else {
			gone = append(gone, in.listeners...)
		}
		next.tunnels = append(next.tunnels, left)
	}
	r.table.Store(next)
	return gone
}

// listensDrained reports whether the tunnel goes on listening while it is drained. A far
// tunnel's flows may need new lanes, and OpenPaired refuses new flows.
func (t *Tunnel) listensDrained() bool { return t.Transparent || t.PairServer != nil }

// needsLanes reports whether a tunnel has flows that live on by connections that
// near relays make anew.
func (in *installed) needsLanes() bool {
	return in.tunnel.PairServer != nil && in.state.flows.Load() > 0
}

// leaving are the listeners on a port whose address no tunnel has any more.
func (t *table) leaving(tunnels []Tunnel, port uint16) (all []*listener) {
	for key, l := range t.listeners {
		has := func(t Tunnel) bool { return containsAddr(t.Listen, key.addr) }
		if key.addr.Port() == port && !l.inherited && !l.unbound && !slices.ContainsFunc(tunnels, has) {
			all = append(all, l)
		}
	}
	return all
}

func containsAddr(addrs []netip.AddrPort, a netip.AddrPort) bool {
	for _, b := range addrs {
		if a == b {
			return true
		}
	}
	return false
}

func hasIPv4Wildcard(tunnels []Tunnel, port uint16) bool {
	for i := range tunnels {
		if containsAddr(tunnels[i].Listen, netip.AddrPortFrom(netip.IPv4Unspecified(), port)) {
			return true
		}
	}
	return false
}

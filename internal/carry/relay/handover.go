package relay

import (
	"fmt"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/relay/names"
)

// Listener is a listening socket on its way from one relay process to its
// successor.
type Listener struct {
	Configured netip.AddrPort // the entry of Listen; its port may be 0
	Bound      netip.AddrPort
	Inherited  bool   // the service manager (systemd) has the socket
	Tunnel     string // of a transparent listener; empty: the listener is not transparent
	File       *os.File
}

// Listeners returns the relay's listening sockets, including those of drained
// tunnels. The caller closes the files; the relay keeps its sockets.
func (r *Relay) Listeners() ([]Listener, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.started || r.closed || r.draining.Load() {
		return nil, ErrClosed
	}
	var all []Listener
	for _, in := range r.table.Load().tunnels {
		for _, l := range in.listeners {
			if l.unbound { // the next process waits for its address itself
				continue
			}
			fd, err := unix.FcntlInt(uintptr(l.fd), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				for _, l := range all {
					l.File.Close()
				}
				return nil, fmt.Errorf("hand over the listener on %s: %w", l.bound, err)
			}
			all = append(all, Listener{l.key.addr, l.bound, l.inherited, l.key.tunnel, os.NewFile(uintptr(fd), l.bound.String())})
		}
	}
	return all, nil
}

// Relinquish stops accepting and checking hops for good, and leaves the
// listening sockets to the process that shares them. The sockets go on
// listening, and that process accepts the queued connections. Flows go on;
// Drain waits for them.
func (r *Relay) Relinquish() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.started || r.closed || r.draining.Load() {
		return ErrClosed
	}
	r.giveUpChange()
	r.relinquished.Store(true)
	r.draining.Store(true)
	for _, l := range r.emptyTable(nil) {
		for _, w := range r.workers {
			w.do(func() { w.dropListener(l, false) })
		}
		closeFD(l.fd)
	}
	// The process that accepts their clients dials anew.
	r.releaseHeld("", phaseHeld)
	r.releaseHeld("", phaseDialing)
	r.probes.Close()
	return nil
}

// Names lists what the relay knows of names, for the succeeding relay.
func (r *Relay) Names() []names.Memory { return r.names.Memory() }

// NameCache is the relay's cache of names, which also follows services.
func (r *Relay) NameCache() *names.Cache { return r.names }

// Sweep accepts the waiting connections of every listener. The kernel wakes one
// event loop per connection, and it may have woken one of a process that has
// stopped accepting.
func (r *Relay) Sweep() {
	r.mu.Lock()
	workers := r.workers
	r.mu.Unlock()
	for _, w := range workers {
		w.do(func() {
			for _, l := range w.listeners {
				for range listenBacklog {
					if w.paused || !w.acceptOne(l) {
						break
					}
				}
			}
		})
	}
}

// Reclaim restores the options and the state of the listening sockets after
// another process that shared them has ended.
func (r *Relay) Reclaim() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.started || r.closed || r.draining.Load() {
		return ErrClosed
	}
	for _, in := range r.table.Load().tunnels {
		for _, l := range in.listeners {
			if err := l.prepare(in.tunnel.Transport); err != nil {
				return err
			}
			switch listening := listens(l.fd); {
			case l.unbound:
			case l.silent && listening:
				l.shut()
			case !l.silent && !listening:
				if errno := l.listenAgain(); errno != 0 {
					return listenError(l.bound, errno)
				}
			}
		}
	}
	return nil
}

// handedOver returns the socket that another process handed over for an
// address, or nil.
func (r *Relay) handedOver(p *plan, key listenKey, tr Transport) (*listener, error) {
	for i, h := range r.opts.Listeners {
		same := h.Configured == key.addr ||
			key.addr.Port() != 0 && h.Bound.Port() == key.addr.Port() && h.Bound.Addr().WithZone("") == key.addr.Addr().WithZone("")
		if !same || h.Tunnel != key.tunnel {
			continue
		}
		l, err := inherit(h.File)
		if err != nil {
			return nil, err
		}
		r.opts.Listeners = slices.Delete(r.opts.Listeners, i, i+1) // for one listener only
		p.undo = append(p.undo, func() { r.opts.Listeners = append(r.opts.Listeners, h) })
		l.key, l.inherited = key, h.Inherited
		l.know()
		why, _ := key.absence()
		l.absent.Store(why)
		if err := l.takeUp(tr); err != nil {
			closeFD(l.fd)
			return nil, err
		}
		return l, nil
	}
	return nil, nil
}

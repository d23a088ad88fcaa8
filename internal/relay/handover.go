package relay

import (
	"fmt"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Listener is a listening socket, as it passes from one relay's process to that
// of another which follows it.
type Listener struct {
	Configured netip.AddrPort // the entry of Listen; its port may be 0
	Bound      netip.AddrPort
	Inherited  bool // whoever started the relay, systemd, has the socket as well
	File       *os.File
}

// Listeners returns the relay's listening sockets, those of drained tunnels
// too. The files are the caller's to close; the sockets are the relay's own.
func (r *Relay) Listeners() ([]Listener, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.started || r.closed || r.draining.Load() {
		return nil, ErrClosed
	}
	var all []Listener
	for _, in := range r.table.Load().tunnels {
		for _, l := range in.listeners {
			fd, err := unix.FcntlInt(uintptr(l.fd), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				for _, l := range all {
					l.File.Close()
				}
				return nil, fmt.Errorf("cannot hand over the listener on %s: %w; raise the limit of open files", l.bound, err)
			}
			all = append(all, Listener{l.key.addr, l.bound, l.inherited, os.NewFile(uintptr(fd), l.bound.String())})
		}
	}
	return all, nil
}

// Relinquish stops accepting and checking hops for good, and leaves the
// listening sockets to the process that has them as well: they go on listening,
// and what waits in their queues is that process's to accept. Flows go on;
// Drain waits for them.
func (r *Relay) Relinquish() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.started || r.closed || r.draining.Load() {
		return ErrClosed
	}
	r.giveUpChange()
	r.draining.Store(true)
	for _, l := range r.emptyTable() {
		for _, w := range r.workers {
			w.do(func() { w.dropListener(l, false) })
		}
		closeFD(l.fd)
	}
	r.probes.close()
	return nil
}

// Sweep looks for connections at every listener. A process that shares the
// sockets may have been woken for some that it has left: the kernel tells one
// event loop of each, whosever it is.
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

// Reclaim sets the listening sockets up as this relay had them, after another
// process that shared them has ended.
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

// handedOver returns the socket that another process had for an address, or nil.
func (r *Relay) handedOver(key listenKey, tr Transport) (*listener, error) {
	for i, h := range r.opts.Listeners {
		same := h.Configured == key.addr ||
			key.addr.Port() != 0 && h.Bound.Port() == key.addr.Port() && h.Bound.Addr().WithZone("") == key.addr.Addr().WithZone("")
		if !same {
			continue
		}
		l, err := inherit(h.File)
		if err != nil {
			return nil, err
		}
		r.opts.Listeners = slices.Delete(r.opts.Listeners, i, i+1) // for one listener only
		l.key, l.inherited = key, h.Inherited
		if err := l.takeUp(tr); err != nil {
			closeFD(l.fd)
			return nil, err
		}
		return l, nil
	}
	return nil, nil
}

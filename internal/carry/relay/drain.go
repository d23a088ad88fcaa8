package relay

import (
	"errors"

	"golang.org/x/sys/unix"
)

// ErrNoTunnel is returned for a name that no tunnel has.
var ErrNoTunnel = errors.New("no such tunnel")

// DrainTunnel takes a tunnel out of service: the kernel refuses new connections
// with a reset, and the tunnel's flows go on. Connections that already wait in
// the accept queue are served. The tunnel stays drained across reloads until
// ResumeTunnel. Draining a drained tunnel does nothing.
//
// A listener configured with port 0 gets another port when it is resumed. The
// kernel keeps only a configured port.
func (r *Relay) DrainTunnel(name string) error {
	return r.withTunnel(name, func(in *installed) error {
		in.state.drained.Store(true)
		if in.tunnel.listensDrained() {
			r.ReleaseHeld(name)
			return nil
		}
		r.settle(in.listeners...)
		for _, l := range in.listeners {
			r.silence(l)
		}
		return nil
	})
}

// ResumeTunnel puts a drained tunnel back into service.
func (r *Relay) ResumeTunnel(name string) error {
	return r.withTunnel(name, func(in *installed) error {
		for i, l := range in.listeners {
			if err := r.wake(l); err != nil {
				for _, l := range in.listeners[:i] {
					if in.state.drained.Load() {
						r.silence(l)
					}
				}
				return err
			}
		}
		in.state.drained.Store(false)
		return nil
	})
}

// Flows counts the flows of all tunnels.
func (r *Relay) Flows() int64 { return r.live.Load() }

// FlowsByTunnel counts the flows of each tunnel.
func (r *Relay) FlowsByTunnel() map[string]int64 {
	flows := map[string]int64{}
	for _, in := range r.table.Load().tunnels {
		flows[in.tunnel.Name] = in.state.flows.Load()
	}
	return flows
}

// Drained lists the names of the tunnels that are out of service.
func (r *Relay) Drained() []string {
	var names []string
	for _, in := range r.table.Load().tunnels {
		if in.state.drained.Load() {
			names = append(names, in.tunnel.Name)
		}
	}
	return names
}

func (r *Relay) withTunnel(name string, f func(*installed) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.started || r.closed || r.draining.Load() {
		return ErrClosed
	}
	for _, in := range r.table.Load().tunnels {
		if in.tunnel.Name == name {
			return f(in)
		}
	}
	return ErrNoTunnel
}

// silence stops a listener from listening, after its accept queue has been
// served. The socket stays bound, so that wake can listen on the address again.
// Another process that shares the socket keeps it.
func (r *Relay) silence(l *listener) {
	if l.silent || l.unbound {
		return
	}
	l.silent = true
	for i, w := range r.workers {
		w.do(func() {
			w.dropListener(l, true)
			if i == len(r.workers)-1 { // nothing else runs in between
				l.shut()
			}
		})
	}
}

// wake makes a silent listener accept again; on an error it stays silent.
func (r *Relay) wake(l *listener) error {
	if !l.silent || l.unbound {
		return nil
	}
	if errno := l.listenAgain(); errno != 0 {
		return listenError(l.bound, errno)
	}
	l.silent = false
	l.settling.Store(false)
	if err := r.attach(l); err != nil {
		r.silence(l)
		return err
	}
	return nil
}

// shut ends listening; the kernel resets connections still in the queue. While
// the socket is bound but does not listen, a socket with SO_REUSEADDR could
// take the address if this one has the option. So shut clears it. Accepted
// sockets keep theirs.
func (l *listener) shut() {
	_ = unix.Shutdown(l.fd, unix.SHUT_RDWR)
	acceptSYNs(l.fd)
	setsockoptInt(l.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 0)
}

func (l *listener) listenAgain() unix.Errno {
	setsockoptInt(l.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	err := unix.Listen(l.fd, listenBacklog)
	var errno unix.Errno
	if err != nil && !errors.As(err, &errno) {
		errno = unix.EINVAL
	}
	return errno
}

// listens reports whether a socket is listening.
func listens(fd int) bool {
	accepts, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	return err == nil && accepts != 0
}

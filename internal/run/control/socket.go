// Package control is the local interface of a running relay. It is HTTP/1.1
// over a unix socket for the relay's user and root only. A relay can take over
// the socket's path from its predecessor without a gap.
package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/dirlock"
	"longhaul/internal/sys/localsocket"
)

// ErrInUse is returned by [Listen] if a living process answers on the socket.
var ErrInUse = errors.New("another relay uses this control socket; stop it, or give this one another with --name NAME or --control-socket FILE")

// Listen makes the socket, accessible to its owner only. It replaces the socket
// of a dead process; for a living one it returns [ErrInUse].
func Listen(ctx context.Context, path string) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := localsocket.MakeDirectory(dir); err != nil {
		return nil, fmt.Errorf("make the control socket: %w; --control-socket FILE puts it elsewhere", err)
	}
	// Two starting relays must not both find the old socket dead and then
	// remove each other's. The directory's lock covers the check and the bind.
	unlock, err := dirlock.Lock(dir)
	if err != nil {
		return nil, fmt.Errorf("lock the directory of the control socket: %w", err)
	}
	defer unlock()
	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}
	removeFollowed(ctx, path)
	return bind(ctx, path)
}

// bind makes the socket's file. The caller holds the directory's lock.
func bind(ctx context.Context, path string) (net.Listener, error) {
	if len(path) > maxPath {
		return nil, fmt.Errorf("the control socket's path %s is longer than %d bytes; choose a shorter one with --control-socket FILE", path, maxPath)
	}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		// The file gets the mode of the unbound socket, so other users can
		// connect at no moment.
		var chmod error
		if err := c.Control(func(fd uintptr) { chmod = unix.Fchmod(int(fd), 0o600) }); err != nil {
			return err
		}
		return chmod
	}}
	l, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("make the control socket: %w", err)
	}
	return newGuard(l.(*net.UnixListener), path)
}

// maxPath is the kernel's bound of a socket's path in bytes.
const maxPath = len(unix.RawSockaddrUnix{}.Path) - 1

func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("stat the control socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is not a socket; remove it, or choose another path with --control-socket FILE", path)
	}
	if !isDead(ctx, path) {
		return fmt.Errorf("%s: %w", path, ErrInUse)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the control socket of a dead relay: %w", err)
	}
	return nil
}

// maxClients bounds concurrent connections.
const maxClients = 16

// guard accepts connections of the relay's user and root. A new one never waits: beyond
// maxClients the guard closes another one, see [client.closesBefore].
type guard struct {
	*net.UnixListener
	names *names
	close func() error

	mu   sync.Mutex
	last uint64 // number of the latest connection
	open map[*client]struct{}
}

func newGuard(l *net.UnixListener, path string) (*guard, error) {
	names, err := newNames(path)
	if err != nil {
		l.Close()
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the file may belong to another relay by then
	g := &guard{UnixListener: l, names: names, open: map[*client]struct{}{}}
	g.close = sync.OnceValue(func() error {
		return errors.Join(l.Close(), names.removeAll())
	})
	return g, nil
}

// Accept waits for a trusted client.
func (g *guard) Accept() (net.Conn, error) {
	for {
		conn, err := g.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if peer, ok := allowed(conn); ok {
			return g.admit(&client{UnixConn: conn, guard: g, peer: peer}), nil
		}
		conn.Close()
	}
}

// admit gives a client a place, if need be that of another.
func (g *guard) admit(c *client) *client {
	g.mu.Lock()
	var victim *client
	if len(g.open) >= maxClients {
		victim = chooseVictim(g.open)
		delete(g.open, victim)
	}
	g.last++
	c.number = g.last
	g.open[c] = struct{}{}
	g.mu.Unlock()
	if victim != nil {
		victim.UnixConn.Close()
	}
	return c
}

// chooseVictim returns the connection that loses its place to a new one.
func chooseVictim(open map[*client]struct{}) (victim *client) {
	count := map[int]int{} // by process
	for c := range open {
		count[c.peer.PID]++
	}
	for c := range open {
		if victim == nil || c.closesBefore(victim, count) {
			victim = c
		}
	}
	return victim
}

// Close stops accepting and removes the socket.
func (g *guard) Close() error { return g.close() }

// client is a connection that returns its place when closed.
type client struct {
	*net.UnixConn
	guard  *guard
	peer   Peer
	number uint64 // in the order of arrival
	state  atomic.Int32
}

// The states of a client, in the order in which they lose their places.
const (
	silent  int32 = iota // no whole request yet
	reading              // gets an answer
	waiting              // for a verb; maxVerbs is less than maxClients
)

// closesBefore reports whether a client loses its place before another one. Verbs keep theirs.
// Otherwise the process with the most connections loses one, the silent ones first, then the
// oldest. So a process whose connections do not end hurts only itself.
func (c *client) closesBefore(other *client, count map[int]int) bool {
	x, y := c.state.Load(), other.state.Load()
	if a, b := x == waiting, y == waiting; a != b {
		return b
	}
	if a, b := count[c.peer.PID], count[other.peer.PID]; a != b {
		return a > b
	}
	if x != y {
		return x < y
	}
	return c.number < other.number
}

// Peer is the process that sent a request.
type Peer struct{ UID, PID int }

type clientKey struct{}

// PeerOf returns the process that sent the verb with this context.
func PeerOf(ctx context.Context) Peer {
	if c, ok := ctx.Value(clientKey{}).(*client); ok {
		return c.peer
	}
	return Peer{}
}

// withClient stores the client of a connection in its requests' context.
func withClient(ctx context.Context, conn net.Conn) context.Context {
	if c, ok := conn.(*client); ok {
		return context.WithValue(ctx, clientKey{}, c)
	}
	return ctx
}

// enter notes the state of the client that sent a request.
func enter(r *http.Request, state int32) {
	if c, ok := r.Context().Value(clientKey{}).(*client); ok {
		c.state.Store(state)
	}
}

// Close returns the place.
func (c *client) Close() error {
	c.guard.mu.Lock()
	delete(c.guard.open, c)
	c.guard.mu.Unlock()
	return c.UnixConn.Close()
}

// allowed checks the user of the peer, regardless of the file's present mode.
func allowed(conn *net.UnixConn) (Peer, bool) {
	peer, err := localsocket.Peer(conn)
	if err != nil || !localsocket.Trusted(int(peer.Uid)) {
		return Peer{}, false
	}
	return Peer{int(peer.Uid), int(peer.Pid)}, true
}

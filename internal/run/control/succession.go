package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/dirlock"
	"longhaul/internal/sys/localsocket"
)

// A relay replaces another at the same path without a moment in which no
// process answers there. The old relay links its socket to a second name that
// ends in its process ID. The new one makes its socket under such a name, and
// renames that to the path.

// PathOf is the path of a relay that was replaced at path.
func PathOf(path string, pid int) string { return path + "." + strconv.Itoa(pid) }

// ListenAside is [Listen] for the successor of the relay at path: the socket
// has this process's own name until [Server.TakePlace].
func ListenAside(ctx context.Context, path string) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := localsocket.CheckDirectory(dir); err != nil {
		return nil, fmt.Errorf("make the control socket: %w; --control-socket FILE puts it elsewhere", err)
	}
	unlock, err := dirlock.Lock(dir)
	if err != nil {
		return nil, fmt.Errorf("lock the directory of the control socket: %w", err)
	}
	defer unlock()
	aside := PathOf(path, os.Getpid())
	// An existing file belongs to a dead process with the same ID.
	if err := os.Remove(aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the control socket of a dead relay: %w", err)
	}
	return bind(ctx, aside)
}

// removeFollowed removes the sockets of killed relays: those that were replaced
// at path, and those with an [OwnName].
func removeFollowed(ctx context.Context, path string) {
	dir, base := filepath.Split(path)
	entries, _ := os.ReadDir(filepath.Clean(dir))
	for _, e := range entries {
		number, found := strings.CutPrefix(e.Name(), base+".")
		if _, err := strconv.ParseUint(number, 10, 32); found && err == nil || IsOwnName(NameIn(dir, dir+e.Name())) {
			_ = removeStale(ctx, dir+e.Name()) // a living relay keeps its socket
		}
	}
}

// StepAside adds a name with the process ID to the socket, before another relay
// takes its place at path.
func (s *Server) StepAside(path string) error {
	return s.socket.names.link(path, PathOf(path, os.Getpid()))
}

// StepBack undoes [Server.StepAside] after the successor has ended, even if it
// had taken the place.
func (s *Server) StepBack(path string) error {
	return s.socket.names.back(PathOf(path, os.Getpid()), path)
}

// LeavePlace gives up path, whether or not another relay has taken it.
func (s *Server) LeavePlace(path string) error { return s.socket.names.remove(path) }

// TakePlace renames the socket of [ListenAside] to path.
func (s *Server) TakePlace(path string) error {
	return s.socket.names.rename(PathOf(path, os.Getpid()), path)
}

// names tracks the files of one socket. A file of the same name that is not
// this socket is left alone.
type names struct {
	dir string

	mu       sync.Mutex
	paths    []string
	dev, ino uint64
}

func newNames(path string) (*names, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return nil, fmt.Errorf("stat the control socket: %w", err)
	}
	return &names{dir: filepath.Dir(path), paths: []string{path}, dev: st.Dev, ino: st.Ino}, nil
}

// locked runs f while no other relay changes files in the directory.
func (n *names) locked(f func() error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	unlock, err := dirlock.Lock(n.dir)
	if err != nil {
		return fmt.Errorf("lock the directory of the control socket: %w", err)
	}
	defer unlock()
	return f()
}

func (n *names) isOurs(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil && st.Dev == n.dev && st.Ino == n.ino
}

func (n *names) link(from, to string) error {
	return n.locked(func() error {
		if len(to) > maxPath {
			return fmt.Errorf("the control socket's path %s is longer than %d bytes; choose a shorter one with --control-socket FILE", to, maxPath)
		}
		if n.isOurs(to) {
			return nil
		}
		if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.Link(from, to); err != nil {
			return fmt.Errorf("give the control socket a second name: %w", err)
		}
		n.paths = append(n.paths, to)
		return nil
	})
}

func (n *names) rename(from, to string) error {
	return n.locked(func() error {
		if err := os.Rename(from, to); err != nil {
			return fmt.Errorf("take the control socket's place: %w", err)
		}
		for i, path := range n.paths {
			if path == from {
				n.paths[i] = to
			}
		}
		return nil
	})
}

// back reduces two names to one, whichever exists.
func (n *names) back(from, to string) error {
	return n.locked(func() error {
		if n.isOurs(to) {
			return n.unlink(from)
		}
		n.forget(from)
		return os.Rename(from, to)
	})
}

func (n *names) remove(path string) error {
	return n.locked(func() error { return n.unlink(path) })
}

func (n *names) removeAll() error {
	return n.locked(func() error {
		var all error
		for _, path := range slices.Clone(n.paths) {
			all = errors.Join(all, n.unlink(path))
		}
		return all
	})
}

func (n *names) unlink(path string) error {
	if !n.forget(path) || !n.isOurs(path) {
		return nil
	}
	return os.Remove(path)
}

func (n *names) forget(path string) (known bool) {
	before := len(n.paths)
	n.paths = slices.DeleteFunc(n.paths, func(p string) bool { return p == path })
	return len(n.paths) < before
}

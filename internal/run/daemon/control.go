package daemon

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"longhaul/internal/run/config"
	"longhaul/internal/run/control"
)

// controlSocket is the part of the control socket. Only a restart changes its path.
type controlSocket struct {
	log      *slog.Logger
	getenv   func(string) string
	past     *past // from the process before this one comes the path, and a name of its own
	handlers control.Handlers

	server *control.Server // nil: no control socket
	path   string
	opened bool // or given up: no second attempt
}

// Prepare opens the socket, the first time. If the configuration has no path and the
// default path is taken or fails, the relay uses its own path, or none: forwarding
// matters more.
func (s *controlSocket) Prepare(ctx context.Context, p *plan) (Change, error) {
	if s.opened || p.ControlSocket == config.Off {
		return setting(func() {}), nil
	}
	path, asked := s.pathFor(p.Config)
	listen := control.Listen
	if s.past.predecessor != nil && path == s.past.inherited.ControlSocket {
		listen = control.ListenAside
	}
	l, err := listen(ctx, path)
	if errors.Is(err, control.ErrInUse) && !asked {
		path = control.PathIn(filepath.Dir(path), control.OwnName())
		if l, err = control.Listen(ctx, path); err == nil {
			s.log.Info("another relay has the usual control socket, this one is named for its process", "name", control.OwnName(), "control_socket", path)
		}
	}
	switch {
	case err == nil:
		s.path = path
		s.server = control.Serve(l, s.log, s.handlers)
	case asked:
		return nil, err
	default:
		s.log.Warn("longhaul status is not available", "error", err, "remedy", "give a path with --control-socket, or off")
	}
	return controlChange{s}, nil
}

type controlChange struct{ of *controlSocket }

func (c controlChange) Commit() { c.of.opened = true }
func (c controlChange) Abort()  { c.of.close() }

func (s *controlSocket) close() {
	if s.server != nil {
		s.server.Close()
		s.server = nil
	}
}

// pathFor returns the path that a configuration wants, and whether it sets it. A relay with a name of
// its own passes the name to its successor.
func (s *controlSocket) pathFor(c *config.Config) (path string, asked bool) {
	dir := control.Directory(s.getenv)
	switch {
	case c.ControlSocket != "":
		return c.ControlSocket, true
	case c.Name != "":
		return control.PathIn(dir, c.Name), true
	case control.IsOwnName(control.NameIn(dir, s.past.inherited.ControlSocket)):
		return s.past.inherited.ControlSocket, false
	}
	return control.PathIn(dir, control.DefaultName), false
}

// relayName returns the relay's name in the ledger of changes.
func (s *controlSocket) relayName(c *config.Config) string {
	path, _ := s.pathFor(c)
	if path == config.Off {
		return strconv.Itoa(os.Getpid())
	}
	return strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
}

// name returns the name by which a user may ask for this relay; empty: it has no name.
func (s *controlSocket) name() string { return control.NameIn(control.Directory(s.getenv), s.path) }

// aside returns the path after another process has taken over; empty: there is no socket.
func (s *controlSocket) aside() string {
	if s.server == nil {
		return ""
	}
	return control.PathOf(s.path, os.Getpid())
}

// leavePlace leaves the path to the process that has taken over.
func (s *controlSocket) leavePlace() {
	if s.server == nil {
		return
	}
	if err := s.server.LeavePlace(s.path); err != nil {
		s.log.Warn("cannot remove the old control socket", "path", s.path, "error", err)
	}
}

// takePlace takes the path of the process before, which has left it.
func (s *controlSocket) takePlace() {
	if s.server == nil || s.path != s.past.inherited.ControlSocket {
		return
	}
	if err := s.server.TakePlace(s.path); err != nil {
		s.log.Error("cannot move the control socket to its usual path", "error", err)
	}
}

package daemon

import (
	"context"
	"errors"
	"path/filepath"

	"longhaul/internal/run/config"
	"longhaul/internal/run/control"
)

// controlPart is the control socket. Only a restart changes its path.
type controlPart struct{ *daemon }

// Prepare opens the socket, the first time. If the configuration has no path and the
// default path is taken or fails, the relay uses its own path, or none: forwarding
// matters more.
func (d controlPart) Prepare(ctx context.Context, c *config.Config) (Change, error) {
	if d.controlOpened || c.ControlSocket == config.Off {
		return setting(func() {}), nil
	}
	path, asked := d.controlSocket(c)
	listen := control.Listen
	if d.predecessor != nil && path == d.inherited.ControlSocket {
		listen = control.ListenAside
	}
	l, err := listen(ctx, path)
	if errors.Is(err, control.ErrInUse) && !asked {
		path = control.PathIn(filepath.Dir(path), control.OwnName())
		if l, err = control.Listen(ctx, path); err == nil {
			d.log.Info("another relay has the usual control socket, this one is named for its process", "name", control.OwnName(), "control_socket", path)
		}
	}
	switch {
	case err == nil:
		handlers := control.Handlers{Status: func() any { return d.status() }, Do: d.do}
		checks := d.readiness().handler()
		for _, target := range healthTargets {
			handlers.More = append(handlers.More, control.Endpoint{Pattern: target, Handler: checks})
		}
		d.socket = path
		d.server = control.Serve(l, d.log, handlers)
	case asked:
		return nil, err
	default:
		d.log.Warn("longhaul status is not available", "error", err, "remedy", "give a path with --control-socket, or off")
	}
	return &controlChange{d.daemon}, nil
}

type controlChange struct{ *daemon }

func (c *controlChange) Commit() error {
	c.controlOpened = true
	return nil
}

func (c *controlChange) Abort() { c.closeControl() }

func (d *daemon) closeControl() {
	if d.server != nil {
		d.server.Close()
		d.server = nil
	}
}

// controlSocket returns the path of the control socket, and whether the configuration
// sets it. A relay with a name of its own passes the name to its successor.
func (d *daemon) controlSocket(c *config.Config) (path string, asked bool) {
	dir := control.Directory(d.Getenv)
	switch {
	case c.ControlSocket != "":
		return c.ControlSocket, true
	case c.Name != "":
		return control.PathIn(dir, c.Name), true
	case control.IsOwnName(control.NameIn(dir, d.inherited.ControlSocket)):
		return d.inherited.ControlSocket, false
	}
	return control.PathIn(dir, control.DefaultName), false
}

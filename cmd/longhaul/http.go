//go:build linux

package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"longhaul/internal/handover"
	"longhaul/internal/httpd"
)

// web serves the same over HTTP on every address of the configuration.
type web struct {
	log     *slog.Logger
	handler http.Handler
	serving map[netip.AddrPort]served
}

type served struct {
	listener net.Listener
	server   *httpd.Server
}

func newWeb(log *slog.Logger, handler http.Handler) *web {
	return &web{log: log, handler: handler, serving: map[netip.AddrPort]served{}}
}

// webChange is a set of addresses that can be had, and is not in force yet.
type webChange struct {
	web    *web
	wanted []netip.AddrPort
	fresh  map[netip.AddrPort]net.Listener
}

// prepare listens on every address on which nothing is served yet, or on none.
// Sockets that another process has handed over are used in place of new ones.
func (w *web) prepare(ctx context.Context, wanted []netip.AddrPort, handed []handover.Socket) (*webChange, error) {
	c := &webChange{web: w, wanted: wanted, fresh: map[netip.AddrPort]net.Listener{}}
	for _, at := range wanted {
		if w.serving[at].server != nil || c.fresh[at] != nil {
			continue
		}
		var l net.Listener
		var err error
		if i := slices.IndexFunc(handed, func(s handover.Socket) bool { return s.Configured == at }); i >= 0 {
			l, err = net.FileListener(handed[i].File)
		} else {
			l, err = httpd.Listen(ctx, at)
		}
		if err != nil {
			c.abandon()
			return nil, err
		}
		c.fresh[at] = l
	}
	return c, nil
}

// abandon gives the new addresses up.
func (c *webChange) abandon() {
	for _, l := range c.fresh {
		l.Close()
	}
	c.fresh = nil
}

// apply serves on the new addresses and ends what is not wanted any more.
func (c *webChange) apply() {
	w := c.web
	for at, l := range c.fresh {
		w.serving[at] = served{l, httpd.Serve(l, w.handler, w.log, httpd.DefaultLimits)}
		w.log.Info("serving http", "address", at)
	}
	c.fresh = nil
	for at, s := range w.serving {
		if !slices.Contains(c.wanted, at) {
			s.server.Close()
			delete(w.serving, at)
			w.log.Info("no longer serving http", "address", at)
		}
	}
}

// sockets are those that pass to a process which follows. The files are the
// caller's to close.
func (w *web) sockets() (all []handover.Socket, err error) {
	for at, s := range w.serving {
		f, err := s.listener.(*net.TCPListener).File()
		if err != nil {
			handover.CloseAll(all)
			return nil, fmt.Errorf("cannot hand over the listener on %s: %w; raise the limit of open files", at, err)
		}
		all = append(all, handover.Socket{Configured: at, Bound: at, File: f})
	}
	return all, nil
}

// leave ends the service here: another process has the sockets. Requests that
// have come are answered.
func (w *web) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for at, s := range w.serving {
		s.server.Leave(ctx)
		delete(w.serving, at)
	}
}

func (w *web) close() {
	for _, s := range w.serving {
		s.server.Close()
	}
}

//go:build linux

package main

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"

	"longhaul/internal/httpd"
)

// web serves the same over HTTP on every address of the configuration.
type web struct {
	log     *slog.Logger
	handler http.Handler
	serving map[netip.AddrPort]*httpd.Server
}

func newWeb(log *slog.Logger, handler http.Handler) *web {
	return &web{log: log, handler: handler, serving: map[netip.AddrPort]*httpd.Server{}}
}

// webChange is a set of addresses that can be had, and is not in force yet.
type webChange struct {
	web    *web
	wanted []netip.AddrPort
	fresh  map[netip.AddrPort]net.Listener
}

// prepare listens on every address on which nothing is served yet, or on none.
func (w *web) prepare(ctx context.Context, wanted []netip.AddrPort) (*webChange, error) {
	c := &webChange{web: w, wanted: wanted, fresh: map[netip.AddrPort]net.Listener{}}
	for _, at := range wanted {
		if w.serving[at] != nil || c.fresh[at] != nil {
			continue
		}
		l, err := httpd.Listen(ctx, at)
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
		w.serving[at] = httpd.Serve(l, w.handler, w.log, httpd.DefaultLimits)
		w.log.Info("serving http", "address", at)
	}
	c.fresh = nil
	for at, s := range w.serving {
		if !slices.Contains(c.wanted, at) {
			s.Close()
			delete(w.serving, at)
			w.log.Info("no longer serving http", "address", at)
		}
	}
}

func (w *web) close() {
	for _, s := range w.serving {
		s.Close()
	}
}

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
	"sync"
	"time"

	"longhaul/internal/handover"
	"longhaul/internal/httpd"
)

// web serves the same over HTTP on every address of the configuration.
type web struct {
	log     *slog.Logger
	handler http.Handler
	serving map[netip.AddrPort]webServer
	handed  []handover.Socket // by another process; some may be for HTTP
	leaving sync.WaitGroup
}

type webServer struct {
	*httpd.Server
	listener net.Listener
}

func newWeb(log *slog.Logger, handler http.Handler) *web {
	return &web{log: log, handler: handler, serving: map[netip.AddrPort]webServer{}}
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
		if w.serving[at].Server != nil || c.fresh[at] != nil {
			continue
		}
		l, err := w.handedOver(at)
		if l == nil && err == nil {
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
		w.serving[at] = webServer{httpd.Serve(l, w.handler, w.log, httpd.DefaultLimits), l}
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

// handedOver is the listener that another process had on an address, nil if it
// had none.
func (w *web) handedOver(at netip.AddrPort) (net.Listener, error) {
	for _, s := range w.handed {
		if s.Configured == at {
			l, err := net.FileListener(s.File)
			if err != nil {
				return nil, fmt.Errorf("cannot take over HTTP on %s: %w", at, err)
			}
			return l, nil
		}
	}
	return nil, nil
}

// sockets are what is listened on, for another process.
func (w *web) sockets() (all []handover.Socket, err error) {
	for at, s := range w.serving {
		f, err := s.listener.(*net.TCPListener).File()
		if err != nil {
			handover.CloseAll(all)
			return nil, fmt.Errorf("cannot hand over HTTP on %s: %w", at, err)
		}
		all = append(all, handover.Socket{Configured: at, Bound: s.listener.Addr().(*net.TCPAddr).AddrPort(), File: f})
	}
	return all, nil
}

// leave leaves the addresses to another process. What is being answered is
// answered, mostly before it returns; what takes longer has a while, for which
// close waits.
func (w *web) leave(within time.Duration) {
	answered := make(chan struct{})
	defer func() {
		go func() {
			w.leaving.Wait()
			close(answered)
		}()
		select {
		case <-answered:
		case <-time.After(within / 10):
		}
	}()
	for at, s := range w.serving {
		w.leaving.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), within)
			defer cancel()
			s.Finish(ctx)
		})
		delete(w.serving, at)
	}
}

func (w *web) close() {
	for _, s := range w.serving {
		s.Close()
	}
	w.leaving.Wait()
}

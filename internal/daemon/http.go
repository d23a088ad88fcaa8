package daemon

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

// httpSite serves one HTTP handler on every address of the configuration.
type httpSite struct {
	log     *slog.Logger
	what    string        // the name of the service
	scheme  func() string // of URLs in the log; nil: no URLs
	serve   func(net.Listener) *httpd.Server
	serving map[netip.AddrPort]siteServer
	handed  []handover.Socket // by another process; some may belong to HTTP
	leaving sync.WaitGroup
}

type siteServer struct {
	*httpd.Server
	listener net.Listener
}

func newHTTPSite(log *slog.Logger, handler http.Handler) *httpSite {
	return &httpSite{log: log, what: "http", serving: map[netip.AddrPort]siteServer{}, serve: func(l net.Listener) *httpd.Server {
		return httpd.Serve(l, handler, log, httpd.DefaultLimits)
	}}
}

// siteChange is a set of prepared addresses before its commit.
type siteChange struct {
	site   *httpSite
	wanted []netip.AddrPort
	fresh  map[netip.AddrPort]net.Listener
}

// prepare listens on every new address, or on none.
func (w *httpSite) prepare(ctx context.Context, wanted []netip.AddrPort) (*siteChange, error) {
	return w.prepareAnew(ctx, wanted, false)
}

// prepareAnew is like prepare. With anew set it prepares a new server on every
// address.
func (w *httpSite) prepareAnew(ctx context.Context, wanted []netip.AddrPort, anew bool) (*siteChange, error) {
	c := &siteChange{site: w, wanted: wanted, fresh: map[netip.AddrPort]net.Listener{}}
	for _, at := range wanted {
		if w.serving[at].Server != nil && !anew || c.fresh[at] != nil {
			continue
		}
		l, err := w.again(at)
		if l == nil && err == nil {
			l, err = w.handedOver(at)
		}
		if l == nil && err == nil {
			l, err = httpd.Listen(ctx, at)
		}
		if err != nil {
			c.Abort()
			return nil, err
		}
		c.fresh[at] = l
	}
	return c, nil
}

// Abort closes the new listeners.
func (c *siteChange) Abort() {
	for _, l := range c.fresh {
		l.Close()
	}
	c.fresh = nil
}

// Commit serves on the new addresses and closes removed ones.
func (c *siteChange) Commit() error {
	w := c.site
	for at, l := range c.fresh {
		if before := w.serving[at]; before.Server != nil {
			before.Close()
		}
		w.serving[at] = siteServer{w.serve(l), l}
		attrs := []any{"address", at}
		if w.scheme != nil {
			attrs = append(attrs, "url", w.scheme()+"://"+l.Addr().String()+"/")
		}
		w.log.Info("serving "+w.what, attrs...)
	}
	c.fresh = nil
	for at, s := range w.serving {
		if !slices.Contains(c.wanted, at) {
			s.Close()
			delete(w.serving, at)
			w.log.Info("no longer serving "+w.what, "address", at)
		}
	}
	return nil
}

// again returns a second listener on an address in service; nil: not in service.
func (w *httpSite) again(at netip.AddrPort) (net.Listener, error) {
	s := w.serving[at]
	if s.Server == nil {
		return nil, nil
	}
	f, err := s.listener.(*net.TCPListener).File()
	if err != nil {
		return nil, fmt.Errorf("serve %s again on %s: %w", w.what, at, err)
	}
	defer f.Close()
	return net.FileListener(f)
}

// handedOver returns another process's listener on an address; nil: none.
func (w *httpSite) handedOver(at netip.AddrPort) (net.Listener, error) {
	for _, s := range w.handed {
		if s.Configured == at {
			l, err := net.FileListener(s.File)
			if err != nil {
				return nil, fmt.Errorf("take over HTTP on %s: %w", at, err)
			}
			return l, nil
		}
	}
	return nil, nil
}

// sockets returns the listening sockets for another process.
func (w *httpSite) sockets() (all []handover.Socket, err error) {
	for at, s := range w.serving {
		f, err := s.listener.(*net.TCPListener).File()
		if err != nil {
			handover.CloseAll(all)
			return nil, fmt.Errorf("hand over HTTP on %s: %w", at, err)
		}
		all = append(all, handover.Socket{Configured: at, Bound: s.listener.Addr().(*net.TCPAddr).AddrPort(), File: f})
	}
	return all, nil
}

// leave leaves the addresses to another process. Most requests in progress finish
// before it returns. The others get a grace period, which close waits out.
func (w *httpSite) leave(within time.Duration) {
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

func (w *httpSite) close() {
	for _, s := range w.serving {
		s.Close()
	}
	w.leaving.Wait()
}

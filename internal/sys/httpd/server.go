// Package httpd serves HTTP to clients that may be slow, many or hostile. Each
// request has a deadline and a size bound, and a flood of connections cannot
// lock out other clients.
package httpd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Limits bound the requests and connections of a server. A zero field means no
// bound.
type Limits struct {
	Request     time.Duration // to receive a whole request
	Reply       time.Duration // to answer it and deliver the answer
	HeaderBytes int
	BodyBytes   int64 // of a request; zero: no body allowed
	Connections int   // at the same time, see connLimiter
	Kept        int   // additional long-lived ones, see Keep
}

// DefaultLimits suit a server on a public network.
var DefaultLimits = Limits{Request: 5 * time.Second, Reply: 20 * time.Second, HeaderBytes: 8 << 10, Connections: 64}

// Server serves requests until it is closed.
type Server struct {
	http     *http.Server
	listener net.Listener
	clients  Clients
	done     chan struct{}
	leave    chan struct{} // closed at the end of the server
	leaving  sync.Once
}

// Listen listens on an address. The error contains a remedy.
func Listen(ctx context.Context, at netip.AddrPort) (net.Listener, error) {
	network := "tcp" // both families for "[::]"
	switch {
	case at.Addr().Is4():
		network = "tcp4"
	case !at.Addr().IsUnspecified():
		network = "tcp6"
	}
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(ctx, network, at.String())
	if err != nil {
		return nil, fmt.Errorf("serve HTTP on %s: %w", at, listenError(err))
	}
	return l, nil
}

// Serve serves requests with a handler. Each connection carries one request, so
// no client holds a place between requests. It logs failures of single
// connections at debug level.
func Serve(l net.Listener, handler http.Handler, log *slog.Logger, limits Limits) *Server {
	return ServeTLS(l, nil, handler, log, limits)
}

// ServeTLS is [Serve] over TLS, unless config is nil. If its NextProtos have h2, the server speaks HTTP/2,
// with one request on a connection as well.
func ServeTLS(l net.Listener, config *tls.Config, handler http.Handler, log *slog.Logger, limits Limits) *Server {
	s := &Server{
		listener: l,
		leave:    make(chan struct{}),
		http: &http.Server{
			TLSConfig:         config,
			Protocols:         new(http.Protocols),
			Handler:           http.MaxBytesHandler(handler, limits.BodyBytes),
			ReadHeaderTimeout: limits.Request,
			ReadTimeout:       limits.Request,
			WriteTimeout:      limits.Reply,
			MaxHeaderBytes:    limits.HeaderBytes,
			ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		},
		done: make(chan struct{}),
	}
	s.clients.Count(s.http)
	// Without keepalives HTTP/2 also ends a connection, once it has no stream.
	s.http.Protocols.SetHTTP1(true)
	s.http.SetKeepAlivesEnabled(false)
	if config != nil && slices.Contains(config.NextProtos, "h2") {
		s.http.Protocols.SetHTTP2(true)
		s.http.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 1}
	}
	if limits.Connections > 0 {
		c := &connLimiter{
			Listener: l, max: limits.Connections, maxKept: limits.Kept, leave: s.leave,
			open: map[*limitedConn]struct{}{}, kept: map[*limitedConn]struct{}{},
		}
		l = c
		s.http.ConnContext = withConn
		s.http.Handler = c.markAsked(s.http.Handler)
	}
	go func() {
		defer close(s.done)
		if config != nil {
			s.http.ServeTLS(l, "", "")
			return
		}
		s.http.Serve(l)
	}()
	return s
}

// Finish stops accepting, and waits until the present clients are answered or
// ctx ends; it cuts off kept answers. A listener that another process shares
// goes on listening.
func (s *Server) Finish(ctx context.Context) {
	s.listener.Close()
	<-s.done
	s.leaving.Do(func() { close(s.leave) })
	s.clients.Finish(ctx, s.http)
}

// Close closes all connections and the listener, and waits until the server has
// ended.
func (s *Server) Close() {
	s.leaving.Do(func() { close(s.leave) })
	s.http.Close()
	<-s.done
}

// listenError adds a remedy to an error of a listening address.
func listenError(err error) error {
	for errno, remedy := range map[syscall.Errno]string{
		syscall.EADDRINUSE:    "stop what listens there (ss -ltnp shows it) or choose another port",
		syscall.EADDRNOTAVAIL: "give this machine the address first (ip addr shows what it has) or choose another",
		syscall.EACCES:        "ports below net.ipv4.ip_unprivileged_port_start need CAP_NET_BIND_SERVICE",
	} {
		if errors.Is(err, errno) {
			return fmt.Errorf("%w; %s", errno, remedy)
		}
	}
	return err
}

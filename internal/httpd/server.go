// Package httpd serves HTTP to clients that may be slow, many or hostile: each
// request has a deadline and a bound, and a crowd cannot keep others out.
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
	"sync"
	"syscall"
	"time"
)

// Limits bound what clients can ask of a server. A zero field is no bound.
type Limits struct {
	Request     time.Duration // until a request must have come, whole
	Reply       time.Duration // until it must have been answered, and the answer taken
	HeaderBytes int
	BodyBytes   int64 // of a request; zero: it must have none
	Connections int   // at the same time; who is let go for another: see crowd
	Kept        int   // more of them whose answers last: see Keep
}

// DefaultLimits suit a server that anybody on a network may reach.
var DefaultLimits = Limits{Request: 5 * time.Second, Reply: 20 * time.Second, HeaderBytes: 8 << 10, Connections: 64}

// Server answers until it is closed.
type Server struct {
	http     *http.Server
	listener net.Listener
	clients  Clients
	done     chan struct{}
	leave    chan struct{} // closed at the end of the server
	leaving  sync.Once
}

// Listen listens on an address. The error says what to do.
func Listen(ctx context.Context, at netip.AddrPort) (net.Listener, error) {
	network := "tcp" // of "[::]" it makes both families
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
		return nil, fmt.Errorf("cannot serve HTTP on %s: %w", at, listenError(err))
	}
	return l, nil
}

// Serve answers requests with a handler. One request is answered on each
// connection, so that nobody holds a place between requests. What goes wrong
// with single connections is logged at debug level.
func Serve(l net.Listener, handler http.Handler, log *slog.Logger, limits Limits) *Server {
	return ServeTLS(l, nil, handler, log, limits)
}

// ServeTLS is [Serve] over TLS, unless config is nil.
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
	// In HTTP/2 all requests are on one connection.
	s.http.Protocols.SetHTTP1(true)
	s.http.SetKeepAlivesEnabled(false)
	if limits.Connections > 0 {
		c := &crowd{
			Listener: l, most: limits.Connections, keep: limits.Kept, leave: s.leave,
			guests: map[*guest]struct{}{}, kept: map[*guest]struct{}{},
		}
		l = c
		s.http.ConnContext = withGuest
		s.http.Handler = c.note(s.http.Handler)
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

// Finish stops accepting, and waits until the clients that it has are answered,
// or ctx ends; answers that last are broken off. A listener that another process
// has as well goes on listening.
func (s *Server) Finish(ctx context.Context) {
	s.listener.Close()
	<-s.done
	s.leaving.Do(func() { close(s.leave) })
	s.clients.Finish(ctx, s.http)
}

// Close ends all connections and waits until nobody listens any more.
func (s *Server) Close() {
	s.leaving.Do(func() { close(s.leave) })
	s.http.Close()
	<-s.done
}

// listenError adds what to do about an error of a listening address.
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

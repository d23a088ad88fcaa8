package httpd

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"

	"longhaul/internal/sys/connsource"
)

// connLimiter bounds the connections of a listener. A new connection never
// waits: at the limit, the limiter closes another one. It chooses from the
// source with the most connections, first those without a request yet, and of
// these the oldest.
//
// So a flood from one source hurts only that source. A flood from many sources
// must renew its connections faster than a request is answered.
type connLimiter struct {
	net.Listener
	max     int
	maxKept int // bound of kept connections

	leave chan struct{} // closed to end kept connections

	mu   sync.Mutex
	last uint64 // number of the latest connection
	open map[*limitedConn]struct{}
	kept map[*limitedConn]struct{}
}

// limitedConn is a connection that holds a place.
type limitedConn struct {
	net.Conn
	limiter *connLimiter
	source  netip.Addr
	number  uint64 // in the order of arrival
	asked   atomic.Bool

	gone      chan struct{} // closed with the connection
	goneClose sync.Once
}

// Gone returns a channel that is closed once the server has closed the connection, as
// [tls.ClientHelloInfo] has it; nil for one of a server without bounds.
func Gone(conn net.Conn) <-chan struct{} {
	if g, ok := conn.(*limitedConn); ok {
		return g.gone
	}
	return nil
}

// Accept closes another connection at the limit.
func (c *connLimiter) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	g := &limitedConn{Conn: conn, limiter: c, source: connsource.Of(conn), gone: make(chan struct{})}
	c.mu.Lock()
	var victim *limitedConn
	if len(c.open) >= c.max {
		victim, _ = chooseVictim(c.open)
		delete(c.open, victim)
	}
	c.last++
	g.number = c.last
	c.open[g] = struct{}{}
	c.mu.Unlock()
	if victim != nil {
		victim.cut()
	}
	return g, nil
}

// chooseVictim returns the connection to close, nil if there is none, and the
// number of connections of each source.
func chooseVictim(open map[*limitedConn]struct{}) (victim *limitedConn, count map[netip.Addr]int) {
	count = map[netip.Addr]int{}
	for g := range open {
		count[g.source]++
	}
	for g := range open {
		if victim == nil || g.closesBefore(victim, count) {
			victim = g
		}
	}
	return victim, count
}

func (g *limitedConn) closesBefore(other *limitedConn, count map[netip.Addr]int) bool {
	if a, b := count[g.source], count[other.source]; a != b {
		return a > b
	}
	if a, b := g.asked.Load(), other.asked.Load(); a != b {
		return b
	}
	return g.number < other.number
}

// keepOpen moves a connection from the open to the kept ones. If all kept places
// are taken, it closes one of a source with more of them, or returns false. It
// also returns false for a connection that was closed meanwhile.
func (c *connLimiter) keepOpen(g *limitedConn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, here := c.open[g]; !here {
		return false
	}
	if len(c.kept) >= c.maxKept {
		victim, count := chooseVictim(c.kept)
		// Afterwards the new connection's source has no more than the other.
		// Otherwise the two would displace each other for ever.
		if victim == nil || count[g.source]+1 >= count[victim.source] {
			return false
		}
		delete(c.kept, victim)
		victim.cut()
	}
	delete(c.open, g)
	c.kept[g] = struct{}{}
	return true
}

// Close frees the place.
func (g *limitedConn) Close() error {
	g.limiter.mu.Lock()
	delete(g.limiter.open, g)
	delete(g.limiter.kept, g)
	g.limiter.mu.Unlock()
	return g.cut()
}

// cut closes a connection that has no place any more.
func (g *limitedConn) cut() error {
	g.goneClose.Do(func() { close(g.gone) })
	return g.Conn.Close()
}

type connKey struct{}

func withConn(ctx context.Context, conn net.Conn) context.Context {
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn()
	}
	return context.WithValue(ctx, connKey{}, conn)
}

// markAsked marks connections that have sent a request.
func (c *connLimiter) markAsked(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g, ok := r.Context().Value(connKey{}).(*limitedConn); ok {
			g.asked.Store(true)
		}
		next.ServeHTTP(w, r)
	})
}

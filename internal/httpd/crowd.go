package httpd

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"

	"longhaul/internal/connsource"
)

// crowd bounds the connections of a listener. Nobody waits for a place: where
// all are taken, somebody is let go for who comes. That is a connection of the
// source that has the most of them; of these first one that has not asked
// anything yet, and the oldest. So a flood from one source hurts that source
// alone, and one from many must be renewed faster than a request is answered.
type crowd struct {
	net.Listener
	most int
	keep int // how many may stay

	leave chan struct{} // closed when those who stay are to go

	mu     sync.Mutex
	last   uint64 // number of the last guest
	guests map[*guest]struct{}
	kept   map[*guest]struct{}
}

// guest is a connection that has a place.
type guest struct {
	net.Conn
	crowd  *crowd
	source netip.Addr
	number uint64 // in the order of arrival
	asked  atomic.Bool
}

// Accept makes room where there is none.
func (c *crowd) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	g := &guest{Conn: conn, crowd: c, source: connsource.Of(conn)}
	c.mu.Lock()
	var leaves *guest
	if len(c.guests) >= c.most {
		leaves, _ = chosen(c.guests)
		delete(c.guests, leaves)
	}
	c.last++
	g.number = c.last
	c.guests[g] = struct{}{}
	c.mu.Unlock()
	if leaves != nil {
		leaves.Conn.Close()
	}
	return g, nil
}

// chosen is who has to leave, nil where nobody is, and how many places each
// source has.
func chosen(guests map[*guest]struct{}) (leaves *guest, count map[netip.Addr]int) {
	count = map[netip.Addr]int{}
	for g := range guests {
		count[g.source]++
	}
	for g := range guests {
		if leaves == nil || g.leavesBefore(leaves, count) {
			leaves = g
		}
	}
	return leaves, count
}

func (g *guest) leavesBefore(other *guest, count map[netip.Addr]int) bool {
	if a, b := count[g.source], count[other.source]; a != b {
		return a > b
	}
	if a, b := g.asked.Load(), other.asked.Load(); a != b {
		return b
	}
	return g.number < other.number
}

// stays takes a guest out of the crowd, where there is room for it, or where one
// of a source that stays with more leaves for it. One that had to leave meanwhile
// does not stay.
func (c *crowd) stays(g *guest) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, here := c.guests[g]; !here {
		return false
	}
	if len(c.kept) >= c.keep {
		leaves, count := chosen(c.kept)
		// Afterwards the newcomer's source has no more than the other, or the two
		// would push each other out for ever.
		if leaves == nil || count[g.source]+1 >= count[leaves.source] {
			return false
		}
		delete(c.kept, leaves)
		leaves.Conn.Close()
	}
	delete(c.guests, g)
	c.kept[g] = struct{}{}
	return true
}

// Close gives the place back.
func (g *guest) Close() error {
	g.crowd.mu.Lock()
	delete(g.crowd.guests, g)
	delete(g.crowd.kept, g)
	g.crowd.mu.Unlock()
	return g.Conn.Close()
}

type guestKey struct{}

func withGuest(ctx context.Context, conn net.Conn) context.Context {
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn()
	}
	return context.WithValue(ctx, guestKey{}, conn)
}

// note remembers whose request has come.
func (c *crowd) note(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g, ok := r.Context().Value(guestKey{}).(*guest); ok {
			g.asked.Store(true)
		}
		next.ServeHTTP(w, r)
	})
}

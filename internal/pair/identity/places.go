package identity

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"

	"longhaul/internal/connsource"
)

// maxJoins bounds the connections that a process holds for joins at a time, in a relay
// and in [Store.ServeInvitation] alike.
const maxJoins = 64

// errCrowded ends a join that had to give its place to another.
var errCrowded = errors.New("too many joins at a time: its place went to another source")

// places are the connections that wait for the end of their join, the oldest first.
// Sources share them: when all are taken, the source with the most loses its oldest.
type places struct {
	mu   sync.Mutex
	held []*place
}

type place struct {
	source netip.Addr
	conn   net.Conn
	lost   bool
}

// enter takes a place for a connection. To make room it resets another one.
func (p *places) enter(conn net.Conn) *place {
	one := &place{source: connsource.Of(conn), conn: conn}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = append(p.held, one)
	if len(p.held) > maxJoins {
		i := p.crowd()
		p.held[i].lost = true
		reset(p.held[i].conn)
		p.held = slices.Delete(p.held, i, i+1)
	}
	return one
}

// crowd is the index of the oldest connection of the source with the most.
func (p *places) crowd() int {
	count := map[netip.Addr]int{}
	for _, one := range p.held {
		count[one.source]++
	}
	first := 0
	for i, one := range p.held {
		if count[one.source] > count[p.held[first].source] {
			first = i
		}
	}
	return first
}

// leave gives the place back. It reports whether another connection has got it already.
func (p *places) leave(one *place) (lost bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = slices.DeleteFunc(p.held, func(other *place) bool { return other == one })
	return one.lost
}

// reset closes a connection as one that nobody here takes.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

package pair

import (
	"container/list"
	"net/netip"
	"sync"
)

// places bounds the accepted connections that are in their handshake. A new one never waits: at
// the bound the oldest one of the source with the most of them is given up. So a flood costs its
// own source alone, and from many sources it must come faster than a handshake takes.
type places struct {
	max int

	mu       sync.Mutex
	taken    int
	bySource map[netip.Addr]*list.List // of *place, the oldest first
}

// place is that of one connection.
type place struct {
	source netip.Addr
	giveUp func() // must not block
	at     *list.Element
}

func newPlaces(max int) *places { return &places{max: max, bySource: map[netip.Addr]*list.List{}} }

// take gives a connection its place; leave follows. giveUp is called, once, if another one gets
// it before.
func (p *places) take(source netip.Addr, giveUp func()) *place {
	c := &place{source: source, giveUp: giveUp}
	p.mu.Lock()
	if p.bySource[source] == nil {
		p.bySource[source] = list.New()
	}
	c.at = p.bySource[source].PushBack(c)
	p.taken++
	var victim *place
	if p.taken > p.max {
		victim = p.oldestOfMost()
		p.remove(victim)
	}
	p.mu.Unlock()
	if victim != nil {
		victim.giveUp()
	}
	return c
}

// oldestOfMost is the oldest place of the source that has the most. The caller holds p.mu.
func (p *places) oldestOfMost() *place {
	var most *list.List
	for _, l := range p.bySource {
		if most == nil || l.Len() > most.Len() {
			most = l
		}
	}
	return most.Front().Value.(*place)
}

func (p *places) leave(c *place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.at != nil {
		p.remove(c)
	}
}

func (p *places) remove(c *place) {
	l := p.bySource[c.source]
	l.Remove(c.at)
	c.at = nil
	if p.taken--; l.Len() == 0 {
		delete(p.bySource, c.source)
	}
}

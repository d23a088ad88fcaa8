package connsource

import (
	"container/list"
	"net/netip"
	"sync"
)

// Places bounds connections that wait for something, such as the end of their handshake. A new
// one never waits for a place: at the bound the source with the most places loses its oldest, of
// several such sources the oldest of all. So a flood costs its own source alone, and from many
// sources it must come faster than what the connections wait for.
type Places struct {
	max int

	mu       sync.Mutex
	taken    int
	last     uint64                    // number of the latest place
	bySource map[netip.Addr]*list.List // of *Place, the oldest first
}

// Place is that of one connection.
type Place struct {
	source netip.Addr
	number uint64
	giveUp func()
	at     *list.Element // nil: left or lost
	lost   bool
}

// NewPlaces makes at most max places.
func NewPlaces(max int) *Places { return &Places{max: max, bySource: map[netip.Addr]*list.List{}} }

// Take gives a connection its place; Leave follows. giveUp is called, once, if another one gets
// it before. It must not block.
func (p *Places) Take(source netip.Addr, giveUp func()) *Place {
	one := &Place{source: source, giveUp: giveUp}
	p.mu.Lock()
	p.last++
	one.number = p.last
	if p.bySource[source] == nil {
		p.bySource[source] = list.New()
	}
	one.at = p.bySource[source].PushBack(one)
	p.taken++
	var victim *Place
	if p.taken > p.max {
		victim = p.oldestOfMost()
		victim.lost = true
		p.remove(victim)
	}
	p.mu.Unlock()
	if victim != nil {
		victim.giveUp()
	}
	return one
}

// oldestOfMost is the place that goes. The caller holds p.mu.
func (p *Places) oldestOfMost() (first *Place) {
	most := 0
	for _, l := range p.bySource {
		oldest := l.Front().Value.(*Place)
		if l.Len() > most || l.Len() == most && oldest.number < first.number {
			most, first = l.Len(), oldest
		}
	}
	return first
}

// Leave gives the place back. It reports whether another connection has got it already.
func (p *Places) Leave(one *Place) (lost bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one.at != nil {
		p.remove(one)
	}
	return one.lost
}

func (p *Places) remove(one *Place) {
	l := p.bySource[one.source]
	l.Remove(one.at)
	one.at = nil
	if p.taken--; l.Len() == 0 {
		delete(p.bySource, one.source)
	}
}

// Taken is the number of places that are taken.
func (p *Places) Taken() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}

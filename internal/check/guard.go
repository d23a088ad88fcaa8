package check

import (
	"math"
	"net/netip"
	"sync"
	"time"
)

const (
	// maxSkew is by how much the stamp of a hello may be off the relay's clock.
	maxSkew = 2 * time.Minute

	maxNonces  = 1 << 16 // of stamped hellos that are remembered
	maxUndated = 1 << 10 // of others

	maxProven          = 16 // checks of a tunnel that are answered at the same time
	maxUnproven        = 16 // connections of a tunnel before their first sealed frame
	maxUnprovenSource  = 8  // of them, of one source
	maxUnprovenUndated = 4  // of them, without a stamp
)

// Memory remembers hellos, so that each is answered once, and by how much the
// clocks of other relays are off. All tunnels of a process share one, and it
// outlives reloads.
type Memory struct {
	now func() time.Time

	mu       sync.Mutex
	ahead    map[netip.AddrPort]time.Duration // the clocks of relays
	bySecond map[int64]map[nonce]struct{}     // stamped ones, for as long as their stamp is valid
	stamped  int
	// floor is the least stamp that is admitted: where more hellos come than
	// can be remembered, the oldest are forgotten, and none so old is admitted.
	floor int64

	// Hellos whose stamp does not bound for how long they have to be
	// remembered: those of programs before stamps, and those off the clock.
	undated map[nonce]struct{}
	order   []nonce
	oldest  int // in order, once that is full
}

// NewMemory makes a memory of nothing.
func NewMemory() *Memory {
	return &Memory{
		now: time.Now, ahead: map[netip.AddrPort]time.Duration{},
		bySecond: map[int64]map[nonce]struct{}{}, undated: map[nonce]struct{}{}, floor: math.MinInt64,
	}
}

// admission says what becomes of an authentic hello.
type admission uint8

const (
	repeated admission = iota // it came before, or may have
	skewed                    // its stamp is off the clock
	undated                   // it has no stamp
	fresh
)

func (m *Memory) admit(n nonce) admission {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now().Unix()
	most := int64(maxSkew / time.Second)
	stamp, ok := n.stamp()
	switch {
	case !ok:
		return m.admitUndated(n, undated)
	case stamp < now-most || stamp > now+most:
		return m.admitUndated(n, skewed)
	case stamp < m.floor && m.floor <= now+most+1: // unless the clock was set back
		return repeated
	}
	second := m.bySecond[stamp]
	if second == nil {
		m.keep(now-most, now+most)
		second = map[nonce]struct{}{}
		m.bySecond[stamp] = second
	}
	if _, known := second[n]; known {
		return repeated
	}
	second[n] = struct{}{}
	m.stamped++
	for m.stamped > maxNonces {
		oldest := int64(math.MaxInt64)
		for s := range m.bySecond {
			oldest = min(oldest, s)
		}
		m.floor = oldest + 1
		m.keep(m.floor, now+most)
	}
	return fresh
}

// keep forgets the hellos with another stamp.
func (m *Memory) keep(from, to int64) {
	for s, nonces := range m.bySecond {
		if s < from || s > to {
			m.stamped -= len(nonces)
			delete(m.bySecond, s)
		}
	}
}

// admitUndated remembers the last hellos of their kind, however old.
func (m *Memory) admitUndated(n nonce, first admission) admission {
	if _, known := m.undated[n]; known {
		return repeated
	}
	m.undated[n] = struct{}{}
	if len(m.order) < maxUndated {
		m.order = append(m.order, n)
		return first
	}
	delete(m.undated, m.order[m.oldest])
	m.order[m.oldest] = n
	m.oldest = (m.oldest + 1) % maxUndated
	return first
}

// Guard has the places of a tunnel's checks. Those who have shown that they have
// the key have places of their own: nobody else can take them.
type Guard struct {
	memory *Memory
	tell   func(what string, peer netip.AddrPort)

	mu       sync.Mutex
	proven   int
	unproven int
	undated  int                // of unproven
	bySource map[netip.Addr]int // of unproven
}

// NewGuard makes a guard without any check. tell logs what was refused; it may
// be called often.
func NewGuard(m *Memory, tell func(what string, peer netip.AddrPort)) *Guard {
	return &Guard{memory: m, tell: tell, bySource: map[netip.Addr]int{}}
}

// place is one of a guard's, which a connection keeps to its end.
type place struct {
	guard   *Guard
	source  netip.Addr
	stage   stage
	undated bool
}

type stage uint8

const (
	outside stage = iota
	unproven
	proven
)

func (g *Guard) place(source netip.Addr) *place { return &place{guard: g, source: source} }

// take gets a place for a connection whose hello is to be answered, unless it
// has one.
func (p *place) take(undated bool) bool {
	g := p.guard
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case p.stage != outside:
		return true
	case g.unproven >= maxUnproven, g.bySource[p.source] >= maxUnprovenSource, undated && g.undated >= maxUnprovenUndated:
		return false
	}
	p.stage, p.undated = unproven, undated
	g.unproven++
	g.bySource[p.source]++
	if undated {
		g.undated++
	}
	return true
}

// prove moves a connection to the places of those that have the key. It returns
// false where all are taken.
func (p *place) prove() bool {
	g := p.guard
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case p.stage == proven:
		return true
	case g.proven >= maxProven:
		return false
	}
	p.leaveUnproven()
	p.stage = proven
	g.proven++
	return true
}

func (p *place) leave() {
	g := p.guard
	g.mu.Lock()
	defer g.mu.Unlock()
	switch p.stage {
	case unproven:
		p.leaveUnproven()
	case proven:
		g.proven--
	}
	p.stage = outside
}

// leaveUnproven is called with the guard's lock.
func (p *place) leaveUnproven() {
	g := p.guard
	g.unproven--
	if g.bySource[p.source]--; g.bySource[p.source] == 0 {
		delete(g.bySource, p.source)
	}
	if p.undated {
		g.undated--
	}
}

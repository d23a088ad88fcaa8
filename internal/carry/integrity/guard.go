package integrity

import (
	"math"
	"net/netip"
	"sync"
	"time"
)

const (
	// maxSkew bounds the difference between a hello's stamp and the relay's
	// clock.
	maxSkew = 2 * time.Minute

	maxNonces  = 1 << 16 // remembered stamped hellos
	maxUndated = 1 << 10 // remembered other hellos

	maxProven          = 16 // concurrent checks of a tunnel
	maxUnproven        = 16 // connections of a tunnel before their first sealed frame
	maxUnprovenSource  = 8  // of them, from one source
	maxUnprovenUndated = 4  // of them, without a stamp
)

// Memory remembers hellos, so that each is answered once, and the clock
// differences of other relays. All tunnels of a process share one; it outlives
// reloads.
type Memory struct {
	now func() time.Time

	mu       sync.Mutex
	ahead    map[netip.AddrPort]time.Duration // of relays' clocks
	bySecond map[int64]map[nonce]struct{}     // stamped hellos, while their stamp is valid
	stamped  int
	// floor is the lowest stamp to admit. When the memory is full, it forgets
	// the oldest hellos, and admits no hello that old.
	floor int64

	// Hellos without a valid stamp, whose age is unbounded: those of programs
	// without stamps, and those off the clock.
	undated map[nonce]struct{}
	order   []nonce
	oldest  int // index in order once it is full
}

// NewMemory makes an empty memory.
func NewMemory() *Memory {
	return &Memory{
		now: time.Now, ahead: map[netip.AddrPort]time.Duration{},
		bySecond: map[int64]map[nonce]struct{}{}, undated: map[nonce]struct{}{}, floor: math.MinInt64,
	}
}

// admission is the decision about an authentic hello.
type admission uint8

const (
	repeated admission = iota // it was received before, or may have been
	skewed                    // its stamp is off the clock
	undated                   // it has no stamp
	fresh
)

func (m *Memory) admit(n nonce) admission {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now().Unix()
	skew := int64(maxSkew / time.Second)
	stamp, ok := n.stamp()
	switch {
	case !ok:
		return m.admitUndated(n, undated)
	case stamp < now-skew || stamp > now+skew:
		return m.admitUndated(n, skewed)
	case stamp < m.floor && m.floor <= now+skew+1: // unless the clock was set back
		return repeated
	}
	second := m.bySecond[stamp]
	if second == nil {
		m.keep(now-skew, now+skew)
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
		m.keep(m.floor, now+skew)
	}
	return fresh
}

// keep removes the hellos with stamps outside a range.
func (m *Memory) keep(from, to int64) {
	for s, nonces := range m.bySecond {
		if s < from || s > to {
			m.stamped -= len(nonces)
			delete(m.bySecond, s)
		}
	}
}

// admitUndated admits a hello without a valid stamp, and remembers the latest
// of them.
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

// Guard manages the places of a tunnel's checks. Connections that have proved
// to have the key use separate places, which no other connection can take.
type Guard struct {
	memory *Memory
	report func(what string, peer netip.AddrPort)

	mu       sync.Mutex
	proven   int
	unproven int
	undated  int                // of unproven
	bySource map[netip.Addr]int // of unproven
}

// NewGuard makes a guard without checks. report logs refusals; it may be called
// often.
func NewGuard(m *Memory, report func(what string, peer netip.AddrPort)) *Guard {
	return &Guard{memory: m, report: report, bySource: map[netip.Addr]int{}}
}

// place is the place of a connection in a guard until it ends.
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

// take gets a place for a connection before its hello is answered, unless it
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

// prove moves a connection to the places of those with the key. It returns
// false if all are taken.
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

// leaveUnproven requires the guard's lock.
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

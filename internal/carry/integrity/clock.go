package integrity

import (
	"net/netip"
	"time"
)

// maxClocks bounds the relays whose clocks are remembered.
const maxClocks = 1 << 10

// relayClock is a relay's clock relative to this host's. Hellos carry its time,
// because a relay refuses a hello that is off its own clock.
//
// The relay's reply reports its time under the key and bound to the hello's
// nonce, so nobody else can forge or replay it. Whatever the stamp, the relay
// admits each hello once, by its own clock.
type relayClock struct {
	now   func() time.Time
	ahead *time.Duration // of this host's clock; nil: unknown
}

func (c *relayClock) time() time.Time {
	if c.ahead == nil {
		return c.now()
	}
	return c.now().Add(*c.ahead)
}

// shows sets the clock from the relay's nonce. Programs without stamps do not
// report it.
func (c *relayClock) shows(n nonce) {
	if second, ok := n.stamp(); ok {
		ahead := time.Duration(second-c.now().Unix()) * time.Second
		c.ahead = &ahead
	}
}

// clock returns the remembered clock of the relay at an address.
func (m *Memory) clock(at netip.AddrPort) *relayClock {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &relayClock{now: m.now}
	if ahead, ok := m.ahead[at]; ok {
		c.ahead = &ahead
	}
	return c
}

// remember stores the difference of a relay's clock if the relay may refuse
// hellos for it. So the next check needs one connection.
func (m *Memory) remember(at netip.AddrPort, c *relayClock) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.ahead == nil || c.ahead.Abs() <= maxSkew/2 {
		delete(m.ahead, at)
		return
	}
	if len(m.ahead) >= maxClocks {
		clear(m.ahead)
	}
	m.ahead[at] = *c.ahead
}

func (h *Hop) clockIs(ahead time.Duration) {
	seconds := int64(ahead / time.Second)
	h.ClockAheadSeconds = &seconds
}

// ClockIsOff reports whether the clock differs from the checking relay's by
// more than a hello allows.
func (h *Hop) ClockIsOff() (ahead time.Duration, off bool) {
	if h.ClockAheadSeconds == nil {
		return 0, false
	}
	ahead = time.Duration(*h.ClockAheadSeconds) * time.Second
	return ahead, ahead.Abs() > maxSkew
}

// Ahead describes by how much a clock is ahead of another.
func Ahead(by time.Duration, of string) string {
	if by < 0 {
		return (-by).String() + " behind " + of
	}
	return by.String() + " ahead of " + of
}

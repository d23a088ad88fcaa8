package check

import (
	"net/netip"
	"time"
)

// maxClocks bounds the relays whose clocks are remembered.
const maxClocks = 1 << 10

// relayClock is a relay's clock, as the clock of this host shows it. A hello is
// stamped by it, because the relay answers none that is off its own.
//
// The relay says what its clock shows under the key and bound to the hello's
// nonce, so nobody else can say it and no answer can be used twice. Whatever the
// stamp, the relay admits each hello once, by its own clock.
type relayClock struct {
	now   func() time.Time
	ahead *time.Duration // of this host's; nil: not known
}

func (c *relayClock) time() time.Time {
	if c.ahead == nil {
		return c.now()
	}
	return c.now().Add(*c.ahead)
}

// shows sets a clock by the relay's nonce. Programs before stamps do not say.
func (c *relayClock) shows(n nonce) {
	if second, ok := n.stamp(); ok {
		ahead := time.Duration(second-c.now().Unix()) * time.Second
		c.ahead = &ahead
	}
}

// clock is the clock of the relay at an address, as far as it is remembered.
func (m *Memory) clock(at netip.AddrPort) *relayClock {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &relayClock{now: m.now}
	if ahead, ok := m.ahead[at]; ok {
		c.ahead = &ahead
	}
	return c
}

// remember keeps by how much the clock of the relay at an address is off, where
// that may have it refuse hellos: the next check then needs one connection.
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

// ClockIsOff says whether a clock differs from that of the relay that checks by
// more than a hello's time may.
func (h *Hop) ClockIsOff() (ahead time.Duration, off bool) {
	if h.ClockAheadSeconds == nil {
		return 0, false
	}
	ahead = time.Duration(*h.ClockAheadSeconds) * time.Second
	return ahead, ahead.Abs() > maxSkew
}

// Ahead puts into words by how much a clock is ahead of another.
func Ahead(by time.Duration, of string) string {
	if by < 0 {
		return (-by).String() + " behind " + of
	}
	return by.String() + " ahead of " + of
}

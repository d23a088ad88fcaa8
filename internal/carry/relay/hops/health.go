package hops

import "time"

// Defaults of Health.
const (
	DefaultHealthInterval = 2 * time.Second
	DefaultHealthTimeout  = time.Second
	DefaultRise           = 2
	DefaultFall           = 2
	DefaultEjectAfter     = 3
	DefaultEjectFor       = 10 * time.Second
	DefaultSlowReturn     = 30 * time.Second
)

const (
	ejectDoublings = 6   // doublings of an ejection's duration at most
	minShare       = 0.1 // part of its weight with which a hop returns
)

// Health configures when a hop gets no new flows.
type Health struct {
	// Probe checks every hop; nil: only after connects of flows have failed, until one succeeds.
	Probe Prober
	// Blind: a probe from this host says nothing, since flows are dialed from clients' addresses.
	Blind bool

	Interval   time.Duration // between two probes of a hop; 0 means 2 s
	Timeout    time.Duration // of a probe; 0 means 1 s
	Rise, Fall int           // consecutive probes that bring a hop up or down; 0 means 2

	EjectAfter int           // consecutive failed connects that eject a hop; 0 means 3, negative: it returns at once
	EjectFor   time.Duration // first ejection's duration, doubled each time in a row up to 64 times; 0 means 10 s
	SlowReturn time.Duration // time in which a returning hop regains its share; 0 means 30 s, negative at once
}

// WithDefaults returns the configuration with its defaults filled in.
func (h Health) WithDefaults() Health {
	fill := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	fill(&h.Interval, DefaultHealthInterval)
	fill(&h.Timeout, DefaultHealthTimeout)
	fill(&h.EjectFor, DefaultEjectFor)
	fill(&h.SlowReturn, DefaultSlowReturn)
	for n, v := range map[*int]int{&h.Rise: DefaultRise, &h.Fall: DefaultFall, &h.EjectAfter: DefaultEjectAfter} {
		if *n == 0 {
			*n = v
		}
	}
	return h
}

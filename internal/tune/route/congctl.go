package route

import "net/netip"

// Use is the congestion control of a prefix.
type Use struct {
	Prefix    netip.Prefix `json:"prefix"`
	Algorithm string       `json:"algorithm"`
	// RateBps is the rate of IP packets that the connections share, 0 for none.
	RateBps  int64    `json:"rate_bits_per_second,omitempty"`
	Priority uint32   `json:"priority"` // the route's metric
	Owners   []string `json:"owners"`   // the one in force last
	// Made: the route was added for this, a copy of the one that covered the
	// prefix. Otherwise it existed, with the former settings.
	Made            bool   `json:"made"`
	FormerAlgorithm string `json:"former_algorithm,omitempty"`
	FormerLocked    bool   `json:"former_locked,omitempty"`
}

// Use returns the congestion control of a setting; ok is false without one.
func (s Setting) Use() (use Use, ok bool) {
	done := s.Metrics[CongestionControl]
	if done == nil {
		return Use{}, false
	}
	u := Use{Prefix: s.Prefix, Priority: s.Priority, Made: s.Made, Algorithm: done.Set.Name, RateBps: done.Set.RateBps}
	if !s.Made {
		u.FormerAlgorithm, u.FormerLocked = done.Former.Name, done.Former.Locked
	}
	for _, c := range done.Claims {
		u.Owners = append(u.Owners, c.Owner)
	}
	return u, true
}

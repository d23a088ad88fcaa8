package route

import "net/netip"

// Use is the congestion control of a prefix.
type Use struct {
	Prefix    netip.Prefix `json:"prefix"`
	Algorithm string       `json:"algorithm"`
	Priority  uint32       `json:"priority"` // the route's metric
	// Made: the route was added for this, a copy of the one that covered the
	// prefix. Otherwise it existed, with the former settings.
	Made            bool   `json:"made"`
	FormerAlgorithm string `json:"former_algorithm,omitempty"`
	FormerLocked    bool   `json:"former_locked,omitempty"`
}

// UseResult is the result of [Table.UseCongestionControl]; see [Result].
type UseResult struct {
	Use
	Changed   bool
	Elsewhere []netip.Prefix
	Effective bool
}

// UseCongestionControl sets a registered algorithm for every new connection to a
// prefix, locked: an application that asks for another one gets EPERM. A second use of
// the same prefix replaces the first.
func (t *Table) UseCongestionControl(prefix netip.Prefix, algorithm string) (UseResult, error) {
	result, err := t.Set(Change{
		Prefix:  prefix,
		Metrics: map[Metric]Value{CongestionControl: {Name: algorithm, Locked: true}},
	})
	if err != nil {
		return UseResult{}, err
	}
	return UseResult{result.use(), result.Changed, result.Elsewhere, result.Effective}, nil
}

// UndoCongestionControl restores a prefix's route from before
// [Table.UseCongestionControl].
func (t *Table) UndoCongestionControl(prefix netip.Prefix) (Use, error) {
	undone, err := t.Unset(prefix, CongestionControl)
	return undone.use(), err
}

// CongestionControlUses returns the prefixes of this network namespace with an
// algorithm of longhaul's.
func (t *Table) CongestionControlUses() (uses []Use, err error) {
	settings, err := t.Settings()
	for _, s := range settings {
		if s.Metrics[CongestionControl] != nil {
			uses = append(uses, s.use())
		}
	}
	return uses, err
}

// use returns the congestion control of a setting.
func (s Setting) use() Use {
	u := Use{Prefix: s.Prefix, Priority: s.Priority, Made: s.Made}
	if done := s.Metrics[CongestionControl]; done != nil {
		u.Algorithm = done.Set.Name
		if !s.Made {
			u.FormerAlgorithm, u.FormerLocked = done.Former.Name, done.Former.Locked
		}
	}
	return u
}

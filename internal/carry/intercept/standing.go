package intercept

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"longhaul/internal/sys/ledger"
	"longhaul/internal/sys/netfilter"
)

// Part is a kind of thing that [Host.Set] sets, and that other programs remove.
type Part string

// The parts.
const (
	PartTable       Part = "table" // of nftables, with its chains and sets
	PartRules       Part = "rules" // in the table
	PartRoutingRule Part = "routing-rule"
	PartRoute       Part = "route"
)

// Missing is a part that the host does not have, though a relay set it.
type Missing struct {
	Part Part   `json:"part"`
	What string `json:"what"` // "the nftables table longhaul-site-a"

	chains []string // of PartRules: those to set again
}

// InTable reports whether the part is in nftables, and not in routing.
func (m Missing) InTable() bool { return m.Part == PartTable || m.Part == PartRules }

// TableOf is the name of a relay's table of nftables.
func TableOf(relay string) string { return tablePrefix + relay }

// ErrCleared reports that the operator has taken back what the relay set.
var ErrCleared = errors.New("its rules were taken back")

// ErrTaken reports that another process of the relay has set the rules since.
var ErrTaken = errors.New("another process has its rules")

// Standing knows what a relay's table had when it was set, so that a rule that took the place
// of another is noticed.
type Standing struct {
	rules map[string][]netfilter.TableRule // nil: not yet known
	want  *ruleset                         // nil: not yet made
	// generation is that of nftables in which the table had these rules and no others, unless it is not
	// known: then whole is false.
	generation uint32
	whole      bool
}

// isWhole reports whether nothing has changed nftables since the table was seen to be whole.
func (s *Standing) isWhole() bool {
	if !s.whole {
		return false
	}
	now, err := netfilter.Generation()
	return err == nil && now == s.generation
}

// Look says what to compare.
type Look struct{ Table, Routing bool }

// Missing compares what a relay set with what the host has. It reads the relay's own table,
// rules and routes, and nothing of other programs.
func (h *Host) Missing(o Options, look Look, s *Standing) (all []Missing, err error) {
	if look.Table && !s.isWhole() {
		generation, unknown := netfilter.Generation() // before the table is read: a change meanwhile makes another
		table, err := netfilter.ReadTable(tablePrefix + o.Relay)
		if err != nil {
			return nil, fmt.Errorf("read the nftables table %s%s: %w", tablePrefix, o.Relay, err)
		}
		if s.want == nil {
			want := newRuleset(o)
			s.want = &want
		}
		missing := s.want.missing(table, s)
		if missing != nil {
			all = append(all, *missing)
		}
		s.generation, s.whole = generation, unknown == nil && missing == nil && !s.want.hasOthers(table)
	}
	if !look.Routing {
		return all, nil
	}
	routing, err := missingDeliveries(deliveries(o))
	return append(all, routing...), err
}

// missing says what the kernel's table lacks; nil: nothing.
func (r ruleset) missing(have *netfilter.Table, s *Standing) *Missing {
	if have == nil {
		return &Missing{Part: PartTable, What: "the nftables table " + r.table}
	}
	if have.Dormant {
		return &Missing{Part: PartTable, What: "the nftables table " + r.table + " (it is dormant)"}
	}
	var lack, changed []string
	for _, c := range r.chains {
		digests := have.Rules[c.name]
		switch known := s.rules[c.name]; {
		case len(digests) < len(c.rules):
			lack = append(lack, c.name)
		case len(digests) > len(c.rules), s.rules != nil && !slices.Equal(known, digests), slices.Contains(have.Drops, c.name):
			changed = append(changed, c.name)
		}
	}
	switch {
	case len(lack) > 0:
		return &Missing{PartRules, fmt.Sprintf("rules in %s of the nftables table %s", named(lack), r.table), append(lack, changed...)}
	case len(changed) > 0:
		return &Missing{PartRules, fmt.Sprintf("the rules as they were in %s of the nftables table %s", named(changed), r.table), changed}
	}
	if s.rules == nil {
		s.rules = have.Rules
	}
	return nil
}

// hasOthers reports whether the kernel's table has rules in chains of another program's. They are not
// missing, and the next replace removes them.
func (r ruleset) hasOthers(have *netfilter.Table) bool {
	ours := make(map[string]bool, len(r.chains))
	for _, c := range r.chains {
		ours[c.name] = true
	}
	for name := range have.Rules {
		if !ours[name] {
			return true
		}
	}
	return false
}

// named lists the names of chains, of many only the first.
func named(chains []string) string {
	const most = 3
	if more := len(chains) - most; more > 0 {
		return fmt.Sprintf("%s and %d more chains", strings.Join(chains[:most], ", "), more)
	}
	return strings.Join(chains, ", ")
}

func missingDeliveries(needed []delivery) (all []Missing, err error) {
	for _, d := range needed {
		family := "IPv4"
		if d.Family == families[1].rtnl {
			family = "IPv6"
		}
		rule, route, err := d.stands()
		if err != nil {
			return all, err
		}
		if !rule {
			all = append(all, Missing{Part: PartRoutingRule, What: fmt.Sprintf("the %s routing rule for mark %#x", family, d.Mark)})
		}
		if !route {
			all = append(all, Missing{Part: PartRoute, What: fmt.Sprintf("the %s local route of table %d", family, d.Table)})
		}
	}
	return all, nil
}

// Restore sets what is missing of what this process has set, and forgets what it knew of the
// table if it replaced it. It returns [ErrCleared] or [ErrTaken], wrapped, if this process has
// nothing to restore.
func (h *Host) Restore(o Options, missing []Missing, s *Standing) error {
	s.whole = false
	book, err := ledger.Open(h.Ledger, false)
	if err != nil {
		return err
	}
	defer book.Close()
	key, err := h.key(o.Relay)
	if err != nil {
		return err
	}
	e := book.Find(key)
	if e == nil {
		return fmt.Errorf("relay %s: %w", o.Relay, ErrCleared)
	}
	if n := len(e.Claims); n == 0 || !e.Claims[n-1].Same(h.By) {
		return fmt.Errorf("relay %s: %w", o.Relay, ErrTaken)
	}
	for _, d := range deliveries(o) {
		if err := d.add(); err != nil {
			return err
		}
	}
	at := slices.IndexFunc(missing, Missing.InTable)
	if at < 0 {
		return nil
	}
	if s.want == nil {
		want := newRuleset(o)
		s.want = &want
	}
	s.rules = nil
	if err := s.want.replace(missing[at].chains...); err != nil {
		return fmt.Errorf("set the nftables rules of %s: %w", s.want.table, lacks(err))
	}
	return nil
}

// Describe says what is missing, and what becomes of connections.
func Describe(all []Missing) string {
	effect := "new connections go directly, and flows of the relay break"
	if Swallows(all) {
		effect = "new connections get no answer, and flows of the relay stand still"
	}
	return "another program has removed " + Texts(all) + ": " + effect
}

// Texts lists what is missing.
func Texts(all []Missing) string {
	texts := make([]string, len(all))
	for i, m := range all {
		texts[i] = m.What
	}
	return strings.Join(texts, " and ")
}

// Swallows reports whether new connections get no answer without these parts. The table still
// gives their packets to the relay's listener then, and no route delivers them.
func Swallows(all []Missing) bool {
	has := func(p Part) bool { return slices.ContainsFunc(all, func(m Missing) bool { return m.Part == p }) }
	return !has(PartTable) && (has(PartRoutingRule) || has(PartRoute))
}

package ipprefix

import (
	"net/netip"
	"slices"
)

// Ordered are prefixes in the order of their addresses, and of those with the same the shorter first:
// one stands before all that it contains.
type Ordered []netip.Prefix

// Order puts prefixes in order, as a copy.
func Order(all []netip.Prefix) Ordered {
	o := slices.Clone(Ordered(all))
	slices.SortFunc(o, compare)
	return o
}

func compare(a, b netip.Prefix) int {
	if c := a.Addr().Compare(b.Addr()); c != 0 {
		return c
	}
	return a.Bits() - b.Bits()
}

// Meets reports whether two have an address in common. Neither may have one prefix within another. It
// looks at each prefix once.
func (o Ordered) Meets(p Ordered) bool {
	for len(o) > 0 && len(p) > 0 {
		if o[0].Overlaps(p[0]) {
			return true
		}
		if compare(o[0], p[0]) > 0 {
			o, p = p, o
		}
		o = o[1:]
	}
	return false
}

// Overlapping calls pair for each two prefixes of which one contains the other, with their places in
// all. Prefixes that have nothing in common cost a sort, and no look at each other.
func Overlapping(all []netip.Prefix, pair func(i, j int)) {
	places := make([]int, len(all))
	for i := range places {
		places[i] = i
	}
	slices.SortFunc(places, func(i, j int) int { return compare(all[i], all[j]) })
	var open []int // those that contain the one before
	for _, at := range places {
		for len(open) > 0 && !all[open[len(open)-1]].Contains(all[at].Addr()) {
			open = open[:len(open)-1]
		}
		for _, outer := range open {
			pair(outer, at)
		}
		open = append(open, at)
	}
}

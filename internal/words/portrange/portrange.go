// Package portrange has ranges of TCP ports.
package portrange

import (
	"fmt"
	"slices"
	"strconv"
)

// Range is a range of ports, including both ends. A single port is First and Last.
type Range struct {
	First uint16 `json:"first"`
	Last  uint16 `json:"last"`
}

// Len is the number of ports.
func (r Range) Len() int { return int(r.Last) - int(r.First) + 1 }

// Has reports whether a port is in the range.
func (r Range) Has(port uint16) bool { return r.First <= port && port <= r.Last }

// Overlaps reports whether two ranges have a port in common.
func (r Range) Overlaps(o Range) bool { return r.First <= o.Last && o.First <= r.Last }

// String is "first-last", or the one port.
func (r Range) String() string {
	if r.First == r.Last {
		return strconv.Itoa(int(r.First))
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// Has reports whether a port is in one of the ranges. None at all means every port.
func Has(all []Range, port uint16) bool {
	return len(all) == 0 || slices.ContainsFunc(all, func(r Range) bool { return r.Has(port) })
}

// Overlap reports whether two lists have a port in common. An empty one means every port.
func Overlap(all, others []Range) bool {
	return len(all) == 0 || len(others) == 0 ||
		slices.ContainsFunc(all, func(r Range) bool { return slices.ContainsFunc(others, r.Overlaps) })
}

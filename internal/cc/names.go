package cc

import (
	"slices"

	"longhaul/internal/units"
)

// IsOwn reports whether a name is a first or second name of longhaul's.
func (h *Host) IsOwn(name string) bool {
	names, err := h.Names()
	return err == nil && slices.Contains(names, units.FirstName(name))
}

// AllNames returns the first and the second names of longhaul's algorithms.
func (h *Host) AllNames() ([]string, error) {
	names, err := h.Names()
	for _, name := range names {
		names = append(names, units.SecondName(name))
	}
	slices.Sort(names)
	return names, err
}

package cc

import (
	"slices"

	"longhaul/internal/words/ccnames"
)

// IsOwn reports whether a name is a first or second name of longhaul's.
func (h *Host) IsOwn(name string) bool {
	names, err := h.Names()
	return err == nil && slices.Contains(names, ccnames.First(name))
}

// AllNames returns the first and the second names of longhaul's algorithms.
func (h *Host) AllNames() ([]string, error) {
	names, err := h.Names()
	for _, name := range names {
		names = append(names, ccnames.Second(name))
	}
	slices.Sort(names)
	return names, err
}

// Offered returns the names to load longhaul's algorithms under: the second where
// another owner has the first.
func (h *Host) Offered() ([]string, error) {
	own, err := h.Names()
	if err != nil {
		return nil, err
	}
	available, err := Available()
	if err != nil {
		return nil, err
	}
	loaded, err := h.LoadedNames()
	if err != nil { // as an ordinary user
		return own, nil
	}
	return offered(own, available, loaded), nil
}

func offered(own, available, loaded []string) (names []string) {
	for _, name := range own {
		if slices.Contains(available, name) && !slices.Contains(loaded, name) {
			name = ccnames.Second(name)
		}
		names = append(names, name)
	}
	return names
}

// Known lists the names of congestion controls that can be meant on this host: those
// that the kernel has, those of Linux, those of this host's kernel modules, and
// longhaul's first and second names. Some of them may fail to load.
func (h *Host) Known() []string {
	available, _ := Available() // without TCP no name is refused by this list alone
	own, _ := h.AllNames()
	all := slices.Concat(available, own, ccnames.Linux(), moduleNames("/lib/modules"))
	slices.Sort(all)
	return slices.Compact(all)
}

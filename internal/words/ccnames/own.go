// Package ccnames has the names of congestion controls: longhaul's own with what each does, their
// second names, and those of Linux. Whether a kernel has one is for tune/cc to find out.
package ccnames

import (
	"slices"
	"strings"
)

// Algorithm is one of longhaul's own congestion controls.
type Algorithm struct {
	Name    string
	Summary string // in a few words

	NeedsRate       bool // it finds no rate by itself
	Paces           bool // it sets the sending rate directly, not through the window
	FillsLossyPaths bool // it keeps the path's rate while a tenth of the packets is lost
}

// own is the list of longhaul's congestion controls, by name. The objects in tune/cc are
// compiled from bpf/.
var own = []Algorithm{
	{Name: "bbr3", Summary: "BBR version 3: models the path, tolerates 2 % of loss", Paces: true},
	{Name: "brutal", Summary: "holds a given rate despite loss", NeedsRate: true, Paces: true, FillsLossyPaths: true},
	{Name: "haul", Summary: "finds the rate of a lossy path, keeps queues short", Paces: true, FillsLossyPaths: true},
	{Name: "hybla", Summary: "long round trips grow like short ones"},
	{Name: "illinois", Summary: "grows by delay, falls by loss; for fast clean paths"},
}

// Own returns the first names of longhaul's congestion controls, sorted.
func Own() []string {
	names := make([]string, len(own))
	for i, a := range own {
		names[i] = a.Name
	}
	return names
}

// FindOwn returns the one of longhaul's congestion controls with this first or second
// name.
func FindOwn(name string) (a Algorithm, ok bool) {
	name = First(name)
	i := slices.IndexFunc(own, func(a Algorithm) bool { return a.Name == name })
	if i < 0 {
		return Algorithm{}, false
	}
	return own[i], true
}

// NeedsRate reports whether a congestion control sends at a rate that somebody gives it.
func NeedsRate(name string) bool {
	a, _ := FindOwn(name)
	return a.NeedsRate
}

// Paces reports whether a congestion control sets the sending rate directly, not through the
// window.
func Paces(name string) bool {
	if a, ok := FindOwn(name); ok {
		return a.Paces
	}
	return strings.HasPrefix(name, "bbr") // all versions
}

// FillsLossyPaths reports whether a congestion control keeps the path's rate while a tenth of the
// packets is lost.
func FillsLossyPaths(name string) bool {
	a, _ := FindOwn(name)
	return a.FillsLossyPaths
}

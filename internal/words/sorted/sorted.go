// Package sorted sorts short lists of structures.
package sorted

import "sort"

// By sorts a list by a comparison; equal elements keep their order. It shares the code of package
// sort, while slices.SortFunc has a copy of 14 kB for each type. Long lists take slices.SortFunc.
func By[E any](list []E, compare func(a, b E) int) { sort.Stable(by[E]{list, compare}) }

type by[E any] struct {
	list    []E
	compare func(a, b E) int
}

func (s by[E]) Len() int           { return len(s.list) }
func (s by[E]) Less(i, j int) bool { return s.compare(s.list[i], s.list[j]) < 0 }
func (s by[E]) Swap(i, j int)      { s.list[i], s.list[j] = s.list[j], s.list[i] }

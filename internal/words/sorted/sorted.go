// Package sorted sorts short lists of structures.
package sorted

import "sort"

// By sorts a list by a comparison; equal elements keep their order. It shares the code of package
// sort, while slices.SortFunc has a copy of 14 kB for each type. Long lists take slices.SortFunc.
func By[E any](list []E, compare func(a, b E) int) {
	sort.SliceStable(list, func(i, j int) bool { return compare(list[i], list[j]) < 0 })
}

package flagvalue

import (
	"fmt"
	"slices"
	"strings"
)

// Choose returns those of all that have the given names, in the names' order,
// and all of them if no name is given. kind is the word for one of them.
func Choose[T any](kind string, all []T, names []string, nameOf func(T) string) ([]T, error) {
	if len(names) == 0 {
		return all, nil
	}
	var chosen []T
	for _, name := range names {
		i := slices.IndexFunc(all, func(v T) bool { return nameOf(v) == name })
		if i < 0 {
			var known []string
			for _, v := range all {
				known = append(known, nameOf(v))
			}
			return nil, fmt.Errorf("unknown %s %q: choose from %s", kind, name, strings.Join(known, ", "))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// Names splits a list with commas; an empty text has no names.
func Names(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

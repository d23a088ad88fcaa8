package peers

import (
	"fmt"
	"slices"
	"strings"
)

// Pick returns those of all with the given comma-separated names, all of them
// where there are no names.
func Pick[T any](what string, all []T, names string, nameOf func(T) string) ([]T, error) {
	if names == "" {
		return all, nil
	}
	var picked []T
	for _, name := range strings.Split(names, ",") {
		i := slices.IndexFunc(all, func(t T) bool { return nameOf(t) == name })
		if i < 0 {
			var have []string
			for _, t := range all {
				have = append(have, nameOf(t))
			}
			return nil, fmt.Errorf("there is no %s %q: use %s", what, name, strings.Join(have, ", "))
		}
		picked = append(picked, all[i])
	}
	return picked, nil
}

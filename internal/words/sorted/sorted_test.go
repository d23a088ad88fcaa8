package sorted

import (
	"cmp"
	"slices"
	"testing"
)

func TestBy(t *testing.T) {
	type pair struct{ key, place int }
	var list []pair
	for i := range 100 {
		list = append(list, pair{i * 7 % 5, i})
	}
	want := slices.Clone(list)
	compare := func(a, b pair) int { return cmp.Compare(a.key, b.key) }
	slices.SortStableFunc(want, compare)
	if By(list, compare); !slices.Equal(list, want) {
		t.Errorf("sorted %v, want %v", list, want)
	}
}

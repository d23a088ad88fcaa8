package portrange

import (
	"slices"
	"testing"
)

func TestWithout(t *testing.T) {
	all := Range{100, 200}
	for _, c := range []struct {
		list string
		want []Range
	}{
		{"\n", []Range{{100, 200}}},
		{"99,201-300\n", []Range{{100, 200}}},
		{"150\n", []Range{{100, 149}, {151, 200}}},
		{"90-110,150-160,190-250\n", []Range{{111, 149}, {161, 189}}},
		{"1-65535\n", nil},
		{"nonsense,150\n", []Range{{100, 149}, {151, 200}}},
	} {
		if got := without(all, c.list); !slices.Equal(got, c.want) {
			t.Errorf("without %q: %v, want %v", c.list, got, c.want)
		}
	}
	if r := Local(); r.First > r.Last {
		t.Errorf("the kernel's range is %v", r)
	}
}

package portrange

import "testing"

func TestOverlap(t *testing.T) {
	for name, one := range map[string]struct {
		a, b []Range
		want bool
	}{
		"equal":          {[]Range{{22, 22}}, []Range{{22, 22}}, true},
		"at an end":      {[]Range{{1, 22}}, []Range{{22, 30}}, true},
		"neighbours":     {[]Range{{1, 21}}, []Range{{22, 30}}, false},
		"within another": {[]Range{{1, 65535}}, []Range{{22, 22}}, true},
		"the second":     {[]Range{{1, 2}, {80, 80}}, []Range{{22, 22}, {70, 90}}, true},
		"all":            {nil, []Range{{22, 22}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Overlap(one.a, one.b); got != one.want {
				t.Errorf("%v", got)
			}
			if got := Overlap(one.b, one.a); got != one.want {
				t.Errorf("the other way: %v", got)
			}
		})
	}
}

func TestHas(t *testing.T) {
	all := []Range{{22, 22}, {5432, 5440}}
	for port, want := range map[uint16]bool{21: false, 22: true, 23: false, 5431: false, 5432: true, 5440: true, 5441: false} {
		if got := Has(all, port); got != want {
			t.Errorf("%d: %v", port, got)
		}
	}
	if !Has(nil, 1) {
		t.Error("no range means every port")
	}
}

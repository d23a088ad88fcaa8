package tcpcc

import (
	"slices"
	"strings"
	"testing"
)

func TestChoose(t *testing.T) {
	all, err := Choose(nil)
	if err != nil || len(all) == 0 {
		t.Fatalf("%v, %v", all, err)
	}
	if got, err := Choose([]string{"reno"}); err != nil || len(got) != 1 {
		t.Errorf("%v, %v", got, err)
	}
	for name, names := range map[string][]string{
		`no congestion control "nosuch": it has `: {"reno", "nosuch"},
		"reno is named twice":                     {"reno", "reno"},
	} {
		if _, err := Choose(names); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v: %v", names, err)
		}
	}
}

func TestUsualOrder(t *testing.T) {
	want := []string{"cubic", "reno", "hybla", "illinois", "bbr", "bbr3", "brutal", "haul"}
	if got := usualOrder(); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

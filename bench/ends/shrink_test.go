package main

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestShrink: a relay that loses what comes behind an urgent byte that follows
// 1000 bytes or more is shown by a script with nothing else in it.
func TestShrink(t *testing.T) {
	loses := func(s *Script) *Violation {
		urgent := slices.IndexFunc(s.Client.Steps, func(t Step) bool { return t.Op == OpUrgent })
		if urgent < 0 || s.Client.urgents()[0] < 1000 || urgent == len(s.Client.Steps)-1 || s.Client.Steps[urgent+1].Op != OpSend {
			return nil
		}
		return &Violation{KindTruncated, "lost"}
	}
	s := Generate(1, 1)
	for n := uint64(2); loses(s) == nil; n++ {
		s = Generate(1, n)
	}
	v := &Violation{KindTruncated, "lost"}
	s, _, broke, of := shrink(t.Context(), s, v, shrinkTime, loses)
	want := `IPv4
client
  1  send 1000
  2  send 1 urgent byte
  3  send 1
  4  close
target
  1  close
`
	if diff := cmp.Diff(want, s.String()); diff != "" {
		t.Errorf("the shortest script (-want +got):\n%s", diff)
	}
	if broke != of || of == 0 {
		t.Errorf("broke %d of %d", broke, of)
	}
}

// A step that is taken away takes the waiting for it along.
func TestDrop(t *testing.T) {
	for _, test := range []struct {
		at, n int
		want  []int // what the peer waits for then
	}{
		{0, 1, []int{1, 2}},
		{1, 1, []int{1, 1, 2}},
		{2, 1, []int{1, 2, 2}},
		{0, 3, nil},
	} {
		s := &Script{Client: End{Steps: make([]Step, 3)}}
		for n := range 3 {
			s.Target.Steps = append(s.Target.Steps, Step{Op: OpAwait, Until: n + 1})
		}
		s.drop(0, test.at, test.n)
		var got []int
		for _, step := range s.Target.Steps {
			got = append(got, step.Until)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("without %d from %d on (-want +got):\n%s", test.n, test.at, diff)
		}
	}
}

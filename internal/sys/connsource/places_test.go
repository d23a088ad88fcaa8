package connsource

import (
	"net/netip"
	"slices"
	"testing"
)

// TestPlaces holds whose place goes to a newcomer.
func TestPlaces(t *testing.T) {
	from := func(host byte) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, host}) }
	const max = 64
	p := NewPlaces(max)
	var gone []int
	n := 0
	take := func(host byte) *Place {
		n++
		id := n
		return p.Take(from(host), func() { gone = append(gone, id) })
	}
	expect := func(what string, want ...int) {
		t.Helper()
		if !slices.Equal(gone, want) || p.Taken() > max {
			t.Errorf("%s: %v have lost their places, want %v; %d are taken", what, gone, want, p.Taken())
		}
		gone = nil
	}
	for range max {
		take(1)
	}
	expect("as many as there are")
	few := take(2)
	expect("another source", 1)
	take(1)
	expect("the source with the most", 2)
	for range max {
		take(3)
	}
	count := map[netip.Addr]int{}
	for source, l := range p.bySource {
		count[source] = l.Len()
	}
	if few.lost || count[from(1)] < max/2-1 || count[from(3)] > max/2 {
		t.Errorf("places by source: %v", count)
	}
	for range 2 { // the second time does nothing
		if p.Leave(few) || p.Taken() != max-1 {
			t.Errorf("%d are taken after one has left", p.Taken())
		}
	}

	p, n, gone = NewPlaces(2), 0, nil
	oldest := take(2)
	take(1)
	take(3)
	expect("one each", 1)
	if !p.Leave(oldest) || p.Taken() != 2 {
		t.Errorf("%d are taken after one has left that had lost its place", p.Taken())
	}
}

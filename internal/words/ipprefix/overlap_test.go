package ipprefix

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// TestOverlapping holds the pairs against those of netip, each once.
func TestOverlapping(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 7))
	for range 200 {
		all := make([]netip.Prefix, random.IntN(40))
		for i := range all {
			a := netip.AddrFrom4([4]byte{10, byte(random.IntN(3)), byte(random.IntN(4)), byte(random.Uint32())})
			bits := random.IntN(33)
			if random.IntN(3) == 0 {
				a = netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(random.IntN(4))})
				bits = random.IntN(129)
			}
			all[i] = netip.PrefixFrom(a, bits).Masked()
		}
		type pair struct{ i, j int }
		got := map[pair]int{}
		Overlapping(all, func(i, j int) { got[pair{min(i, j), max(i, j)}]++ })
		for i := range all {
			for j := range i {
				want := 0
				if all[i].Overlaps(all[j]) {
					want = 1
				}
				if n := got[pair{j, i}]; n != want {
					t.Errorf("%s and %s: %d pairs, want %d", all[j], all[i], n, want)
				}
			}
		}
	}
}

// TestMeets holds lists of disjoint prefixes against a look at each two.
func TestMeets(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	list := func() (all []netip.Prefix) {
		for range random.IntN(6) {
			a := netip.AddrFrom4([4]byte{10, 0, byte(random.IntN(8)), byte(random.Uint32())})
			p := netip.PrefixFrom(a, 22+random.IntN(11)).Masked()
			if !slices.ContainsFunc(all, p.Overlaps) {
				all = append(all, p)
			}
		}
		return all
	}
	met := 0
	for range 2000 {
		a, b := list(), list()
		want := slices.ContainsFunc(a, func(p netip.Prefix) bool { return slices.ContainsFunc(b, p.Overlaps) })
		if got := Order(a).Meets(Order(b)); got != want {
			t.Fatalf("%v and %v: %t, want %t", a, b, got, want)
		}
		if want {
			met++
		}
	}
	if met < 200 || met > 1800 {
		t.Errorf("%d of 2000 meet: the lists say nothing", met)
	}
}

// Prefixes that have nothing in common are no pairs, however many there are.
func TestOverlappingOfMany(t *testing.T) {
	var all []netip.Prefix
	for i := range 20_000 {
		all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24))
	}
	Overlapping(all, func(i, j int) { t.Fatalf("%s and %s", all[i], all[j]) })
	all = append(all, netip.MustParsePrefix("10.0.0.0/30"))
	pairs := 0
	Overlapping(all, func(int, int) { pairs++ })
	if pairs != 1 {
		t.Errorf("%d pairs, want 1", pairs)
	}
}

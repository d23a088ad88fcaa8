package pair

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
)

// TestTurns holds that a handshake that has begun comes before one that begins, and that
// no turn is lost.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(1)
		begin := func() { turns.begin(netip.Addr{}) }
		begin()
		var order []string
		wait := func(name string, take func()) {
			go func() {
				take()
				order = append(order, name)
				turns.give()
			}()
			synctest.Wait()
		}
		wait("begins", begin)
		wait("begins later", begin)
		wait("another source", func() { turns.begin(netip.MustParseAddr("192.0.2.1")) })
		wait("goes on", turns.goOn)
		wait("goes on later", turns.goOn)
		turns.give()
		synctest.Wait()
		if want := []string{"goes on", "goes on later", "begins", "another source", "begins later"}; !slices.Equal(order, want) {
			t.Errorf("order %q, want %q", order, want)
		}
		if turns.free != 1 {
			t.Errorf("%d turns are free in the end, of 1", turns.free)
		}
	})
}

package relay

import "testing"

// Only SYNs whose hop limit began where a relay's does are a relay's.
func TestIsRelayed(t *testing.T) {
	v4 := func(ttl byte) []byte { return append([]byte{0x45, 0, 0, 60, 0, 0, 0, 0, ttl, 6}, make([]byte, 50)...) }
	v6 := func(hops byte) []byte {
		return append([]byte{0x60, 0, 0, 0, 0, 40, 6, hops, ^hops}, make([]byte, 71)...)
	}
	for _, c := range []struct {
		ttl  byte
		want bool
	}{{64, false}, {57, false}, {128, false}, {120, false}, {255, false}, {225, false}, {200, true}, {199, true}, {160, true}, {201, false}} {
		if got := isRelayed(v4(c.ttl)); got != c.want {
			t.Errorf("a TTL of %d: %v", c.ttl, got)
		}
		if got := isRelayed(v6(c.ttl)); got != c.want {
			t.Errorf("a hop limit of %d: %v", c.ttl, got)
		}
	}
	if isRelayed(nil) || isRelayed([]byte{0x45, 0}) {
		t.Error("a SYN that was not kept counts")
	}
}

//go:build linux

package ends

import (
	"fmt"
	"sync/atomic"
	"testing"
)

// TestRelays runs a thousand scripts through one relay and through two. At
// 1818be3 it finds streams cut short behind urgent data and behind connections
// that were there before the relay, and urgent bytes that vanish.
func TestRelays(t *testing.T) {
	var lanes []*lane
	for range 16 {
		l, err := newLane()
		if err != nil {
			t.Fatal(err)
		}
		defer l.close()
		lanes = append(lanes, l)
	}
	c, err := newChain(2, lanes)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	var next atomic.Uint64
	each(lanes, func(l *lane, i int) {
		for n := next.Add(1); n <= 1000; n = next.Add(1) {
			s := Generate(1, n)
			for depth := 1; depth <= 2; depth++ {
				if err := func() error {
					r, done, err := c.way(depth, l, i, s)
					if err != nil {
						return err
					}
					defer done()
					o, err := run(s, r, patience)
					if err != nil {
						return err
					}
					l.empty()
					if err := Allowed(s, nil, &o); err != nil {
						return fmt.Errorf("%w\n%s%+v", err, s, o)
					}
					return nil
				}(); err != nil {
					t.Errorf("script %d through %d: %v", n, depth, err)
				}
			}
		}
	})
}

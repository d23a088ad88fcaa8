//go:build linux

package ends

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const patience = 30 * time.Second // for a script that must end

// each runs scripts 1 to n of a seed, several at a time.
func each(t *testing.T, n uint64, test func(l *lane, n uint64) error) {
	t.Helper()
	var next atomic.Uint64
	var all sync.WaitGroup
	for range 8 {
		l, err := newLane()
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			defer l.close()
			for i := next.Add(1); i <= n; i = next.Add(1) {
				if err := test(l, i); err != nil {
					t.Errorf("script %d: %v", i, err)
				}
			}
		})
	}
	all.Wait()
}

// TestDirectBreaksNoRule holds the rule against the kernel itself.
func TestDirectBreaksNoRule(t *testing.T) {
	each(t, 1000, func(l *lane, n uint64) error {
		s := Generate(1, n)
		o, err := run(s, l.direct(s), patience)
		if err == nil {
			err = Allowed(s, nil, &o)
		}
		return err
	})
}

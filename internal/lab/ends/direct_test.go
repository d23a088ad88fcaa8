//go:build linux

package ends

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const patience = 10 * time.Second // for a script that must end

func each(lanes []*lane, f func(l *lane, i int)) {
	var all sync.WaitGroup
	for i, l := range lanes {
		all.Go(func() { f(l, i) })
	}
	all.Wait()
}

// TestDirectBreaksNoRule holds the rule against the kernel itself.
func TestDirectBreaksNoRule(t *testing.T) {
	var lanes []*lane
	for range 16 {
		l, err := newLane()
		if err != nil {
			t.Fatal(err)
		}
		defer l.close()
		lanes = append(lanes, l)
	}
	var next atomic.Uint64
	each(lanes, func(l *lane, i int) {
		for n := next.Add(1); n <= 1000; n = next.Add(1) {
			s := Generate(1, n)
			o, err := run(s, l.direct(s), patience)
			if err == nil {
				err = Allowed(s, nil, &o)
			}
			if err != nil {
				t.Error(fmt.Errorf("script %d: %w", n, err))
			}
		}
	})
}

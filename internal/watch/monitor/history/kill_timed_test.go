//go:build timed

package history

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"longhaul/test/nettest"
)

// TestKillLosesASecond kills a process that writes, many times. A kill costs the records
// of less than a second, but for one kill in ten.
func TestKillLosesASecond(t *testing.T) {
	const rounds = 10
	path := filepath.Join(t.TempDir(), "history.db")
	nettest.MostOf(t, func() error {
		late := 0
		var worst time.Duration
		for range rounds {
			newest, all, killed := killWriter(t, path)
			lost := time.Duration(0)
			for _, a := range all {
				if a.last > newest {
					lost = killed.Sub(a.at)
					break
				}
			}
			worst = max(worst, lost)
			if lost > time.Second {
				late++
			}
		}
		t.Logf("%d kills, the oldest record that was lost had been added %v before", rounds, worst.Round(time.Millisecond))
		if late > 1 {
			return fmt.Errorf("%d of %d kills lost the records of more than a second", late, rounds)
		}
		return nil
	})
}

package relay

import (
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	report "longhaul/internal/carry/flow"
)

const maxReasons = 32

// endCounts counts the ended flows of a tunnel by the index of their reason.
type endCounts [maxReasons]atomic.Int64

func (c *endCounts) add(r report.EndReason) {
	if i, ok := slices.BinarySearch(report.EndReasons, r); ok {
		c[i].Add(1)
	}
}

// endList returns the reasons with at least one flow, those that the other relay of a
// pair has told last.
func endList(own, byPeer *endCounts) []report.Ended {
	all := []report.Ended{}
	for _, counts := range []*endCounts{own, byPeer} {
		for i, r := range report.EndReasons {
			if n := counts[i].Load(); n > 0 {
				rec := report.Record{Reason: r, ByPeer: counts == byPeer}
				all = append(all, report.Ended{Reason: r, EndedBy: rec.EndedBy(), Flows: n})
			}
		}
	}
	return all
}

// errnoCounts counts errors by number; they are rare.
type errnoCounts struct {
	mu     sync.Mutex
	counts map[unix.Errno]int64
}

func (c *errnoCounts) add(errno unix.Errno) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[unix.Errno]int64{}
	}
	c.counts[errno]++
}

func (c *errnoCounts) byName() map[string]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	named := make(map[string]int64, len(c.counts))
	for errno, n := range c.counts {
		name := unix.ErrnoName(errno)
		if name == "" {
			name = "unknown"
		}
		named[name] += n
	}
	return named
}

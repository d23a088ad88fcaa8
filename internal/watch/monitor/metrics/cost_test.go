package metrics

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"longhaul/internal/watch/monitor"
)

// manyTunnels is a snapshot of as many tunnels with a value for each metric.
func manyTunnels(n int) *monitor.Snapshot {
	s := everything()
	tunnel, pair := s.Tunnels[0], s.PairTotals[0]
	s.Tunnels, s.PairTotals = nil, nil
	for i := range n {
		tunnel.Name = fmt.Sprintf("tunnel-%03d", i)
		s.Tunnels = append(s.Tunnels, tunnel)
		pair.Tunnel = tunnel.Name
		s.PairTotals = append(s.PairTotals, pair)
	}
	return s
}

// TestScrapeAllocates: what a further tunnel costs a scrape is no allocation for each of its series, of
// which it has a hundred.
func TestScrapeAllocates(t *testing.T) {
	of := func(tunnels int) float64 {
		h := handlerOf(manyTunnels(tunnels))
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		return testing.AllocsPerRun(5, func() { h.ServeHTTP(discard{}, r) })
	}
	const more = 200
	if each := (of(more+1) - of(1)) / more; each > 40 {
		t.Errorf("a further tunnel costs %.0f allocations", each)
	}
}

package metrics

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"longhaul/internal/watch/monitor"
	"longhaul/test/nettest"
)

// Scrapes beyond maxScrapes wait for their turn, and are not refused. Those whose clients go
// leave no turn taken. At 071f4916 the one more got 503.
func TestScrapesTakeTurns(t *testing.T) {
	nettest.CheckLeaks(t)
	begun, release := make(chan struct{}, 4*maxScrapes), make(chan struct{})
	var together, most atomic.Int32
	h := Handler(Options{
		Snapshot: func() *monitor.Snapshot {
			n := together.Add(1)
			defer together.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			begun <- struct{}{}
			<-release
			return everything()
		},
	})
	ask := func(ctx context.Context) int {
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, httptest.NewRequestWithContext(ctx, http.MethodGet, "/metrics", nil))
		return answer.Code
	}
	leaving, leave := context.WithCancel(t.Context())
	var gone, staying sync.WaitGroup
	for range maxScrapes {
		gone.Go(func() { ask(leaving) })
	}
	for range maxScrapes {
		<-begun
	}
	var answered atomic.Int32
	for range maxScrapes {
		staying.Go(func() {
			if status := ask(t.Context()); status == http.StatusOK {
				answered.Add(1)
			} else {
				t.Errorf("one that waits is answered with %d", status)
			}
		})
		gone.Go(func() { ask(leaving) })
	}
	leave()
	gone.Wait()
	close(release)
	staying.Wait()
	nettest.Eventually(t, time.Minute, func() bool { return together.Load() == 0 }, func() string { return "scrapes go on" })
	if n := answered.Load(); n != maxScrapes || most.Load() > maxScrapes {
		t.Errorf("%d of %d are answered, %d at the same time", n, maxScrapes, most.Load())
	}
}

// TestScrapePanics holds that a scrape that panics does so in the handler, where net/http ends only the connection,
// and that it leaves no turn taken.
func TestScrapePanics(t *testing.T) {
	h := Handler(Options{Snapshot: func() *monitor.Snapshot { panic("broken") }})
	for range 2 * maxScrapes {
		func() {
			defer func() {
				if got := recover(); got != "broken" {
					t.Errorf("the handler panicked with %v", got)
				}
			}()
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
		}()
	}
}

// Package metrics exports the state of a monitor as Prometheus metrics.
//
// Labels are names from the configuration and words from fixed lists, so the
// number of series is bounded. A label is never the address of a client or a
// flow.
package metrics

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"longhaul/internal/watch/monitor"
)

// Options are the sources of the metrics.
type Options struct {
	// Snapshot returns the state to export; its flows are not read.
	Snapshot func() *monitor.Snapshot

	// History returns the state of the history of flows. Nil, or a nil result,
	// means that there is no history; its metrics are omitted.
	History func() *History

	// Log receives metrics that cannot be exported. Nil discards it.
	Log *slog.Logger
}

// History is the state of the history of flows.
type History struct {
	Written uint64 // records, since the start
	Dropped uint64 // records that could not be stored
	Bytes   int64  // on disk; negative: unknown
}

const (
	maxScrapes    = 8 // at the same time
	scrapeTimeout = 10 * time.Second
)

// Handler serves the metrics of the relay, the Go runtime and the process, as
// text or in the OpenMetrics format.
func Handler(opts Options) http.Handler {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	r := prometheus.NewRegistry()
	r.MustRegister(newCollector(opts), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	scrape := promhttp.HandlerFor(r, promhttp.HandlerOpts{
		ErrorLog:          errorLog{opts.Log},
		ErrorHandling:     promhttp.ContinueOnError,
		EnableOpenMetrics: true,
	})
	// TimeoutHandler sends the answer, so a slow reader does not hold up a turn.
	return http.TimeoutHandler(takeTurns(scrape), scrapeTimeout, "the metrics are not ready in time\n")
}

// takeTurns has at most maxScrapes requests make their answers. The others wait: a refusal would
// leave a gap in the data of a server that asks beside a flood.
func takeTurns(next http.Handler) http.Handler {
	turns := make(chan struct{}, maxScrapes)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case turns <- struct{}{}:
			defer func() { <-turns }()
			next.ServeHTTP(w, r)
		case <-r.Context().Done(): // the client has gone, or lost its place
		}
	})
}

type errorLog struct{ log *slog.Logger }

// Println logs an error of making the metrics. That a client has gone is none.
func (l errorLog) Println(v ...any) {
	for _, one := range v {
		if err, ok := one.(error); ok && (errors.Is(err, context.Canceled) || errors.Is(err, http.ErrHandlerTimeout)) {
			return
		}
	}
	l.log.Warn("some metrics could not be shown", "error", v)
}

// Package metrics shows what a monitor knows as Prometheus metrics.
//
// Labels are names of the configuration and words of fixed lists, so their number
// is bounded: never an address of a client, never a flow.
package metrics

import (
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"longhaul/internal/monitor"
)

// Options are where metrics come from.
type Options struct {
	// Snapshot is the state to show; its flows are not looked at.
	Snapshot func() *monitor.Snapshot

	// History tells of the history of flows; nil, or a nil answer: there is
	// none, and it has no metrics.
	History func() *History

	// Log is told of what cannot be shown. Nil discards it.
	Log *slog.Logger
}

// History is how the history of flows does.
type History struct {
	Written uint64 // records, since the start
	Dropped uint64 // records that could not be kept
	Bytes   int64  // on disk; negative: not known
}

const (
	scrapesMost   = 8 // at the same time
	scrapeTimeout = 10 * time.Second
)

// Handler answers with the metrics of the relay, of Go's runtime and of the
// process, as text or in OpenMetrics' format.
func Handler(opts Options) http.Handler {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	r := prometheus.NewRegistry()
	r.MustRegister(newCollector(opts), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{
		ErrorLog:            errorLog{opts.Log},
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: scrapesMost,
		Timeout:             scrapeTimeout,
		EnableOpenMetrics:   true,
	})
}

type errorLog struct{ log *slog.Logger }

func (l errorLog) Println(v ...any) { l.log.Warn("some metrics could not be shown", "error", v) }

// collector makes metrics of a snapshot whenever it is asked.
type collector struct {
	opts  Options
	words *vocabularies
	descs []*prometheus.Desc // of families
}

func newCollector(opts Options) *collector {
	c := &collector{opts: opts, words: newVocabularies()}
	for _, f := range families {
		c.descs = append(c.descs, prometheus.NewDesc(prefix+f.name, f.help, f.labels, nil))
	}
	return c
}

// Describe names all metrics.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		to <- d
	}
}

// Collect shows the last snapshot.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	s := state{Snapshot: c.opts.Snapshot(), vocabularies: c.words}
	if c.opts.History != nil {
		s.history = c.opts.History()
	}
	for i, f := range families {
		f.collect(&s, func(v float64, labels ...string) {
			for i, l := range labels {
				labels[i] = strings.ToValidUTF8(l, "?")
			}
			metric, err := prometheus.NewConstMetric(c.descs[i], f.kind, v, labels...)
			if err != nil {
				metric = prometheus.NewInvalidMetric(c.descs[i], err)
			}
			to <- metric
		})
	}
}

var _ prometheus.Collector = (*collector)(nil)
